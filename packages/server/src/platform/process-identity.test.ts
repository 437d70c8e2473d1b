import { beforeEach, expect, it, vi } from "vitest";

/** What a read of the boot's id fails with; undefined: it does not. */
let failure: Error | undefined;

vi.mock("node:fs/promises", async (original) => {
  const actual = await original<typeof import("node:fs/promises")>();
  const readFile = async (...[path, options]: Parameters<typeof actual.readFile>) => {
    if (String(path).endsWith("/boot_id") && failure !== undefined) throw failure;
    return actual.readFile(path, options);
  };
  return { ...actual, readFile };
});

const { bootId, identify, isAlive } = await import("./process-identity.ts");

beforeEach(() => {
  failure = undefined;
});

it("what could not be read once, for want of a descriptor, is read again", async () => {
  failure = Object.assign(new Error("too many open files"), { code: "EMFILE" });
  await expect(identify(process.pid)).rejects.toBe(failure);
  failure = undefined;
  const own = await identify(process.pid);
  expect(own?.bootId).toMatch(/^[0-9a-f-]{36}$/);
  expect(own && (await isAlive(own))).toBe(true);
  failure = new Error("read again");
  expect(await bootId()).toBe(own?.bootId);
});
