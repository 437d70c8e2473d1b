import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const run = promisify(execFile);
const entry = fileURLToPath(new URL("./main.ts", import.meta.url));

/** What few services use, and each of which takes megabytes in all that load it. */
const onDemand = ["just-bash", "undici", "e2b", "pino-pretty", "swagger-ui-dist", "@opentelemetry"];

/** Prints the address of each module that is loaded for the service. */
const program = `
  import { registerHooks } from "node:module";
  registerHooks({ load: (url, context, next) => { console.log(url); return next(url, context); } });
  await import(process.argv[1]);
  process.exit(0);
`;

test("a service loads what few use when it is used", async () => {
  const { stdout } = await run(process.execPath, ["--input-type=module", "-e", program, entry]);
  const loaded = stdout.split("\n");
  expect(loaded.some((url) => url.includes("/node_modules/fastify/"))).toBe(true);
  for (const name of onDemand)
    expect(loaded.filter((url) => url.includes(`/node_modules/${name}/`))).toEqual([]);
});
