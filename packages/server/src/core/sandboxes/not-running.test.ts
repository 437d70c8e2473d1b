import { expect, test } from "vitest";
import type { SandboxRow } from "../../ports/index.ts";
import { notRunning, sandboxGone, sandboxNotFound } from "./live-sandboxes.ts";

test("a sandbox that has expired says so, also while it is being destroyed", () => {
  const expiresAt = new Date("2026-01-01T00:00:00Z");
  const row = { id: "sb-1", expiresAt, destroyRequested: true } as SandboxRow;
  expect(notRunning({ ...row, state: "expired" }).message).toContain("expired at 2026-01-01T00:00:00.000Z");
  expect(notRunning({ ...row, state: "running" }).message).toContain("is being destroyed");
});

test("a program can tell a sandbox that is ending, and one that ended by itself, from one that is not there yet", () => {
  const expiresAt = new Date("2026-01-01T00:00:00Z");
  const row = { id: "sb-1", expiresAt, destroyRequested: false } as SandboxRow;
  expect(notRunning({ ...row, state: "expired" }).details).toEqual({
    sandbox_ended: "expired",
    sandbox_ended_at: "2026-01-01T00:00:00.000Z",
  });
  expect(notRunning({ ...row, state: "running", destroyRequested: true }).details).toEqual({
    sandbox_ended: "destroyed",
  });
  expect(notRunning({ ...row, state: "error" }).details).toEqual({ sandbox_ended: "error" });
  expect(notRunning({ ...row, state: "creating" }).details).toEqual({});
});

test("who asks with a name is told what ids are, whether there is a sandbox or not", () => {
  expect(sandboxNotFound("web").message).toMatch(
    /^sandbox "web" does not exist or was destroyed; ids begin with sb-/,
  );
  expect(sandboxNotFound("sb-1").message).toBe('sandbox "sb-1" does not exist or was destroyed');
});

test("a program can tell that the sandbox is missing", () => {
  expect(sandboxNotFound("sb-1").details).toEqual({ what: "sandbox" });
});

test("a program can tell a sandbox whose time was over from one that was destroyed, and both from one that never was", () => {
  const expiresAt = new Date("2026-01-01T00:00:00Z");
  const row = { id: "sb-1", state: "destroyed", expiresAt } as SandboxRow;
  const told = (destroyedAt: string) => sandboxGone({ ...row, destroyedAt: new Date(destroyedAt) }).details;
  expect(told("2026-01-01T00:00:01Z")).toEqual({
    what: "sandbox",
    sandbox_ended: "expired",
    sandbox_ended_at: "2026-01-01T00:00:00.000Z",
  });
  expect(told("2025-12-31T23:00:00Z")).toEqual({
    what: "sandbox",
    sandbox_ended: "destroyed",
    sandbox_ended_at: "2025-12-31T23:00:00.000Z",
  });
});
