import { execFile } from "node:child_process";
import { once } from "node:events";
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterEach, beforeEach, expect, test } from "vitest";
import { WebSocketServer } from "ws";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../../..", import.meta.url));

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "alcove-packed-"));
});
afterEach(() => rm(folder, { recursive: true }));

/** The Node of this machine beside the one that runs tests, when it is one the SDK is made for. */
async function otherNodes(): Promise<string[]> {
  const found: string[] = [];
  for (const place of (process.env.PATH ?? "").split(path.delimiter)) {
    const node = path.join(place, "node");
    const { stdout } = await run(node, ["-p", "process.versions.node"]).catch(() => ({ stdout: "0" }));
    const [major = 0, minor = 0] = stdout.split(".").map(Number);
    if (major > 20 || (major === 20 && minor >= 16)) found.push(node);
  }
  return found;
}

test("the compiler is brought, and the lock file stays as it is", async () => {
  const bare = path.join(folder, "clone");
  for (const part of ["scripts/setup", "scripts/pack-sdk.ts", "package.json"])
    await cp(path.join(root, part), path.join(bare, part), { recursive: true });
  await writeFile(path.join(folder, "npm"), "#!/bin/sh\necho $@\nexit 7\n", { mode: 0o755 });
  const packing = run(process.execPath, [path.join(bare, "scripts/pack-sdk.ts"), folder], {
    env: { PATH: `${folder}:${process.env.PATH}` },
  });
  const stderr = expect.stringMatching(/^install --no-save(?!.*--omit)/m);
  await expect(packing).rejects.toMatchObject({ code: 1, stderr });
});

test("the packed SDK runs where only Node is", { timeout: 120_000 }, async () => {
  const { stdout } = await run(
    process.execPath,
    [path.join(root, "scripts", "pack-sdk.ts"), path.join(folder, "new", "place")],
    {
      cwd: root,
    },
  );
  const archive = stdout.trim().split("\n").at(-1) ?? "";
  const installed = path.join(folder, "node_modules", "@alcove", "sdk");
  await mkdir(installed, { recursive: true });
  await run("tar", ["-xzf", archive, "-C", installed, "--strip-components", "1"]);
  for (const name of ["ws", "typebox"])
    await symlink(path.join(root, "node_modules", name), path.join(folder, "node_modules", name));

  const server = http.createServer((_request, response) => response.end('{"status":"ok"}'));
  const known = ({ req }: { req: http.IncomingMessage }) => req.url?.includes("/sandboxes/sb-a/") === true;
  const sockets = new WebSocketServer({ server, verifyClient: known });
  sockets.on("connection", (socket, { url }) => {
    socket.on("message", (data, binary) => {
      if (url?.includes("/tunnels/")) socket.send(data, { binary });
      else if (JSON.parse(String(data)).type === "stdin") socket.send('{"type":"exit","exit_code":7}');
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const program = `
      import { AlcoveClient } from "@alcove/sdk";
      const client = new AlcoveClient({ url: ${JSON.stringify(url)} });
      console.log((await client.health()).status);
      const command = await client.openExec("sb-a", { command: "cat" });
      await command.stdin(Buffer.from("typed"));
      for await (const message of command.messages()) console.log(message.type, message.exit_code);
      command[Symbol.dispose]();
      const tunnel = await client.openTunnel("sb-a", 3000);
      tunnel.end("echoed");
      console.log((await tunnel.toArray()).join(""));
      await client.openExec("sb-none", { command: "true" }).catch((error) => console.log(error.name));
      client[Symbol.dispose]();`;
    for (const node of [process.execPath, ...(await otherNodes())]) {
      const told = await run(node, ["--input-type=module", "-e", program], { cwd: folder });
      expect([node, told.stdout]).toEqual([node, "ok\nexit 7\nechoed\nAlcoveError\n"]);
    }
  } finally {
    server.close();
    server.closeAllConnections();
  }
  // What an editor sees: an id is a text, and no number.
  const tsc = path.join(root, "node_modules", ".bin", "tsc");
  const code = `import { AlcoveClient, type ExecResult, type ExecStreamChunk, type Sandbox, type SpawnRequest } from "@alcove/sdk";
    export const make = (client: AlcoveClient, request: SpawnRequest): Promise<Sandbox> => client.spawn(request);
    export const run = (client: AlcoveClient): Promise<ExecResult> => client.exec("sb-a", { command: "true" });
    export const textOf = (chunk: ExecStreamChunk): string => chunk.data;
    export const id = async (client: AlcoveClient): Promise<TYPE> => (await client.spawn({ ttl: "5m" })).id;`;
  const check = async (code: string) => {
    await writeFile(path.join(folder, "use.mts"), code);
    const flags = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--lib", "esnext"];
    const types = ["--types", "node", "--typeRoots", path.join(root, "node_modules", "@types")];
    return run(tsc, [...flags, ...types, "use.mts"], { cwd: folder }).then(
      () => "fits",
      ({ stdout }: { stdout: string }) => stdout,
    );
  };
  expect(await check(code.replace("TYPE", "string"))).toBe("fits");
  expect(await check(code.replace("TYPE", "number"))).toMatch(/use\.mts.*TS2322/);
  const [, example = "of no README"] =
    /```ts\n(.*?)```/s.exec(await readFile(path.join(installed, "README.md"), "utf8")) ?? [];
  expect(await check(example)).toBe("fits");
});
