import { randomUUID } from "node:crypto";
import { access, chmod, mkdir, readFile, rename, stat, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { Readable } from "node:stream";
import { abortable } from "../../platform/abortable.ts";
import { deadlineAfter } from "../../platform/deadline.ts";
import { tarEnd, tarHeader, tarPadded } from "../../platform/tar/tar-writer.ts";
import type { CallOptions, RuntimeId } from "../../ports/index.ts";
import { ProviderError } from "../../ports/index.ts";
import { storeAgent } from "../agent/index.ts";
import {
  type AgentMounts,
  agentFolder,
  agentProgram,
  mappedSocketFolderUid,
  socketFolder,
  socketFolderUid,
} from "./container-spec.ts";
import type { EngineClient } from "./engine-client.ts";
import { isRefusal } from "./engine-errors.ts";
import { Anything, CreatedContainer } from "./engine-shapes.ts";
import { agentVolume, labelNames, shortInstance } from "./labels.ts";
import { outboundResolver } from "./network-mode.ts";
import type { RuntimeRecords } from "./runtime-records.ts";

const fillTimeoutMs = 60_000;
/** In the agent's folder, for containers whose engine writes none. */
const resolverFile = "resolv.conf";

/** Brings the agent into containers. */
export interface AgentDelivery {
  readonly transport: "socket" | "stdio";
  /** Makes what a runtime's container mounts. `image` is one the engine has. */
  prepare(runtimeId: RuntimeId, image: () => Promise<string>, options: CallOptions): Promise<AgentMounts>;
  /** Refuses a container that would not run our agent. Called between create and start; `image` is what it was made of. */
  inspect(container: string, options: CallOptions & { image: string }): Promise<void>;
  /** Which file it is, for as long as containers have it; undefined where it is no file of this machine. */
  identity(): Promise<string | undefined>;
}

/** On the engine's own machine: the stored agent and the socket's folder are bound into the container. */
export class BoundAgent implements AgentDelivery {
  readonly transport = "socket";
  readonly #dataDir: string;
  readonly #binary: string;
  readonly #records: RuntimeRecords;
  readonly #namesResolver: boolean;
  #stored: Promise<string> | undefined;

  /** @param options.namesResolver whether containers with a network of ours are told by a file of ours who resolves names. */
  constructor(options: {
    dataDir: string;
    binary: string;
    records: RuntimeRecords;
    namesResolver: boolean;
  }) {
    this.#dataDir = options.dataDir;
    this.#binary = options.binary;
    this.#records = options.records;
    this.#namesResolver = options.namesResolver;
  }

  async prepare(runtimeId: RuntimeId): Promise<AgentMounts> {
    const [folder, sockets] = await Promise.all([
      this.#storedAgent(),
      this.#records.makeSocketFolder(runtimeId),
    ]);
    return {
      mounts: [
        { Type: "bind", Source: folder, Target: agentFolder, ReadOnly: true },
        { Type: "bind", Source: sockets, Target: socketFolder },
      ],
      tmpfs: {},
      ...(this.#namesResolver && {
        outboundMounts: [
          { Type: "bind", Source: join(folder, resolverFile), Target: "/etc/resolv.conf", ReadOnly: true },
        ],
      }),
    };
  }

  async identity(): Promise<string> {
    const path = join(await this.#storedAgent(), basename(agentProgram));
    const { dev, ino } = await stat(path);
    return `${path} ${dev} ${ino}`;
  }

  /** Stored once; again when somebody took it away. */
  async #storedAgent(): Promise<string> {
    const folder = await this.#stored?.catch(() => undefined);
    if (folder !== undefined && !(await isThere(join(folder, basename(agentProgram)))))
      this.#stored = undefined;
    this.#stored ??= this.#store().catch((error) => {
      this.#stored = undefined;
      throw error;
    });
    return this.#stored;
  }

  // The program starts before any command runs, so that nothing can stand in its place.
  inspect(): Promise<void> {
    return Promise.resolve();
  }

  /** @returns the host folder that becomes /.alcove: the program, a place to mount the socket's folder at, and the resolver. */
  async #store(): Promise<string> {
    const { path } = await storeAgent({ dataDir: this.#dataDir, binary: this.#binary });
    const folder = dirname(path);
    await mkdir(join(folder, basename(socketFolder)), { recursive: true, mode: 0o755 });
    const draft = join(folder, `${resolverFile}.${randomUUID()}`);
    await writeFile(draft, `nameserver ${outboundResolver}\n`);
    // Whatever the umask is, users inside read it.
    await chmod(draft, 0o644);
    await rename(draft, join(folder, resolverFile));
    return folder;
  }
}

