import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { nativeMissing, nativeProvider } from "./support/native-factory.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const run = promisify(execFile);
const folder = new URL("../../../docs/api/", import.meta.url);
const root = fileURLToPath(new URL("../../..", import.meta.url));

/** How an example of each language is run; a page's other languages are shown only. */
const commands: Readonly<Record<string, (code: string) => [string, string[]]>> = {
  sh: (code) => ["/bin/sh", ["-euc", code]],
  python: (code) => ["python3", ["-c", code]],
  ts: (code) => [process.execPath, ["--input-type=module-typescript", "-e", code]],
};

const examples = readdirSync(folder).flatMap((page) => {
  const text = readFileSync(new URL(page, folder), "utf8");
  return [...text.matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm)].map(([whole, language = "", code = ""]) => ({
    page,
    language,
    code,
    line: text.slice(0, text.indexOf(whole)).split("\n").length,
  }));
});

const skip = await nativeMissing();

describe.skipIf(skip !== undefined)(
  `examples of docs/api${skip === undefined ? "" : ` (skipped: ${skip})`}`,
  () => {
    let server: TestServer;
    beforeAll(async () => {
      server = await startTestServer({ provider: nativeProvider });
    });
    afterAll(() => server[Symbol.asyncDispose]());

    test("every page has examples in every language", () => {
      for (const page of readdirSync(folder).filter((name) => name !== "README.md")) {
        const languages = examples.filter((example) => example.page === page).map(({ language }) => language);
        expect(languages, page).toEqual(expect.arrayContaining(Object.keys(commands)));
      }
    });

    test.each(examples.filter(({ language }) => language in commands))(
      "$page, line $line, in $language",
      { timeout: 60_000 },
      async ({ language, code }) => {
        const [program, args] = commands[language]?.(
          code
            .replaceAll("http://127.0.0.1:7423", server.url)
            .replaceAll("ws://127.0.0.1:7423", server.url.replace("http", "ws")),
        ) ?? ["false", []];
        const ended = run(program, args, { cwd: root, timeout: 50_000 });
        await expect(ended).resolves.toBeDefined();
      },
    );
  },
);
