import { describe, expect, test } from "vitest";
import { commandsOfTests } from "./testing/commands.ts";

const at = commandsOfTests();

describe("events", () => {
  test("comes back after a broken stream from the last event it saw", async () => {
    const event = (id: string) =>
      `id: ${id}\ndata: ${JSON.stringify({ id, type: "sandbox.created", sandbox_id: "sb-a", timestamp: "t" })}\n\n`;
    at.service.answer = ({ path: route, headers }) => {
      if (route === "/ready") return { json: { status: "ready" } };
      if (headers["last-event-id"] === "2")
        return { status: 400, json: { code: "bad_request", message: "stop" } };
      return {
        headers: { "content-type": "text/event-stream" },
        chunks: [": hello\n\n", event("1"), event("2"), null],
      };
    };
    const result = await at.run(
      "events",
      "--json",
      "--type",
      "sandbox.created,exec.started",
      "--sandbox",
      "sb-a",
    );
    expect(
      result.stdout
        .split("\n")
        .filter(Boolean)
        .map((line) => JSON.parse(line).id),
    ).toEqual(["1", "2"]);
    expect(result.stderr).toContain("coming back");
    const first = at.service.requests.find(({ path: route }) => route === "/events");
    expect(first?.query.has("owner_id")).toBe(false);
    expect(first?.query.getAll("type")).toEqual(["sandbox.created", "exec.started"]);
    expect(first?.query.get("sandbox_id")).toBe("sb-a");
  });

  test("--owner asks for that owner's alone, also when it comes back, and --user-id does not stand in for it", async () => {
    const event = { id: "1", type: "sandbox.created", sandbox_id: "sb-a", timestamp: "t" };
    let streams = 0;
    at.service.answer = ({ path: route }) => {
      if (route === "/ready") return { json: { status: "ready" } };
      if (++streams > 1) return { status: 403, json: { code: "forbidden", message: "not yours" } };
      const chunks = [`id: 1\ndata: ${JSON.stringify(event)}\n\n`, null];
      return { headers: { "content-type": "text/event-stream" }, chunks };
    };
    const result = await at.run("events", "--json", "--owner", "acme", "--user-id", "gateway");
    expect(JSON.parse(result.stdout)).toEqual(event);
    expect([result.code, result.stderr]).toEqual([4, expect.stringContaining("not yours")]);
    const asked = at.service.requests.filter(({ path: route }) => route === "/events");
    expect(asked.map(({ query }) => query.get("owner_id"))).toEqual(["acme", "acme"]);
  });
});
