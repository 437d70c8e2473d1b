import { accessSync, constants, existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import type { Server } from "node:net";
import { resolve } from "node:path";
import { apiTable, type Phase, unfitBody } from "./api-table.ts";
import { type Behaviour, readBehaviour } from "./behaviour.ts";
import { listenVsock } from "./fake-vsock.ts";
import { type Guest, startGuest } from "./guests.ts";

type Body = Record<string, unknown>;
type State = "Not started" | "Running" | "Paused";

export interface Answer {
  status: number;
  json?: unknown;
}

const refusal = (fault: string, status = 400): Answer => ({ status, json: { fault_message: fault } });
const done: Answer = { status: 204 };
const beforeStart = "The requested operation is not supported before starting the microVM.";
const afterStart = "The requested operation is not supported after starting the microVM.";

/** What a snapshot's state file of the fake holds. */
interface Kept {
  fake: 1;
  machine: Body;
  boot: Body;
  drives: Body[];
  vsock: Body | undefined;
  interfaces: Body[];
  memoryPath: string;
}

/**
 * The state of one Firecracker process. Not started: settings are taken, or, of an untouched one, a snapshot. Running or
 * Paused: only changes of that. It never goes back.
 */
export class FakeMachine {
  readonly #id: string;
  readonly #jailUid: number | undefined;
  readonly #behaviourPath: string;
  readonly #say: (text: string) => void;
  readonly #onEnd: () => void;
  #state: State = "Not started";
  #touched = false;
  #machine: Body = { vcpu_count: 1, mem_size_mib: 128 };
  #boot: Body | undefined;
  #vsock: Body | undefined;
  #listener: Server | undefined;
  #guest: Guest | undefined;
  readonly #drives = new Map<string, Body>();
  readonly #interfaces = new Map<string, Body>();

  constructor(options: {
    id: string;
    /** Whose files it may use, none of them outside of its folder; undefined: any. */
    jailUid: number | undefined;
    behaviourPath: string;
    say: (text: string) => void;
    onEnd: () => void;
  }) {
    this.#id = options.id;
    this.#jailUid = options.jailUid;
    this.#behaviourPath = options.behaviourPath;
    this.#say = options.say;
    this.#onEnd = options.onEnd;
  }

  behaviour(): Behaviour {
    return readBehaviour(this.#behaviourPath);
  }

  async answer(method: string, path: string, text: string): Promise<Answer> {
    const known = operationOf(method, path);
    if (known === undefined) return refusal(`Invalid request method and/or path: ${method} ${path}.`);
    const { request, id } = known;
    let body: Body = {};
    if (request.body === undefined) {
      if (text !== "") return refusal(`${method} request cannot have a body.`);
    } else {
      if (text === "") return refusal(`Empty ${method} request.`);
      try {
        body = JSON.parse(text);
      } catch {
        return refusal("An error occurred when deserializing the json body of a request: it is no JSON.");
      }
      const why = unfitBody(request.body, body);
      if (why !== undefined)
        return refusal(`An error occurred when deserializing the json body of a request: ${why}.`);
    }
    const phase = this.#refusedNow(request.phase);
    if (phase !== undefined) return refusal(phase);
    if (method !== "GET" && request.phase === "before start" && request.harmless !== true)
      this.#touched = true;
    try {
      return await this.#do(known.key, id, body);
    } catch (error) {
      return refusal(error instanceof Error ? error.message : String(error));
    }
  }

  async end(): Promise<void> {
    this.#listener?.close();
    await this.#guest?.end();
  }

  #refusedNow(phase: Phase): string | undefined {
    const started = this.#state !== "Not started";
    if (phase === "any") return undefined;
    if (phase === "after start") return started ? undefined : beforeStart;
    if (started) return afterStart;
    return phase === "fresh" && this.#touched
      ? "Load snapshot error: Loading a microVM snapshot not allowed after configuring boot-specific resources."
      : undefined;
  }

  async #do(key: string, id: string | undefined, body: Body): Promise<Answer> {
    switch (key) {
      case "GET /":
        return {
          status: 200,
          json: { app_name: "Firecracker", id: this.#id, state: this.#state, vmm_version: "1.17.0-dev" },
        };
      case "GET /version":
        return { status: 200, json: { firecracker_version: "1.17.0-dev" } };
      case "GET /machine-config":
        return { status: 200, json: this.#machine };
      case "PUT /machine-config":
        if (Number(body.mem_size_mib) < 1) return refusal("The memory size (MiB) is invalid.");
        this.#machine = body;
        return done;
      case "PUT /boot-source":
        for (const name of ["kernel_image_path", "initrd_path"] as const)
          if (typeof body[name] === "string") this.#inJail(body[name], constants.R_OK);
        this.#boot = checkedBoot(body);
        return done;
      case "PUT /drives/{drive_id}":
        this.#setDrive(id, body);
        return done;
      case "PUT /vsock":
        await this.#listen(body);
        return done;
      case "PUT /network-interfaces/{iface_id}":
        if (id !== body.iface_id) return refusal("The id from the path does not match the id from the body!");
        this.#interfaces.set(String(id), body);
        return done;
      case "PUT /actions":
        return body.action_type === "InstanceStart" ? this.#start() : this.#refusedAction(body);
      case "PATCH /vm":
        this.#state = body.state === "Paused" ? "Paused" : "Running";
        this.#guest?.signal(body.state === "Paused" ? "SIGSTOP" : "SIGCONT");
        return done;
      case "PUT /snapshot/create":
        return this.#keep(body);
      case "PUT /snapshot/load":
        return this.#load(body);
      default:
        return done;
    }
  }

  #setDrive(id: string | undefined, body: Body): void {
    if (id !== body.drive_id) throw new Error("The id from the path does not match the id from the body!");
    if (typeof body.path_on_host !== "string" || typeof body.is_read_only !== "boolean")
      throw new Error("Invalid drive: path_on_host and is_read_only are required for virtio-block.");
    const rights = body.is_read_only ? constants.R_OK : constants.R_OK | constants.W_OK;
    this.#inJail(body.path_on_host, rights);
    try {
      accessSync(body.path_on_host, rights);
    } catch (error) {
      throw new Error(`Unable to create the virtio block device: ${String(error)} ${body.path_on_host}`);
    }
    if (statSync(body.path_on_host).size === 0) throw new Error("The drive is empty.");
    const other = [...this.#drives.values()].find((drive) => drive.is_root_device && drive.drive_id !== id);
    if (body.is_root_device && other !== undefined) throw new Error("A root block device already exists!");
    this.#drives.set(String(id), body);
  }

  /** As it would find the file: at the root of the jail, as its user. */
  #inJail(path: string, rights: number): void {
    if (this.#jailUid === undefined) return;
    if (path.includes("/")) throw new Error(`No such file or directory in the jail: ${path}`);
    const { uid, mode } = statSync(path);
    const allowed = uid === this.#jailUid ? (mode >> 6) & 7 : mode & 7;
    if ((allowed & rights) !== rights) throw new Error(`Permission denied: ${path}`);
  }

  async #listen(body: Body): Promise<void> {
    if (existsSync(String(body.uds_path)))
      throw new Error("Cannot create backend for vsock device: Error binding: Address in use (os error 98)");
    this.#listener = await listenVsock(String(body.uds_path), () =>
      this.#state === "Running" ? this.#guest : undefined,
    );
    this.#vsock = body;
  }

  #refusedAction(body: Body): Answer {
    if (this.#state === "Not started") return refusal(beforeStart);
    // What the agent as the first process does then.
    if (body.action_type === "SendCtrlAltDel") void this.#guest?.end();
    return done;
  }

  async #start(): Promise<Answer> {
    if (this.#state !== "Not started") return refusal(afterStart);
    if (this.#boot === undefined) return refusal("Cannot start microvm without kernel configuration.");
    // What it was given, for tests to read.
    const given = { ...this.#machine, ...this.#boot, drives: [...this.#drives.values()] };
    writeFileSync("given.json", JSON.stringify({ ...given, interfaces: [...this.#interfaces.values()] }));
    await this.#run(this.#boot, given.drives);
    return done;
  }

  async #run(boot: Body, drives: readonly Body[]): Promise<void> {
    const root = drives.find((drive) => drive.is_root_device);
    if (root === undefined) throw new Error("The guest's kernel finds no root: VFS: Cannot open root device");
    const layer = drives.find((drive) => drive !== root);
    const guest = await startGuest(
      {
        root: resolve(String(root.path_on_host)),
        layer: layer === undefined ? undefined : resolve(String(layer.path_on_host)),
        bootArguments: String(boot.boot_args ?? ""),
        memoryMb: Number(this.#machine.mem_size_mib),
        vcpus: Number(this.#machine.vcpu_count),
      },
      this.behaviour(),
      this.#say,
    );
    this.#guest = guest;
    this.#state = "Running";
    // A guest's reset ends the process.
    void guest.ended.then(() => this.#onEnd());
  }

  #keep(body: Body): Answer {
    if (this.#state !== "Paused")
      return refusal("Create snapshot error: the microVM must be paused before a snapshot is made of it.");
    if (this.#boot === undefined) return refusal("Create snapshot error: nothing was booted.");
    const kept: Kept = {
      fake: 1,
      machine: this.#machine,
      boot: this.#boot,
      drives: [...this.#drives.values()],
      vsock: this.#vsock,
      interfaces: [...this.#interfaces.values()],
      memoryPath: String(body.mem_file_path),
    };
    writeFileSync(String(body.snapshot_path), JSON.stringify(kept));
    writeFileSync(String(body.mem_file_path), Buffer.alloc(65_536));
    return done;
  }

  async #load(body: Body): Promise<Answer> {
    const backend = body.mem_backend as Body | undefined;
    if ((backend === undefined) === (body.mem_file_path === undefined))
      return refusal("either `mem_backend` or `mem_file_path` is required");
    const memory = String(backend?.backend_path ?? body.mem_file_path);
    if (!existsSync(memory)) return refusal(`Load snapshot error: no memory file ${memory}`);
    const kept: Kept = JSON.parse(readFileSync(String(body.snapshot_path), "utf8"));
    this.#machine = kept.machine;
    for (const drive of kept.drives) this.#setDrive(String(drive.drive_id), drive);
    if (kept.vsock !== undefined) await this.#listen(kept.vsock);
    this.#boot = kept.boot;
    await this.#run(kept.boot, kept.drives);
    this.#state = body.resume_vm === true ? "Running" : "Paused";
    return done;
  }
}

function checkedBoot(body: Body): Body {
  for (const name of ["kernel_image_path", "initrd_path"] as const) {
    const path = body[name];
    if (path === undefined) continue;
    try {
      accessSync(String(path), constants.R_OK);
    } catch (error) {
      throw new Error(`The kernel file cannot be opened: ${String(error)}`);
    }
  }
  if (String(body.boot_args ?? "").split(" -- ").length > 2 || / --\S/.test(String(body.boot_args ?? "")))
    throw new Error("The kernel command line is invalid: it has more than one separator.");
  return body;
}

function operationOf(method: string, path: string) {
  for (const [key, request] of Object.entries(apiTable)) {
    const [wanted, pattern = ""] = key.split(" ");
    if (wanted !== method) continue;
    const found = new RegExp(`^${pattern.replace(/\{\w+\}/, "([A-Za-z0-9_]+)")}$`).exec(path);
    if (found !== null) return { key, request, id: found[1] };
  }
  return undefined;
}
