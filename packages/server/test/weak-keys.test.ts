import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { pino } from "pino";
import { expect, test } from "vitest";
import { serve } from "../src/main.ts";
import { mockConfig } from "./support/mock-config.ts";

const strong = "0123456789abcdef0123";

test("keys that are short, or the administrators' and the clients' in one, apply with a warning, at the start and when read again", async () => {
  await using stack = new AsyncDisposableStack();
  const home = await mkdtemp(path.join(tmpdir(), "alcove-weak-keys-"));
  stack.defer(() => rm(home, { recursive: true, force: true }));
  const config = (client: string, admin: string) =>
    mockConfig(home, { ALCOVE_AUTH_API_KEY: client, ALCOVE_AUTH_ADMIN_API_KEY: admin });
  let lines: string[] = [];
  const write = (line: string) => {
    const { level, msg } = JSON.parse(line);
    if (level === pino.levels.values.warn) lines.push(msg);
  };
  const logger = pino({ level: "warn" }, { write });
  const told = () => {
    const about = lines.filter((line) => line.includes("auth."));
    lines = [];
    return about;
  };
  const service = await serve({ config: config("short", `admin-${strong}`), logger });
  stack.defer(() => service.close());
  expect(told()).toEqual([
    expect.stringMatching(/^keys that can be guessed .*: auth\.api_key; make keys with/),
  ]);
  await service.reload(async () => config(strong, `admin-${strong}`));
  expect(told()).toEqual([]);
  await service.reload(async () => config(strong, strong));
  expect(told()).toEqual([expect.stringContaining("auth.api_key and auth.admin_api_key are the same")]);
  await service.reload(async () => config("short", strong));
  expect(told()).toEqual([expect.stringContaining("fewer than 16 characters: auth.api_key")]);
});
