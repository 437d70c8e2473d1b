import { execFile } from "node:child_process";
import { glob } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const run = promisify(execFile);
const folder = fileURLToPath(new URL(".", import.meta.url));

/** Commands that are no matter of an instant: they open a database, an engine, or a service. */
const heavy = ["backup", "config-lint", "doctor", "image", "load-config", "purge", "restore", "serve"];
/** What all of them together need beside themselves; schemas alone are more than three hundred. */
const mostOthers = 100;

/** Prints the address of each module that is loaded for some. */
const program = `
  import { registerHooks } from "node:module";
  registerHooks({ load: (url, context, next) => { if (url.startsWith("file:")) console.log(url); return next(url, context); } });
  for (const name of process.argv.slice(1)) await import(name);
  process.exit(0);
`;

test("commands that people loop over load what they need, and no schema", async () => {
  const commands = (await Array.fromAsync(glob("commands/*.ts", { cwd: folder }))).filter(
    (file) => !file.endsWith(".test.ts") && !heavy.includes(file.replace(/^commands\/|\.ts$/g, "")),
  );
  expect(commands).toContain("commands/exec.ts");
  const files = commands.map((file) => `${folder}${file}`);
  const { stdout } = await run(process.execPath, ["--input-type=module", "-e", program, ...files]);
  const loaded = stdout.split("\n").filter((line) => line !== "");
  expect(loaded.filter((url) => url.includes("/typebox/"))).toEqual([]);
  expect(loaded.length).toBeGreaterThan(commands.length);
  expect(loaded.length).toBeLessThan(commands.length + mostOthers);
});
