import { randomBytes } from "node:crypto";
import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { OutputCollector } from "../core/exec/output-collector.ts";
import { jsonPieces } from "./send-json.ts";

function written(data: Buffer, encoding: "utf8" | "base64", maxBytes: number) {
  const collector = new OutputCollector({ maxBytes });
  for (let from = 0; from < data.length; from += 65_536) collector.add(data.subarray(from, from + 65_536));
  return collector.written(encoding);
}

test.each([
  ["zeros", Buffer.alloc(4_000_000), "utf8"],
  ["random bytes", randomBytes(4_000_000), "utf8"],
  ["characters of several bytes", Buffer.from("\u20ac\u{1f40e}\n".repeat(500_000)), "utf8"],
  ["random bytes in base64", randomBytes(4_000_000), "base64"],
] as const)(
  "output of %s is the same in small pieces, with a turn of the loop after each",
  async (_what, data, encoding) => {
    const kept = 3_999_998;
    const body = {
      code: "timeout",
      stdout: written(data, encoding, kept),
      stderr: written(data.subarray(0, 100_001), encoding, kept),
      lost_bytes: 3,
    };
    let turns = 0;
    let counting = true;
    const count = () => {
      turns += 1;
      if (counting) setImmediate(count);
    };
    setImmediate(count);
    const parts: Buffer[] = [];
    for await (const part of jsonPieces(body, nextTurn)) parts.push(part);
    counting = false;
    const told = JSON.parse(Buffer.concat(parts).toString());
    expect(told).toEqual(JSON.parse(JSON.stringify(body)));
    expect(told.lost_bytes).toBe(3);
    const limited = data.subarray(0, kept);
    // A character that is cut in two at the limit is left out.
    if (encoding === "base64") expect(told.stdout === limited.toString("base64")).toBe(true);
    else expect(limited.toString().startsWith(told.stdout)).toBe(true);
    expect(told.stderr === data.subarray(0, 100_001).toString(encoding)).toBe(true);
    // Zeros take six characters each.
    expect(Math.max(...parts.map((part) => part.length))).toBeLessThan(300_000);
    expect(turns).toBeGreaterThan(80);
  },
);

test.each([
  [{ stdout: written(Buffer.from('a"\n'), "utf8", 10) }],
  [
    {
      stdout: written(Buffer.alloc(0), "utf8", 10),
      stderr: written(Buffer.from("b"), "utf8", 10),
      exit_code: 0,
    },
  ],
  [{ code: "timeout" }],
  [{}],
])("a body in pieces is the JSON of it: %#", async (body) => {
  const parts: Buffer[] = [];
  for await (const part of jsonPieces(body, nextTurn)) parts.push(part);
  expect(JSON.parse(Buffer.concat(parts).toString())).toEqual(JSON.parse(JSON.stringify(body)));
});
