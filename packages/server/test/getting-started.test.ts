import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { TestClient } from "./support/http.ts";
import { nativeMissing, nativeProvider } from "./support/native-factory.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

/** docs/getting-started.md as a newcomer reads it: its commands, one after the other in one shell, print what it says. */
const root = fileURLToPath(new URL("../../..", import.meta.url));
const page = readFileSync(path.join(root, "docs/getting-started.md"), "utf8");
const steps = [...page.matchAll(/^```sh\n([\s\S]*?)^```\n\n```text\n([\s\S]*?)^```$/gm)].map(
  ([, commands = "", output = ""]) => ({ commands, output }),
);

/** Ids, times and speeds are other ones each time. */
function masked(output: string): string {
  return output
    .replaceAll(/sb-[a-z0-9]{12}/g, "sb-…")
    .replaceAll(/[\d.]+ (?:ms|s|KiB\/s|MiB\/s|B\/s)\b/g, "… ")
    .trimEnd();
}

async function follow(server: TestServer, commands: readonly string[]): Promise<string[]> {
  const mark = "----- next -----";
  const script = commands.join(`\necho "${mark}"\n`);
  const { stdout } = await promisify(execFile)("/bin/sh", ["-c", `exec 2>&1\n${script}`], {
    cwd: root,
    env: { ...process.env, ALCOVE_URL: server.url, NODE_NO_WARNINGS: "1" },
    timeout: 80_000,
  });
  return stdout.split(`${mark}\n`);
}

describe("docs/getting-started.md", () => {
  test("shows what each of its commands prints, and parts of the examples as they are", () => {
    expect(steps).toHaveLength(3);
    expect(page.match(/^```sh$/gm)).toHaveLength(steps.length);
    const parts = [...page.matchAll(/<!-- part of: (\S+) -->\n\n```\w+\n([\s\S]*?)^```$/gm)];
    expect(parts.map(([, file]) => file)).toEqual(["examples/agent.py", "examples/agent.ts"]);
    for (const [, file = "", code = ""] of parts)
      expect(readFileSync(path.join(root, file), "utf8")).toContain(code);
    expect(page.match(/^```(?:python|ts)$/gm)).toHaveLength(parts.length);
  });

  test("leads to pages that there are", () => {
    for (const [, target = ""] of page.matchAll(/\]\(([^)#]+)(?:#[^)]*)?\)/g))
      expect(existsSync(path.join(root, "docs", target)), target).toBe(true);
    expect(readFileSync(path.join(root, "README.md"), "utf8")).toContain("](docs/getting-started.md)");
  });
});

const skip = await nativeMissing();
describe.skipIf(skip !== undefined)(
  `docs/getting-started.md on native${skip === undefined ? "" : ` (skipped: ${skip})`}`,
  () => {
    test("every step does and prints what the page says, and leaves nothing", {
      timeout: 90_000,
    }, async () => {
      await using server = await startTestServer({ provider: nativeProvider });
      const printed = await follow(
        server,
        steps.map(({ commands }) => commands),
      );
      expect(printed.map(masked)).toEqual(steps.map(({ output }) => masked(output)));
      expect(
        (await server.sandboxes.list({ limit: 10 })).items.filter(({ state }) => state !== "destroyed"),
      ).toEqual([]);
    });
  },
);

describe("the agents of examples/", () => {
  test("do their task on mock too, where nothing else works", { timeout: 90_000 }, async () => {
    await using server = await startTestServer({ provider: mockProvider });
    const agents = steps.slice(1);
    const printed = await follow(
      server,
      agents.map(({ commands }) => commands),
    );
    expect(printed.map(masked)).toEqual(agents.map(({ output }) => masked(output)));
  });

  test("send a key that is given, and end their sandbox when they fail", { timeout: 90_000 }, async () => {
    const key = "0123456789abcdef";
    await using server = await startTestServer({
      provider: mockProvider,
      env: { ALCOVE_AUTH_API_KEY: key, ALCOVE_DEFAULTS_MAX_EXEC_TIMEOUT: "1s" },
    });
    const client = new TestClient(server.url, { "x-api-key": key });
    for (const { commands } of steps.slice(1)) {
      // What the model is shown then, a refusal of the timeout, is nothing the scripted one knows what to do with.
      const ended = follow(server, [`ALCOVE_API_KEY=${key} ${commands}`]);
      await expect(ended).rejects.toThrow();
      const audit = await client.call("GET", "/api/v1/sandboxes?state=destroyed");
      expect(audit.json).toHaveLength(steps.slice(1).findIndex((step) => step.commands === commands) + 1);
      expect((await client.call("GET", "/api/v1/sandboxes")).json).toEqual([]);
    }
  });
});
