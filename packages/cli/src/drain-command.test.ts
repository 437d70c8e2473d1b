import { expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const at = commandsOfTests();
const worker = { id: "local", status: "draining" };

test("drain tells what is left, --end takes new ones again", async () => {
  at.service.answer = ({ path }) =>
    path === "/metrics" ? { json: { sandboxes: { active_by_worker: { local: 3 } } } } : { json: worker };
  expect((await at.run("drain")).stdout).toBe("local takes no new sandboxes; 3 are left on it\n");
  expect(at.service.requests[0]).toMatchObject({ method: "POST", path: "/admin/workers/local/drain" });
  expect((await at.run("drain", "--end")).stdout).toBe("local takes new sandboxes\n");
  expect(at.service.requests.at(-1)).toMatchObject({ method: "DELETE", path: "/admin/workers/local/drain" });
  expect(JSON.parse((await at.run("drain", "--json")).stdout)).toEqual(worker);
  expect(await at.run("drain", "--end", "--wait")).toMatchObject({ code: 2 });
});

test("drain --wait waits until none is left", async () => {
  let left = 2;
  at.service.answer = ({ path }) =>
    path === "/metrics" ? { json: { sandboxes: { active_by_worker: { local: left-- } } } } : { json: worker };
  const { stdout, code } = await at.run("drain", "w1", "--wait");
  expect([code, stdout]).toEqual([0, "w1 takes no new sandboxes; none is left on it\n"]);
});

test("drain --wait goes on when the service does not answer for a while, and ends when it refuses", async () => {
  let looks = 0;
  let refusal = { status: 503, json: { code: "unavailable", message: "starting" } };
  at.service.answer = ({ path }) => {
    if (path !== "/metrics") return { json: worker };
    looks += 1;
    return looks === 1
      ? refusal
      : { json: { sandboxes: { active_by_worker: { local: looks < 3 ? 1 : 0 } } } };
  };
  expect(await at.run("drain", "--wait")).toMatchObject({ code: 0 });
  expect(looks).toBeGreaterThan(2);
  looks = 0;
  refusal = { status: 403, json: { code: "forbidden", message: "not with this key" } };
  expect((await at.run("drain", "--wait")).code).not.toBe(0);
  expect(looks).toBe(1);
});

test("drain --wait waits for no sandbox in state error, and drain says that one is left", async () => {
  const sandboxes: Record<string, unknown> = { by_worker: { local: 2 }, active_by_worker: { local: 0 } };
  at.service.answer = ({ path }) => (path === "/metrics" ? { json: { sandboxes } } : { json: worker });
  expect((await at.run("drain", "--wait")).stdout).toBe("local takes no new sandboxes; none is left on it\n");
  sandboxes.active_by_worker = { local: 1 };
  expect((await at.run("drain")).stdout).toBe("local takes no new sandboxes; 1 is left on it\n");
  // An older service.
  delete sandboxes.active_by_worker;
  expect((await at.run("drain")).stdout).toBe("local takes no new sandboxes; 2 are left on it\n");
});
