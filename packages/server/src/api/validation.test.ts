import { ExecRequest, WsClientMessage } from "@alcove/wire";
import { expect, test } from "vitest";
import { compileCheck } from "./validation.ts";

test.each([
  ["cwd", "; did you mean workdir?"],
  ["timeout_ms", "; did you mean timeout?"],
  ["envs", "; did you mean env?"],
  ["cmd", "; did you mean command?"],
  ["comand", "; did you mean command?"],
  ["stdinn", "; did you mean stdin?"],
  ["foo", ""],
  ["constructor", ""],
  ["x", ""],
])("an unknown field %s is refused with a hint where one is likely", (name, hint) => {
  const check = compileCheck(ExecRequest);
  const message = `${name} is not a field of the message${hint}`;
  expect(() => check({ command: "true", [name]: "1" })).toThrow(message);
  if (hint === "") expect(() => check({ command: "true", [name]: "1" })).not.toThrow("did you mean");
});

test("a hint names only what the object itself knows", () => {
  const stdin = WsClientMessage.anyOf.find((schema) => schema.properties.type.const === "stdin");
  const check = compileCheck(stdin ?? {});
  expect(() => check({ type: "stdin", data: "", cwd: "/" })).not.toThrow("did you mean");
  expect(() => check({ type: "stdin", data: "", clos: true })).toThrow("did you mean close?");
});
