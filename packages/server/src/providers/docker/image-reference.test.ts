import { describe, expect, it } from "vitest";
import { BadRequest, NotFound } from "../../ports/index.ts";
import { resolveImageName } from "./image-reference.ts";

describe("resolveImageName()", () => {
  it.each([
    ["alpine", "alpine:latest"],
    ["alpine:3.20", "alpine:3.20"],
    ["docker.io/library/alpine:3.20", "alpine:3.20"],
    ["localhost:5000/team/app", "localhost:5000/team/app:latest"],
    ["localhost:5000/team/app:2", "localhost:5000/team/app:2"],
    [`alpine@sha256:${"a".repeat(64)}`, `alpine@sha256:${"a".repeat(64)}`],
    [`sha256:${"a".repeat(64)}`, `sha256:${"a".repeat(64)}`],
  ])("%s is %s", (requested, resolved) => {
    expect(resolveImageName(requested, {})).toBe(resolved);
  });

  it("applies aliases, but not those to the machine's own root", () => {
    expect(resolveImageName("python", { python: "team/python:3" })).toBe("team/python:3");
    expect(resolveImageName("alpine", { alpine: "host", "*": "host" })).toBe("alpine:latest");
    expect(resolveImageName("alpine", { "alpine:latest": "team/alpine" })).toBe("team/alpine:latest");
    expect(resolveImageName("docker.io/library/alpine", { "alpine:latest": "team/alpine:1" })).toBe(
      "team/alpine:1",
    );
    expect(resolveImageName("anything:2", { "*": "team/base:1" })).toBe("team/base:1");
    expect(resolveImageName("anything:2", { "anything:2": "exact:1", "*": "team/base:1" })).toBe("exact:1");
    expect(resolveImageName("constructor", {})).toBe("constructor:latest");
  });

  it("refuses what would leave the path of the engine's API", () => {
    for (const bad of [
      "",
      "../info",
      "a/../../info",
      "a//b",
      "a/./b",
      "a b",
      "a?x=1",
      "a#b",
      "a%2e",
      "-x",
      "x".repeat(400),
    ]) {
      expect(() => resolveImageName(bad, {}), bad).toThrow(BadRequest);
    }
  });

  it("says that host is no image of an engine", () => {
    expect(() => resolveImageName("host", {})).toThrow(NotFound);
  });
});
