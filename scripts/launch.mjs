// What `bin/alcove` runs when something is missing or the system's own Node will do: gets Node and the packages, for
// `serve` the agent too, then becomes the command. Plain JavaScript for any Node from 18 up.
import path from "node:path";
import { projectRoot, serviceNodeFlags } from "./node-runtime.mjs";
import { prepare, prepareClient, warnWithoutAgent } from "./setup/prepare.mjs";
import { become } from "./setup/run.mjs";

const args = process.argv.slice(2);
let node;
let flags = [];
if (args[0] === "serve") {
  const prepared = await prepare();
  warnWithoutAgent(prepared.agent);
  node = prepared.node;
  flags = serviceNodeFlags();
} else {
  node = await prepareClient();
}
await become(node, [...flags, path.join(projectRoot, "packages", "cli", "src", "bin.mjs"), ...args]);
