import type { IncomingMessage, ServerResponse } from "node:http";
import { posix } from "node:path";
import { randomIds } from "../../../src/platform/random-ids.ts";
import {
  BadRequest,
  Conflict,
  DomainError,
  type FileEntry,
  NotFound,
  type SandboxOperations,
} from "../../../src/ports/index.ts";
import { type ConnectCall, ConnectFailure } from "./connect-wire.ts";
import { writeOut } from "./write-out.ts";

interface FileMessage {
  path?: string;
  source?: string;
  destination?: string;
  depth?: number;
  recursive?: boolean;
}

const types: Readonly<Record<string, string>> = { file: "FILE_TYPE_FILE", dir: "FILE_TYPE_DIRECTORY" };
const events: Readonly<Record<string, string>> = {
  create: "EVENT_TYPE_CREATE",
  write: "EVENT_TYPE_WRITE",
  remove: "EVENT_TYPE_REMOVE",
  rename: "EVENT_TYPE_RENAME",
  chmod: "EVENT_TYPE_CHMOD",
};
const soon = () => ({ signal: AbortSignal.timeout(10_000) });

/** filesystem.Filesystem and /files of envd over a real sandbox: it works as root and gives what it makes to the user. */
export class EnvdFiles {
  readonly #operations: SandboxOperations;
  readonly #names: { users: Map<number, string>; groups: Map<number, string> };

  constructor(
    operations: SandboxOperations,
    names: { users: Map<number, string>; groups: Map<number, string> },
  ) {
    this.#operations = operations;
    this.#names = names;
  }

