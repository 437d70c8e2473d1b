import { expect, test } from "vitest";
import { BadRequest } from "../ports/errors.ts";
import { decodeContent } from "./parse.ts";

/** Base64 as RFC 4648 has it, its digits in lines or not, and the bytes it stands for; undefined: it is refused. */
test.each<[string, string | undefined]>([
  ["", ""],
  ["QQ==", "A"],
  ["QQ", "A"],
  ["QQ=", "A"],
  ["QUI=", "AB"],
  ["QUJD", "ABC"],
  ["QU\nJD", "ABC"],
  ["Q\r\nU\r\nJ\r\nD\r\n", "ABC"],
  ["\n\r\n", ""],
  ["Q\nQ=\n=\n", "A"],
  ["=", ""],
  ["Q", undefined],
  ["Q=", undefined],
  ["Q\n", undefined],
  ["QUJDQ", undefined],
  ["Q\nU\nJ\nD\nQ\n", undefined],
  ["QQ===", undefined],
  ["QQ==QQ", undefined],
  ["Q-_Q", undefined],
  ["QUJ D", undefined],
  ["QUJ\u0010", undefined],
  ["QUJDé", undefined],
])("base64 %j is %j", (text, bytes) => {
  if (bytes === undefined) expect(() => decodeContent("content", text, "base64")).toThrow(BadRequest);
  else expect(decodeContent("content", text, "base64").toString("latin1")).toBe(bytes);
});

test("base64 with a line break behind each digit is read in about the time that it takes without", () => {
  const costOf = (text: string) => {
    const before = process.threadCpuUsage();
    const decoded = decodeContent("content", text, "base64");
    const { user, system } = process.threadCpuUsage(before);
    expect(decoded.length).toBe(6_000_000);
    return (user + system) / 1_000;
  };
  // As texts are that were parsed, and not as the parts that they were put together from.
  const [plain, broken] = JSON.parse(JSON.stringify(["A".repeat(8_000_000), "A\n".repeat(8_000_000)]));
  costOf(plain);
  expect(costOf(broken)).toBeLessThan(10 * costOf(plain) + 20);
});
