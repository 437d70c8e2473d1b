import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { ensureBundle } from "../../../scripts/setup/bundles.mjs";
import { removeLeftDrafts } from "../../../scripts/setup/left-drafts.mjs";
import { type BundleKind, bundlesFolder, currentBundle, withService } from "./bundle.cjs";
import { createProgram } from "./program.ts";
import { cliEntry, finish, startCli } from "./testing/run-cli.ts";

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
    await mkdir(path.join(root, bundlesFolder), { recursive: true });
    await tell(JSON.stringify({ entry: "client-1/main.cjs", files: [["a.ts", size, mtimeMs]] }));
  });
  afterEach(() => rm(root, { recursive: true, force: true }));
  const tell = (text: string) => writeFile(path.join(root, bundlesFolder, "client.json"), text);
  const current = () => currentBundle(root, "client");

  test("while what it was made of is as it was, and of an installation always", async () => {
    const entry = path.join(root, bundlesFolder, "client-1/main.cjs");
    expect(current()).toBe(entry);
    await tell('{"entry":"client-1/main.cjs","files":[]}');
    expect(current()).toBe(entry);
    expect(currentBundle(root, "service")).toBeUndefined();
  });

  test("no more once a source was changed, replaced by one of the same size, or taken away", async () => {
    const { mtimeMs } = await stat(source);
    await writeFile(source, "three");
    expect(current()).toBeUndefined();
    await writeFile(source, "two");
    await utimes(source, new Date(), new Date(mtimeMs + 5_000));
    expect(current()).toBeUndefined();
    await rm(source);
    expect(current()).toBeUndefined();
  });

  test("never when nothing, or nothing that can be read, tells what it was made of", async () => {
    for (const text of ["", "{}", '{"entry":"client-1/main.cjs"}', '[["a.ts"']) {
      await tell(text);
      expect(current()).toBeUndefined();
    }
    await rm(path.join(root, bundlesFolder), { recursive: true });
    expect(current()).toBeUndefined();
  });
});

test("drafts of a bundle whose maker was killed are removed, those of one that lives are not", async () => {
  const folder = await mkdtemp(path.join(tmpdir(), "alcove-bundle-"));
  try {
    // More than any process has for a number.
    const gone = 2 ** 30;
    const kept = ["service-1", "service.json", `service-2.${process.pid}.new`];
    for (const name of [...kept, `service-2.${gone}.new`, `service-1.${gone}.old`])
      await mkdir(path.join(folder, name));
    await writeFile(path.join(folder, `service.json.${gone}.new`), "{");
    removeLeftDrafts(folder);
    expect((await readdir(folder)).sort()).toEqual(kept.sort());
    removeLeftDrafts(path.join(folder, "none"));
  } finally {
    await rm(folder, { recursive: true });
  }
});

describe("who starts without a bundle", () => {
  let root: string;
  beforeEach(async () => {
    root = await mkdtemp(path.join(tmpdir(), "alcove-bundle-"));
    await mkdir(path.join(root, "packages/cli"), { recursive: true });
  });
  afterEach(() => rm(root, { recursive: true, force: true }));

  test("starts also when nobody may take the lock of the set-up, or another holds it for long", async () => {
    const none = path.join(root, "no-node");
    await writeFile(
      path.join(root, ".runtime"),
      "no folder, as one of another user's or on a full disk is none",
    );
    await ensureBundle(root, none, "service");
    await rm(path.join(root, ".runtime"));
    await mkdir(path.join(root, ".runtime"));
    await writeFile(path.join(root, ".runtime/setup.lock"), String(process.pid));
    await ensureBundle(root, none, "service", { waitMs: 300 });
  });

  test("is told why, also in the words of a system that the bundler wraps", async () => {
    const said = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    const failing = path.join(root, "node");
    const text =
      "Error: Build failed with 1 error:\n\nFailed to write file\n\nCaused by:\n    No space left on device\n";
    await writeFile(failing, `#!/bin/sh\ncat >&2 <<'END'\n${text}END\nexit 1\n`, { mode: 0o755 });
    await ensureBundle(root, failing, "service");
    await writeFile(failing, "#!/bin/sh\nkill -KILL $$\n");
    await ensureBundle(root, failing, "service");
    await writeFile(failing, "#!/bin/sh\nexec sleep 60\n");
    await ensureBundle(root, failing, "service", { makingMs: 300 });
    const lines = said.mock.calls.map(([line]) => String(line));
    said.mockRestore();
    expect(lines[0]).toMatch(/could be made: No space left on device\n$/);
    expect(lines[1]).toMatch(/could be made: ended by SIGKILL\n$/);
    expect(lines[2]).toMatch(/could be made: it took too long\n$/);
  });
});

