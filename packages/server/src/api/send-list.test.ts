import { fastify } from "fastify";
import { expect, test } from "vitest";
import { localUser } from "../core/keys/principal.ts";
import { FairTurns } from "../platform/fair-turns.ts";
import { sendList } from "./send-list.ts";

/** Counts the turns that answers wait for. */
class CountedTurns extends FairTurns {
  count = 0;

  override next(...args: Parameters<FairTurns["next"]>): Promise<void> {
    this.count += 1;
    return super.next(...args);
  }
}

async function answerOf(items: readonly string[]) {
  const turns = new CountedTurns();
  await using app = fastify();
  app.decorate("turns", turns);
  app.decorateRequest("principal", { getter: () => localUser });
  const response = { 200: { type: "array", items: { type: "object", properties: { args: {} } } } };
  app.get("/", { schema: { response } }, (_request, reply) => {
    sendList(reply, items, (item) => ({ args: ["a", item] }));
    return reply;
  });
  const answer = await app.inject({ url: "/" });
  expect(answer.headers["content-type"]).toBe("application/json; charset=utf-8");
  expect(answer.json()).toEqual(items.map((item) => ({ args: ["a", item] })));
  return { pieces: turns.count, length: answer.headers["content-length"] };
}

const some = (count: number, text: string) => Array.from({ length: count }, () => text);

test.each([
  ["none", [], 0],
  ["few", some(500, "x"), 0],
  ["many", some(1_001, "x"), 3],
  ["a few long ones", some(20, "\u0001".repeat(30_000)), 7],
  ["one long one", some(1, "x".repeat(1_000_000)), 0],
])("a list of %s is sent whole, or in pieces that wait for a turn each", async (_what, items, pieces) => {
  const answer = await answerOf(items);
  expect([answer.pieces, answer.length === undefined]).toEqual([pieces, pieces > 0]);
});
