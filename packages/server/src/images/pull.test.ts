import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { describeWith } from "../../test/support/requirements.ts";
import { openImageStore } from "../images.ts";
import { silentLogger } from "../platform/logger.ts";
import { usualPulls } from "../pulls/pull-turns.ts";
import { runProgram } from "./programs.ts";
import { savedImageOf } from "./testing/saved-image.ts";
import { tarOf } from "./testing/tar.ts";

const options = {
  /** One for each call. */
  get signal() {
    return AbortSignal.timeout(120_000);
  },
};

await describeWith(["skopeo", "registry"], "pulling", () => {
  let folder: string;
  let registry: ChildProcess;
  let host: string;

  beforeAll(async () => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), "alcove-registry-"));
    const port = await freePort();
    host = `127.0.0.1:${port}`;
    const config = `version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: ${folder}/data}}\nhttp: {addr: "${host}"}\n`;
    fs.writeFileSync(`${folder}/config.yml`, config);
    registry = spawn("docker-registry", ["serve", `${folder}/config.yml`], { stdio: "ignore" });
    await listening(port);
    const layer = tarOf([
      { name: "bin/", type: "dir" },
      { name: "bin/hello", content: "hi", mode: 0o755 },
    ]);
    fs.writeFileSync(`${folder}/image.tar`, savedImageOf([layer]));
    const args = [
      "copy",
      "--insecure-policy",
      "--dest-tls-verify=false",
      `docker-archive:${folder}/image.tar`,
    ];
    const pushed = await runProgram("skopeo", [...args, `docker://${host}/team/app:1`], options);
    expect(pushed).toMatchObject({ exitCode: 0 });
  });
  afterAll(() => {
    registry.kill();
    fs.rmSync(folder, { recursive: true, force: true });
  });

  const open = (
    pullPolicy: "missing" | "never" = "missing",
    allowedRegistries = ["*", host],
    pulls = usualPulls,
  ) =>
    openImageStore({
      dataDir: fs.mkdtempSync(`${folder}/store-`),
      pulls,
      aliases: { app: `${host}/team/app:1` },
      pullPolicy,
      allowedRegistries,
      logger: silentLogger,
    });

  it("stores an image from a registry on loopback, with its configuration", async () => {
    const store = await open();
    const lines: string[] = [];
    const image = await store.pull(`${host}/team/app:1`, {
      ...options,
      onProgress: ({ message }) => lines.push(message),
    });
    expect(fs.readFileSync(`${image.rootfs}/bin/hello`, "utf8")).toBe("hi");
    expect(image).toMatchObject({ name: `${host}/team/app:1`, config: { user: "app", workdir: "/srv" } });
    expect(lines.length).toBeGreaterThan(2);
  });

  it("is done once for all who want a missing image at the same time, aliases included", async () => {
    const store = await open();
    const images = await Promise.all(Array.from({ length: 5 }, () => store.resolve("app", options)));
    expect(new Set(images)).toHaveProperty("size", 1);
  });

  it("of an image that is not there is NotFound, with the way to get it", async () => {
    const store = await open();
    await expect(store.pull(`${host}/team/none:1`, options)).rejects.toMatchObject({ code: "not_found" });
    await expect(store.resolve(`${host}/team/none:1`, options)).rejects.toThrow(/alcove image pull/);
  });

  it("from a registry that is down is Unavailable, and NotFound for a sandbox that wants it", async () => {
    const down = `127.0.0.1:${await freePort()}`;
    const store = await open("missing", [down]);
    const name = `${down}/a/b:1`;
    await expect(store.pull(name, options)).rejects.toMatchObject({ code: "unavailable" });
    await expect(store.resolve(name, options)).rejects.toMatchObject({ code: "not_found" });
  });

  it("for a client asks no registry inside this network that is not named, by whatever spelling; the operator may", async () => {
    const store = await open("missing", ["*"]);
    const port = host.split(":")[1];
    for (const name of [
      host,
      `localhost:${port}`,
      `LOCALHOST:${port}`,
      `2130706433:${port}`,
      "169.254.169.254",
    ])
      await expect(store.resolve(`${name}/team/app:1`, options)).rejects.toMatchObject({
        code: "forbidden",
        message: expect.stringContaining("images.allowed_registries must name it"),
      });
    await store.pull(`${host}/team/app:1`, options);
    expect((await store.resolve(`${host}/team/app:1`, options)).name).toBe(`${host}/team/app:1`);
    await expect(
      (await open("missing", ["docker.io"])).resolve("LOCALHOST/x", options),
    ).rejects.toMatchObject({
      code: "forbidden",
    });
  });

  it("asks only registries of images.allowed_registries, for the operator as for a client", async () => {
    const refused = {
      code: "forbidden",
      message: `image "${host}/team/app:1" would come from ${host}, which is none of images.allowed_registries (docker.io)`,
    };
    const store = await open("missing", ["docker.io"]);
    await expect(store.pull(`${host}/team/app:1`, options)).rejects.toMatchObject(refused);
    expect(await store.list(options)).toEqual([]);
    // No address of this network, so that nothing else refuses it; it is never looked up.
    await expect(store.resolve("192.0.2.1/team/app:1", options)).rejects.toMatchObject({
      code: "forbidden",
      message: expect.stringContaining("none of images.allowed_registries (docker.io)"),
    });
    const none = await open("missing", []);
    await expect(none.pull("debian", options)).rejects.toThrow(/images\.allowed_registries \(none\)/);
  });

  it("that fails tells a client the same, whether the registry is there or not", async () => {
    const down = `127.0.0.1:${await freePort()}`;
    const store = await open("missing", [host, down]);
    const said = async (name: string) =>
      String(await store.resolve(name, options).catch((error: unknown) => error)).replaceAll(name, "NAME");
    expect(await said(`${down}/a/b:1`)).toBe(await said(`${host}/a/b:1`));
  });

  it("has a deadline, which a client is told of: it is nothing that a registry said", async () => {
    const silent = net.createServer().listen(0, "127.0.0.1");
    await once(silent, "listening");
    const slow = `127.0.0.1:${(silent.address() as net.AddressInfo).port}`;
    const store = await open("missing", [slow], { most: 1, timeoutMs: 300 });
    await expect(store.resolve(`${slow}/a/b:1`, options)).rejects.toMatchObject({
      code: "unavailable",
      message: `image "${slow}/a/b:1" was not pulled within 0.3 s (images.pull_timeout)`,
    });
    silent.close();
  });

  it("is not tried when the policy says never", async () => {
    await expect((await open("never")).resolve("app", options)).rejects.toMatchObject({ code: "not_found" });
  });

  it("ends for the caller who leaves and goes on for the others", async () => {
    const store = await open();
    const leave = new AbortController();
    const gone = new Error("gone");
    const left = store.pull(`${host}/team/app:1`, { signal: leave.signal });
    const kept = store.pull(`${host}/team/app:1`, options);
    leave.abort(gone);
    await expect(left).rejects.toBe(gone);
    expect((await kept).name).toBe(`${host}/team/app:1`);
  });
});

async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  return typeof address === "object" && address !== null ? address.port : 0;
}

async function listening(port: number): Promise<void> {
  const until = Date.now() + 20_000;
  while (Date.now() < until) {
    const socket = net.connect(port, "127.0.0.1");
    const isUp = await new Promise<boolean>((resolve) => {
      socket.once("connect", () => resolve(true));
      socket.once("error", () => resolve(false));
    });
    socket.destroy();
    if (isUp) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error("docker-registry did not start within 20 s");
}
