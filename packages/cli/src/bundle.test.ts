import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { bundleFolder, currentBundle, fromSource, sourcesFile } from "./bundle.cjs";
import { createProgram } from "./program.ts";
import { cliEntry } from "./testing/run-cli.ts";

const run = promisify(execFile);
const project = fileURLToPath(new URL("../../..", import.meta.url));

describe("a bundle is used", () => {
  let root: string;
  let source: string;
  beforeEach(async () => {
    root = await mkdtemp(path.join(tmpdir(), "alcove-bundle-"));
    source = path.join(root, "a.ts");
    await writeFile(source, "one");
    const { size, mtimeMs } = await stat(source);
    await mkdir(path.join(root, bundleFolder), { recursive: true });
    await tellSources(JSON.stringify([["a.ts", size, mtimeMs]]));
  });
  afterEach(() => rm(root, { recursive: true, force: true }));
  const tellSources = (text: string) => writeFile(path.join(root, bundleFolder, sourcesFile), text);

  test("while what it was made of is as it was, and of an installation always", async () => {
    const entry = path.join(root, bundleFolder, "main.cjs");
    expect(currentBundle(root)).toBe(entry);
    await tellSources("[]");
    expect(currentBundle(root)).toBe(entry);
  });

  test("no more once a source was changed, replaced by one of the same size, or taken away", async () => {
    const { mtimeMs } = await stat(source);
    await writeFile(source, "three");
    expect(currentBundle(root)).toBeUndefined();
    await writeFile(source, "two");
    await utimes(source, new Date(), new Date(mtimeMs + 5_000));
    expect(currentBundle(root)).toBeUndefined();
    await rm(source);
    expect(currentBundle(root)).toBeUndefined();
  });

  test("never when nothing, or nothing that can be read, tells what it was made of", async () => {
    for (const text of ["", "{}", '[["a.ts"']) {
      await tellSources(text);
      expect(currentBundle(root)).toBeUndefined();
    }
    await rm(path.join(root, bundleFolder), { recursive: true });
    expect(currentBundle(root)).toBeUndefined();
  });
});

describe("the bundle of this clone", () => {
  beforeAll(async () => {
    if (currentBundle(project) === undefined)
      await run(process.execPath, [path.join(project, "scripts/bundle-command.mjs")]);
  }, 60_000);

  test("is what client commands start from, in a few files and without a source", async () => {
    for (const words of [["ls"], ["exec", "sb-none", "true"], ["spawn"], ["cp", "--help"], ["--help"]]) {
      const loaded = await loadedBy(words);
      expect(loaded, words.join(" ")).toContain(path.join(project, bundleFolder, "main.cjs"));
      expect(loaded.filter((file) => !file.endsWith(".cjs"))).toEqual([]);
      expect(loaded.length).toBeLessThan(25);
    }
  });

  test("leaves the commands that have the service in them to their sources", async () => {
    for (const word of fromSource) {
      expect(createProgram().commands.map((command) => command.name())).toContain(word);
      expect(await loadedBy([word, "--help"])).toContain(path.join(project, "packages/cli/src/main.ts"));
    }
    expect(await readFile(path.join(project, bundleFolder, "main.cjs"), "utf8")).not.toContain(
      "@alcove/server",
    );
  });
});

/** @returns the files that the command loads. */
async function loadedBy(words: readonly string[]): Promise<string[]> {
  const program = `
    const { registerHooks } = require("node:module");
    const { fileURLToPath } = require("node:url");
    registerHooks({ load(url, context, next) {
      if (url.startsWith("file:")) process.stderr.write("loaded " + fileURLToPath(url) + "\\n");
      return next(url, context);
    } });
    process.argv.splice(1, 0, ${JSON.stringify(cliEntry)});
    require(${JSON.stringify(cliEntry)});
  `;
  // Nobody listens there: how the command ends is not what is looked at.
  const env = { ...process.env, ALCOVE_URL: "http://127.0.0.1:1" };
  const { stderr } = await run(process.execPath, ["-e", program, "--", ...words], { env }).catch(
    (error: { stderr: string }) => error,
  );
  return [...stderr.matchAll(/^loaded (.+)$/gm)].map(([, file = ""]) => file);
}
