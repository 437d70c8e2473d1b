// Runs a script of the project on Node 26, whatever Node started this one:
//   node scripts/with-node.mjs FILE [ARG…]
import { spawn } from "node:child_process";
import { constants } from "node:os";
import { nodeRuntime } from "./node-runtime.mjs";
import { prepare } from "./setup/prepare.mjs";

const [file = ""] = process.argv.slice(2);
// Programs of development, such as vitest, are among the packages that a clone which only ran a service has not got yet.
const { node } = file.startsWith("node_modules/") ? await prepare({ dev: true }) : { node: nodeRuntime() };
const child = spawn(node, process.argv.slice(2), { stdio: "inherit" });
// What a terminal sends reaches both; the rest is meant for the script.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => undefined);
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`with-node: ${node}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