describe("the bundles of this clone", () => {
  const bundleOf: Record<BundleKind, string> = { client: "", service: "" };
  beforeAll(async () => {
    for (const kind of ["client", "service"] as const) bundleOf[kind] = await ensured(kind);
  }, 120_000);

  test("client commands start from theirs, in a few files and without a source", async () => {
    for (const words of [["ls"], ["exec", "sb-none", "true"], ["spawn"], ["cp", "--help"], ["--help"]]) {
      const loaded = await loadedBy(words);
      expect(loaded, words.join(" ")).toContain(bundleOf.client);
      expect(loaded.filter((file) => !file.endsWith(".cjs"))).toEqual([]);
      expect(loaded.length).toBeLessThan(25);
    }
  });

  test("commands that have the service in them start from the other one, without a source", async () => {
    for (const word of withService) {
      expect(createProgram().commands.map((command) => command.name())).toContain(word);
      const loaded = await loadedBy([word, "--help"]);
      expect(loaded).toContain(bundleOf.service);
      expect(loaded.filter((file) => file.endsWith(".ts"))).toEqual([]);
    }
    expect(await readFile(bundleOf.client, "utf8")).not.toContain("@alcove/server");
  });

  test("of each all files are known, so that one that is cut or gone is made anew", async () => {
    for (const kind of ["client", "service"] as const) {
      const made = path.relative(project, path.dirname(bundleOf[kind]));
      const known = (await filesOf(kind)).filter((file) => file.startsWith(`${made}/`));
      expect(known.map((file) => path.basename(file)).sort()).toEqual(
        (await readdir(path.join(project, made))).sort(),
      );
    }
  });

  test("of each is known how it was made, and of which packages", async () => {
    const others = [
      "scripts/bundle.mjs",
      "packages/cli/src/bundle.cjs",
      "tsconfig.json",
      "package-lock.json",
    ];
    for (const kind of ["client", "service"] as const)
      expect(await filesOf(kind)).toEqual(
        expect.arrayContaining([
          ...others,
          "node_modules/.package-lock.json",
          "packages/cli/package.json",
          "packages/wire/package.json",
        ]),
      );
  });

  test("the service runs from its own: programs and files of its sources and packages are found", async () => {
    const data = await mkdtemp(path.join(tmpdir(), "alcove-bundle-"));
    const service = startCli([
      "serve",
      "--port",
      "0",
      "--provider",
      "mock",
      "--data-dir",
      path.join(data, "data"),
    ]);
    try {
      let said = "";
      for await (const chunk of service.stdout) {
        said += String(chunk);
        if (said.includes("Next")) break;
      }
      const url = /http:\/\/127\.0\.0\.1:\d+/.exec(said)?.[0] ?? "";
      const post = async (at: string, body: object) => {
        const headers = { "content-type": "application/json" };
        const answer = await fetch(`${url}/api/v1${at}`, {
          method: "POST",
          headers,
          body: JSON.stringify(body),
        });
        return (await answer.json()) as Record<string, unknown>;
      };
      const { id } = await post("/sandboxes", {});
      // Its shell is a thread that runs a source.
      expect(await post(`/sandboxes/${id}/exec`, { command: "echo $((6 * 7))" })).toMatchObject({
        stdout: "42\n",
      });
      for (const file of ["/docs", "/docs/swagger-ui.js", "/docs/swagger-ui.css"])
        expect((await fetch(`${url}${file}`)).status, file).toBe(200);
      const health = (await (await fetch(`${url}/api/v1/health`)).json()) as { version: string };
      expect(health.version).toBe(
        JSON.parse(await readFile(path.join(project, "package.json"), "utf8")).version,
      );
    } finally {
      service.kill("SIGTERM");
      await finish(service);
      await rm(data, { recursive: true, force: true });
    }
  }, 60_000);
});

/** @returns the entry of a bundle that is of the sources as they are. */
async function ensured(kind: BundleKind): Promise<string> {
  if (currentBundle(project, kind) === undefined)
    await run(process.execPath, [path.join(project, "scripts/bundle.mjs"), kind]);
  const entry = currentBundle(project, kind);
  if (entry === undefined) throw new Error(`no bundle of the ${kind} was made`);
  return entry;
}

/** @returns what a bundle is of and consists of. */
async function filesOf(kind: BundleKind): Promise<string[]> {
  const manifest = await readFile(path.join(project, bundlesFolder, `${kind}.json`), "utf8");
  return (JSON.parse(manifest) as { files: [string, number, number][] }).files.map(([file]) => file);
}

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
