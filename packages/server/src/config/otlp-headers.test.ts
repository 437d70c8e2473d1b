import { expect, test } from "vitest";
import { loadConfig } from "./load.ts";
import { parseOtlpHeaders } from "./otlp-headers.ts";

test("headers are lines of a name and a value", () => {
  expect(parseOtlpHeaders("")).toEqual({});
  expect(parseOtlpHeaders("Authorization: Basic YTpi==\r\n\n x-scope :  a:b \n")).toEqual({
    authorization: "Basic YTpi==",
    "x-scope": "a:b",
  });
});

test.each(["no-colon-secret", "a b: secret", ": secret", "name:", "x: a\u0000secret", "é: secret"])(
  "%j is refused by its line, and not shown",
  (line) => {
    const load = () =>
      loadConfig({ env: { ALCOVE_TELEMETRY_OTLP_HEADERS: `good: 1\n${line}` }, cwd: "/nowhere" });
    expect(load).toThrow(/telemetry\.otlp_headers: line 2 is no header/);
    expect(load).not.toThrow(/secret/);
  },
);

test.each([
  [{ ALCOVE_TELEMETRY_OTLP_ENDPOINT: "collector:4318" }, /otlp_endpoint is "collector:4318": expected a URL/],
  [{ ALCOVE_TELEMETRY_OTLP_ENDPOINT: "grpc://a" }, /otlp_endpoint is "grpc:\/\/a": expected a URL/],
  [{ ALCOVE_TELEMETRY_OTLP_ENDPOINT: "http://me:pw@a" }, /otlp_endpoint holds a user or a password/],
  [{ ALCOVE_TELEMETRY_SAMPLE_RATIO: "1.5" }, /telemetry\.sample_ratio.* expected a number from 0 to 1/],
  [{ ALCOVE_TELEMETRY_SAMPLE_RATIO: "half" }, /telemetry\.sample_ratio.* expected a number from 0 to 1/],
])("%j stops the start", (env, message) => {
  expect(() => loadConfig({ env, cwd: "/nowhere" })).toThrow(message);
});

test("a ratio is a number, in the file and in the environment", () => {
  const ratio = (text: string) =>
    loadConfig({ env: { ALCOVE_TELEMETRY_SAMPLE_RATIO: text }, cwd: "/nowhere" }).telemetry.sampleRatio;
  expect([ratio("0.25"), ratio(".5"), ratio("1"), ratio("0")]).toEqual([0.25, 0.5, 1, 0]);
});
