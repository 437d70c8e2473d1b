// Runs a script of the project on Node 26, whatever Node started this one:
//   node scripts/with-node.mjs FILE [ARG…]
import { spawnSync } from "node:child_process";
import { nodeRuntime } from "./node-runtime.mjs";
import { prepare } from "./setup/prepare.mjs";

const [file = ""] = process.argv.slice(2);
// Programs of development, such as vitest, are among the packages that a clone which only ran a service has not got yet.
const { node } = file.startsWith("node_modules/") ? await prepare({ dev: true }) : { node: nodeRuntime() };
const result = spawnSync(node, process.argv.slice(2), { stdio: "inherit" });
process.exit(result.status ?? 1);
