import { expect, it } from "vitest";
import { ExecEvents, FileAnswer, SandboxAnswer } from "./contract-schemas.ts";
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

it("brings halves of surrogate pairs back to what every reader of ours takes", () => {
  const text = String.raw`{"path":"/d/a\udcffb","type":"file","size":1,"mode":420,"uid":0,"gid":0,"modified_ms":0}`;
  expect(readAnswer(FileAnswer, text).path).toBe("/d/a\ufffdb");
});

it.each([
  "<html>secret</html>",
  '{"id":"rt',
  "[]",
  "null",
  '{"id":{"secret":1},"state":"running"}',
  '{"id":"rt","state":"running","labels":{"secret":{}}}',
])("refuses %s without repeating it", (text) => {
  const read = () => readAnswer(SandboxAnswer, text);
  expect(read).toThrow(Unreadable);
  expect(read).not.toThrow(/secret/);
});