function isThere(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

/**
 * Where the engine cannot see this machine's files, or sockets cannot cross into its containers: the agent is copied
 * into a volume of the engine, once for all sandboxes of this instance, and its socket stays inside.
 */
export class AgentVolume implements AgentDelivery {
  readonly transport = "stdio";
  readonly #dataDir: string;
  readonly #binary: string;
  readonly #engine: EngineClient;
  readonly #instanceId: string;
  readonly #socketUid: number;
  #filled: Promise<{ volume: string; agentBytes: number }> | undefined;

  /** @param options.idsMapped whether the engine maps user ids. */
  constructor(options: {
    dataDir: string;
    binary: string;
    engine: EngineClient;
    instanceId: string;
    idsMapped: boolean;
  }) {
    this.#socketUid = options.idsMapped ? mappedSocketFolderUid : socketFolderUid;
    this.#dataDir = options.dataDir;
    this.#binary = options.binary;
    this.#engine = options.engine;
    this.#instanceId = options.instanceId;
  }

  async prepare(
    _runtimeId: RuntimeId,
    image: () => Promise<string>,
    options: CallOptions,
  ): Promise<AgentMounts> {
    const { volume } = await abortable(this.#filledOnce(image), options.signal);
    return {
      mounts: [this.#mount(volume, { readOnly: true })],
      tmpfs: {
        [socketFolder]: `rw,nosuid,nodev,noexec,size=64k,mode=0700,uid=${this.#socketUid},gid=${this.#socketUid}`,
      },
    };
  }

  identity(): Promise<undefined> {
    return Promise.resolve(undefined);
  }

  /** Shared by every spawn that waits, so that one which leaves does not fail the others. */
  #filledOnce(image: () => Promise<string>): Promise<{ volume: string; agentBytes: number }> {
    this.#filled ??= this.#fill(image).catch((error) => {
      this.#filled = undefined;
      throw error;
    });
    return this.#filled;
  }

  /** Fills the volume again when somebody removed it: the engine makes an empty one of its name for the container. */
  async inspect(container: string, options: CallOptions & { image: string }): Promise<void> {
    const { image, signal } = options;
    const filled = this.#filledOnce(async () => image);
    const { agentBytes } = await abortable(filled, signal);
    const [, isThere] = await Promise.all([
      this.#refuseLink(container, { signal }),
      this.#holds(container, agentBytes, signal),
    ]);
    if (isThere) return;
    // Another spawn may have found it so before.
    if (this.#filled === filled) this.#filled = undefined;
    await abortable(
      this.#filledOnce(async () => image),
      signal,
    );
  }

  /**
   * Every later connection executes the agent by its name, so that the name must be a mount point's: an image with a
   * symlink there would let a command put its own program in its place.
   */
  async #refuseLink(container: string, options: CallOptions): Promise<void> {
    const { waits } = this.#engine;
    const path = `/containers/${container}/archive`;
    const query = { path: agentFolder };
    let stat: { linkTarget?: unknown };
    try {
      const response = await waits.within(waits.patience.callMs, options, (call) =>
        this.#engine.stream({ method: "HEAD", path, query, ...call }),
      );
      response.resume();
      const header = String(response.headers["x-docker-container-path-stat"] ?? "");
      stat = JSON.parse(Buffer.from(header, "base64").toString("utf8"));
    } catch (error) {
      if (isRefusal(error, 404)) return;
      throw error;
    }
    if (stat.linkTarget)
      throw new ProviderError(`the image has a symlink at ${agentFolder}, which is the agent's place`);
  }

  async #fill(image: () => Promise<string>): Promise<{ volume: string; agentBytes: number }> {
    const imageName = await image();
    using deadline = deadlineAfter(fillTimeoutMs);
    const { signal } = deadline;
    const engine = this.#engine;
    const { path, digest } = await storeAgent({ dataDir: this.#dataDir, binary: this.#binary });
    const contents = await readFile(path);
    const volume = agentVolume(shortInstance(this.#instanceId), digest);
    const labels = { [labelNames.instance]: this.#instanceId, [labelNames.role]: "agent" };
    await engine.call(
      { method: "POST", path: "/volumes/create", body: { Name: volume, Labels: labels }, signal },
      Anything,
    );
    // A container that is never started lends its file system to copy into the volume.
    const name = `alcove-fill-${shortInstance(this.#instanceId)}`;
    await this.#removeContainer(name, signal);
    const { Id: filler } = await engine.call(
      {
        method: "POST",
        path: "/containers/create",
        query: { name },
        body: {
          Image: imageName,
          Entrypoint: [agentProgram],
          Labels: labels,
          HostConfig: { NetworkMode: "none", Mounts: [this.#mount(volume, { readOnly: false })] },
        },
        signal,
      },
      CreatedContainer,
    );
    try {
      await this.#refuseLink(filler, { signal });
      if (!(await this.#holds(filler, contents.length, signal))) {
        const tar = [
          tarHeader({ name: basename(socketFolder), type: "dir", mode: 0o755, size: 0 }),
          tarHeader({ name: basename(agentProgram), type: "file", mode: 0o755, size: contents.length }),
          tarPadded(contents),
          tarEnd,
        ];
        await engine.upload(
          { method: "PUT", path: `/containers/${filler}/archive`, query: { path: agentFolder }, signal },
          "application/x-tar",
          Readable.from(tar),
        );
      }
    } finally {
      await this.#removeContainer(filler, signal);
    }
    return { volume, agentBytes: contents.length };
  }

  /** Whether the volume holds the whole agent already. Sandboxes may be using it: it is never written again. */
  async #holds(container: string, size: number, signal: AbortSignal): Promise<boolean> {
    try {
      const response = await this.#engine.stream({
        method: "HEAD",
        path: `/containers/${container}/archive`,
        query: { path: agentProgram },
        signal,
      });
      response.resume();
      const header = String(response.headers["x-docker-container-path-stat"] ?? "");
      const stat: { size?: number } = JSON.parse(Buffer.from(header, "base64").toString("utf8"));
      return stat.size === size;
    } catch (error) {
      if (isRefusal(error, 404)) return false;
      throw error;
    }
  }

  async #removeContainer(container: string, signal: AbortSignal): Promise<void> {
    try {
      const query = { force: "true" };
      await this.#engine.send({ method: "DELETE", path: `/containers/${container}`, query, signal });
    } catch (error) {
      if (!isRefusal(error, 404, 409)) throw error;
    }
  }

  #mount(volume: string, { readOnly }: { readOnly: boolean }): Record<string, unknown> {
    return {
      Type: "volume",
      Source: volume,
      Target: agentFolder,
      ReadOnly: readOnly,
      // Otherwise the engine copies into an empty volume what the image has at that place.
      VolumeOptions: { NoCopy: true },
    };
  }
}
