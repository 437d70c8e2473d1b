import fc from "fast-check";
import { expect, test } from "vitest";
import { decodeJson, parseBody, parseJson } from "./json-body.ts";

const refusal = (bytes: Buffer) => {
  try {
    return parseBody(decodeJson(bytes));
  } catch (error) {
    return (error as Error).message;
  }
};

test.each([
  ['{"env":{"A":"\\ud800"}}', "env.A in the body holds half of a surrogate pair, which is no character"],
  [
    '{"env":{"A\\uDFFF":""}}',
    "env.A\ufffd in the body holds half of a surrogate pair, which is no character",
  ],
  [
    '{"args":["\\ud83d\\ude00",["\\ude00\\ud83d"]]}',
    /^args\.1\.0 in the body holds half of a surrogate pair/,
  ],
  ['{"constructor":"\\ud800"}', /^constructor in the body holds half .* no character$/],
  ['"\\ud800"', /^the body holds half of a surrogate pair/],
  ['{"content":"\\ud800"}', /; bytes are sent as base64, with encoding: "base64"$/],
  ['{"stdin":"\\ud800"}', /; bytes are sent as base64, with stdin_encoding: "base64"$/],
])("%s is refused, and the field named", (text, message) => {
  expect(refusal(Buffer.from(text))).toEqual(
    typeof message === "string" ? message : expect.stringMatching(message),
  );
});

test.each([
  [
    '{"data":"a\xff"}',
    'data in the body holds bytes that are no UTF-8; bytes are sent as base64, with encoding: "base64"',
  ],
  ['{"env":{"A\xe9":""}}', "env.A\ufffd in the body holds bytes that are no UTF-8"],
  ['{"env":{"A":"\xed\xa0\x80"}}', "env.A in the body holds bytes that are no UTF-8"],
  ['{"a":1}\xff', "the body is not UTF-8"],
  ["\xff\xfe{\0}\0", "the body is not UTF-8"],
])("bytes that are no UTF-8 are refused: %j", (bytes, message) => {
  expect(refusal(Buffer.from(bytes, "latin1"))).toBe(message);
});

test("every other text is taken as it is, however it is written", () => {
  const text = fc.string({ unit: "binary" }).filter((one) => one.isWellFormed());
  // Refused by itself, whatever it holds.
  const name = text.filter((one) => one !== "__proto__");
  const escaped = (json: string) =>
    json.replaceAll(/[\x80-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
  fc.assert(
    fc.property(fc.dictionary(name, fc.array(text)), fc.boolean(), (made, escapes) => {
      const json = JSON.stringify(made);
      expect(refusal(Buffer.from(escapes ? escaped(json) : json))).toEqual(JSON.parse(json));
    }),
  );
  expect(refusal(Buffer.from('["\ufffd","\\\\ud800"]'))).toEqual(["\ufffd", "\\ud800"]);
});

test("what came otherwise is named as what it is", () => {
  expect(() => parseJson("the message", Buffer.from('{"data":"\\ud800"}'))).toThrow(
    "data in the message holds half",
  );
});
