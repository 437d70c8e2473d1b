import { expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const at = commandsOfTests();
const worker = { id: "local", status: "draining" };

test("drain tells what is left, --end takes new ones again", async () => {
  at.service.answer = ({ path }) =>
    path === "/metrics" ? { json: { sandboxes: { by_worker: { local: 3 } } } } : { json: worker };
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
    path === "/metrics" ? { json: { sandboxes: { by_worker: { local: left-- } } } } : { json: worker };
  const { stdout, code } = await at.run("drain", "w1", "--wait");
  expect([code, stdout]).toEqual([0, "w1 takes no new sandboxes; none is left on it\n"]);
});
