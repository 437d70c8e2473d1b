// Runs a script of the project on Node 26, whatever Node started this one:
//   node scripts/with-node.mjs FILE [ARG…]
import { spawnSync } from "node:child_process";
import { nodeRuntime } from "./node-runtime.mjs";

const node = nodeRuntime();
const result = spawnSync(node, process.argv.slice(2), { stdio: "inherit" });
process.exit(result.status ?? 1);