  async handle(
    method: string,
    call: ConnectCall,
    context: { user: string; closed: AbortSignal },
  ): Promise<void> {
    const {
      path = "",
      source = "",
      destination = "",
      depth = 0,
      recursive = false,
    } = call.message as FileMessage;
    const { files } = this.#operations;
    try {
      switch (method) {
        case "Stat":
          call.answer({ entry: await this.#describe(await files.stat(path, soon())) });
          return;
        case "ListDir": {
          // A symlink that is listed itself is followed.
          const target = await files.stat(path, { ...soon(), follow: true });
          if (target.type !== "dir")
            throw new ConnectFailure("invalid_argument", `path is not a directory: ${path}`);
          const found = await files.list(path, { ...soon(), depth: Math.max(1, depth) });
          call.answer({ entries: await Promise.all(found.map((entry) => this.#describe(entry))) });
          return;
        }
        case "MakeDir": {
          const there = await files.stat(path, { ...soon(), follow: true }).catch(() => undefined);
          if (there?.type === "dir")
            throw new ConnectFailure("already_exists", `directory already exists: ${path}`);
          if (there !== undefined)
            throw new ConnectFailure(
              "invalid_argument",
              `path already exists but it is not a directory: ${path}`,
            );
          const made = await files.mkdir(path, { ...soon(), parents: true, user: context.user });
          call.answer({ entry: await this.#describe(made) });
          return;
        }
        case "Move":
          await files.stat(source, soon());
          try {
            await files.move(source, destination, soon());
          } catch (error) {
            throw new ConnectFailure("internal", `error renaming: rename ${source} ${destination}: ${error}`);
          }
          call.answer({ entry: await this.#describe(await files.stat(destination, soon())) });
          return;
        case "Remove":
          // As os.RemoveAll: whatever is there, and nothing is fine too.
          await files.remove(path, { ...soon(), recursive: true }).catch((error: unknown) => {
            if (!(error instanceof NotFound)) throw error;
          });
          call.answer({});
          return;
        case "WatchDir": {
          const stop = AbortSignal.any([context.closed]);
          const changes = await files.watch(path, { signal: stop, recursive });
          await call.send({ start: {} });
          for await (const change of changes) {
            const type = events[change.type];
            const name = change.path.slice(path.replace(/\/$/, "").length + 1);
            if (type !== undefined) await call.send({ filesystem: { name, type } });
          }
          call.end();
          return;
        }
        default:
          throw new ConnectFailure("unimplemented", `filesystem.Filesystem has no ${method}`);
      }
    } catch (error) {
      throw asFailure(error);
    }
  }

  async download(path: string, response: ServerResponse): Promise<void> {
    const info = await this.#operations.files
      .stat(path, { ...soon(), follow: true })
      .catch((error: unknown) => error);
    if (info instanceof Error) {
      refuse(response, info instanceof NotFound ? 404 : 400, `path '${path}' does not exist`);
      return;
    }
    if ((info as FileEntry).type !== "file") {
      refuse(response, 400, `path '${path}' is not a regular file`);
      return;
    }
    const { body, length } = await this.#operations.files.read(path, { signal: AbortSignal.timeout(60_000) });
    response.writeHead(200, { "content-type": "application/octet-stream", "content-length": String(length) });
    try {
      for await (const part of body) await writeOut(response, part as Buffer);
      response.end();
    } finally {
      body.destroy();
    }
  }

  /** Into the file itself: who looks sees it grow, and what breaks off stays half written. */
  async upload(
    path: string,
    user: string,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const there = await this.#operations.files.stat(path, { ...soon(), follow: true }).catch(() => undefined);
    if (there?.type === "dir") {
      refuse(response, 400, `path is a directory: ${path}`);
      return;
    }
    const parent = path.slice(0, path.lastIndexOf("/")) || "/";
    await this.#operations.files.mkdir(parent, { ...soon(), parents: true, user });
    const script = 'cat > "$0" && chown "$1:" "$0"';
    const spec = {
      execId: randomIds.execId(),
      command: script,
      args: [],
      argv: ["/bin/sh", "-c", script, path, user],
      env: {},
      user: "root",
      stdin: true,
      timeoutMs: 60_000,
      detached: true,
    };
    await using view = await this.#operations.execs.start(spec, soon());
    try {
      for await (const part of request) await view.writeStdin(part as Buffer);
    } finally {
      await view.closeStdin();
    }
    for await (const event of view.events)
      if (event.type === "exit" && event.exit.exitCode !== 0)
        return refuse(response, 500, "error writing file");
    const name = path.slice(path.lastIndexOf("/") + 1);
    response
      .writeHead(200, { "content-type": "application/json" })
      .end(JSON.stringify([{ name, path, type: "file" }]));
  }

  /** A symlink has its target's type, and the place it leads to beside it. */
  async #describe(entry: FileEntry): Promise<object> {
    const target =
      entry.type === "symlink"
        ? await this.#operations.files.stat(entry.path, { ...soon(), follow: true }).catch(() => undefined)
        : undefined;
    return {
      name: entry.name,
      type: types[(target ?? entry).type] ?? "FILE_TYPE_UNSPECIFIED",
      path: entry.path,
      size: String(entry.size),
      mode: (target ?? entry).mode,
      permissions: entry.mode.toString(8),
      owner: this.#names.users.get(entry.uid) ?? String(entry.uid),
      group: this.#names.groups.get(entry.gid) ?? String(entry.gid),
      modifiedTime: entry.modifiedAt.toISOString(),
      ...(entry.type === "symlink" && {
        symlinkTarget:
          target === undefined
            ? entry.path
            : posix.resolve(posix.dirname(entry.path), entry.symlinkTarget ?? ""),
      }),
    };
  }
}

export function refuse(response: ServerResponse, code: number, message: string): void {
  response.writeHead(code, { "content-type": "application/json" }).end(JSON.stringify({ code, message }));
}

function asFailure(error: unknown): ConnectFailure {
  if (error instanceof ConnectFailure) return error;
  if (error instanceof NotFound) return new ConnectFailure("not_found", `file not found: ${error.message}`);
  if (error instanceof BadRequest || error instanceof Conflict)
    return new ConnectFailure("invalid_argument", error.message);
  return new ConnectFailure("internal", error instanceof DomainError ? error.message : String(error));
}
