import { expect, test } from "vitest";
import { BadRequest } from "../../ports/index.ts";
import { ScriptedProvider } from "../testing/scripted-provider.ts";
import { Pool, type PoolSettings } from "./pool.ts";

const settings: PoolSettings = {
  enabled: true,
  maxVms: 2,
  maxUsersPerVm: 4,
  image: "",
  memoryMb: 1_000,
  vcpus: 4,
  overflow: "reject",
};
const unknown = { memoryMb: 0, vcpus: 0 };
const of = (change: Partial<Parameters<Pool["part"]>[1]> = {}) => ({
  ownerId: "ann",
  provider: new ScriptedProvider(),
  largest: unknown,
  ...change,
});

test("what a spawn leaves out is the user's part, and no more than the machine has", () => {
  const pool = new Pool(settings);
  expect(pool.part({}, of())).toEqual({ memoryMb: 250, vcpus: 4, workdir: "/workspace" });
  const small = of({ largest: { memoryMb: 200, vcpus: 2 } });
  expect(pool.part({}, small)).toEqual({ memoryMb: 200, vcpus: 2, workdir: "/workspace" });
  const asked = { memoryMb: 100, vcpus: 1, workdir: "/src", image: "debian:12" };
  expect(pool.part(asked, of())).toEqual({ ...asked, workdir: "/workspace/src" });
  expect(new Pool({ ...settings, image: "alpine" }).part({}, of())).toMatchObject({ image: "alpine" });
});

test("what no part can be is refused", () => {
  const pool = new Pool(settings);
  for (const wanted of [{ memoryMb: 251 }, { vcpus: 5 }, { user: "root" }])
    expect(() => pool.part(wanted, of()), JSON.stringify(wanted)).toThrow(BadRequest);
  expect(() => pool.part({}, of({ ownerId: "" }))).toThrow(/X-User-ID/);
  const apart = new ScriptedProvider({ capabilities: ["spawn", "userspace_isolation"] });
  expect(() => pool.part({}, of({ provider: apart }))).toThrow(/cannot keep users apart/);
});

test("commands run as the slot's id where the provider has users", () => {
  const pool = new Pool(settings);
  const slot = { vmId: "vm-1", uid: 10_001 };
  const share = { slot: { ...slot, vm: { memoryMb: 1_000, vcpus: 4, users: 4 }, shareMb: 250 } };
  const withUsers = new ScriptedProvider({ capabilities: ["spawn", "users"] });
  expect(pool.runtime(slot, withUsers)).toEqual({ ...share, user: "10001" });
  expect(pool.runtime(slot, new ScriptedProvider({ capabilities: ["spawn"] }))).toEqual(share);
});
