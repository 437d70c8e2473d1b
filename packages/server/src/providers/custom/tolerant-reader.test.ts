import { expect, it } from "vitest";
import { ExecEvents, SandboxAnswer } from "./contract-schemas.ts";
import { readAnswer, Unreadable } from "./tolerant-reader.ts";

it.each([
  '{"type":"exit","exit_code":7,"signal":"SIGTERM"}',
  '{"type":"exit","exitCode":"7","signal":"SIGTERM","more":{"deep":[1]}}',
  '{"Type":"exit","ExitCode":7,"Signal":"SIGTERM","StartError":null}',
])("reads %s as it is meant", (text) => {
  expect(readAnswer(ExecEvents.exit, text)).toMatchObject({ exit_code: 7, signal: "SIGTERM" });
});

it("leaves the names of labels as they are", () => {
  const text = '{"Id":"rt-1","State":"running","Labels":{"alcove.note":"{}","camelCase":"x"}}';
  expect(readAnswer(SandboxAnswer, text).labels).toEqual({ "alcove.note": "{}", camelCase: "x" });
});

it.each(["<html>secret</html>", '{"id":"rt', "[]", "null", '{"id":{"secret":1},"state":"running"}'])(
  "refuses %s without repeating it",
  (text) => {
    const read = () => readAnswer(SandboxAnswer, text);
    expect(read).toThrow(Unreadable);
    expect(read).not.toThrow(/secret/);
  },
);
