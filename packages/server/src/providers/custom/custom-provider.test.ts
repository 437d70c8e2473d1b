import { once } from "node:events";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { ExampleBackend } from "../../../test/support/custom-backend.ts";
import { firstMissing } from "../../../test/support/requirements.ts";
import { randomIds } from "../../platform/random-ids.ts";
import { chunks, finish, run, shell, soon } from "../../ports/contract/provider/harness.ts";
import type { RuntimeSpec } from "../../ports/index.ts";

const { skip } = await firstMissing(["linux", "bubblewrap"]);

const spec = (change: Partial<RuntimeSpec> = {}): RuntimeSpec => ({
  runtimeId: randomIds.runtimeId(),
  sandboxId: randomIds.sandboxId(),
  image: "host",
  memoryMb: 256,
  vcpus: 1,
  env: {},
  expiresInMs: null,
  metadata: {},
  ...change,
});

describe.skipIf(skip !== undefined)(
  `with the reference backend${skip === undefined ? "" : ` (${skip})`}`,
  () => {
    let backend: ExampleBackend;
    beforeAll(async () => {
      backend = await ExampleBackend.start("backend.mjs");
    });
    afterAll(() => backend[Symbol.asyncDispose]());

    it("what is announced is what the backend announces, as far as it is done here", async () => {
      await using provider = await backend.open();
      expect(provider.capabilities).toContain("files");
      expect(provider.capabilities).toContain("process_tree");
      expect(provider.capabilities).not.toContain("expiry");
      expect(provider.capabilities).not.toContain("pty");
    });

    it("a second installation at the backend neither sees nor adopts the first one's sandboxes", async () => {
      await using first = await backend.open("one");
      await using second = await backend.open("two");
      const made = spec();
      await first.spawn(made, soon());
      expect(await second.inventory(soon())).toEqual([]);
      await expect(second.adopt(made.runtimeId, soon())).rejects.toThrow("has ended, or is not connected");
      await first.destroy(made.runtimeId, soon());
    });

    it("after a restart a sandbox is adopted with its record, and with where its commands start", async () => {
      const made = spec({ workdir: "/workspace/app", ownerId: "ada", name: "seven", env: { SECRET: "s" } });
      {
        await using before = await backend.open();
        await before.spawn(made, soon());
      }
      await using after = await backend.open();
      const [entry] = await after.inventory(soon());
      expect(entry).toMatchObject({
        runtimeId: made.runtimeId,
        sandboxId: made.sandboxId,
        state: "running",
        note: { ownerId: "ada", name: "seven", image: "host", env: {} },
      });
      await after.adopt(made.runtimeId, soon());
      const { stdout } = await run(after.sandbox(made.runtimeId), "echo $SECRET $PWD");
      expect(stdout).toBe("s /workspace/app\n");
      await after.destroy(made.runtimeId, soon());
    });

    it("a sandbox is listed with as much metadata as it may have, however it is spelled", async () => {
      await using provider = await backend.open();
      const metadata = Object.fromEntries(
        Array.from({ length: 4 }, (_, n) => [`k${n}`, '\\"'.repeat(4_000)]),
      );
      const made = spec({ metadata });
      await provider.spawn(made, soon());
      const listed = await provider.inventory(soon());
      expect(listed.find(({ runtimeId }) => runtimeId === made.runtimeId)?.note?.metadata).toEqual(metadata);
      await provider.destroy(made.runtimeId, soon());
    });

    it("a terminal, a port, a network and limits that are not to be had are refused by name", async () => {
      await using provider = await backend.open();
      await expect(provider.spawn(spec({ network: "outbound" }), soon())).rejects.toThrow("network_mode");
      const made = spec();
      await provider.spawn(made, soon());
      const { execs, dialPort } = provider.sandbox(made.runtimeId);
      const terminal = execs.start(shell("true", { tty: { cols: 80, rows: 24 } }), soon());
      await expect(terminal).rejects.toThrow('capability "pty"');
      await expect(dialPort(80, soon())).rejects.toThrow('capability "ports"');
      await provider.destroy(made.runtimeId, soon());
    });

    it("a working directory that the backend does not have is a BadRequest of the spawn", async () => {
      await using minimal = await ExampleBackend.start("minimal.mjs");
      await using provider = await minimal.open();
      await expect(provider.spawn(spec({ workdir: "/elsewhere" }), soon())).rejects.toMatchObject({
        code: "bad_request",
        message: expect.stringContaining('working directory "/elsewhere"'),
      });
    });

    it("a user that the backend does not have is a BadRequest, of a sandbox, a command and a file", async () => {
      await using provider = await backend.open();
      await expect(provider.spawn(spec({ user: "nobody" }), soon())).rejects.toMatchObject({
        code: "bad_request",
        message: expect.stringContaining('user "nobody"'),
      });
      const made = spec();
      await provider.spawn(made, soon());
      const { execs, files } = provider.sandbox(made.runtimeId);
      const options = { ...soon(), user: "nobody" };
      for (const asked of [
        () => execs.start(shell("true", { user: "nobody" }), soon()),
        () => files.write("/workspace/file", chunks("text"), options),
        () => files.mkdir("/workspace/folder", { ...options, parents: true }),
      ])
        await expect(asked()).rejects.toMatchObject({
          code: "bad_request",
          message: expect.stringContaining('user "nobody"'),
        });
      expect(await files.list("/workspace", { ...soon(), depth: 1 })).toEqual([]);
      await provider.destroy(made.runtimeId, soon());
    });

    it("who leaves in the middle of a file keeps no sandbox from its end", { timeout: 60_000 }, async () => {
      await using provider = await backend.open();
      for (let round = 0; round < 12; round++) {
        const made = spec();
        await provider.spawn(made, soon());
        const { files } = provider.sandbox(made.runtimeId);
        await files.write("/workspace/large", chunks(Buffer.alloc(4_000_000)), soon());
        const { body } = await files.read("/workspace/large", soon());
        await once(body, "readable");
        body.destroy();
        await provider.destroy(made.runtimeId, soon());
      }
    });

    it("two megabytes of output arrive whole", async () => {
      await using provider = await backend.open();
      const made = spec();
      await provider.spawn(made, soon());
      const view = await provider.sandbox(made.runtimeId).execs.start(shell("seq 1 300000"), soon());
      const { stdout } = await finish(view);
      expect(stdout.length).toBe(Array.from({ length: 300_000 }, (_, at) => `${at + 1}\n`).join("").length);
      await provider.destroy(made.runtimeId, soon());
    });
  },
);
