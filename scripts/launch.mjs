// What `bin/alcove` asks when something may be missing: gets Node and the packages, for `serve` the agent too, and prints
// the Node to run on and its flags, a line each. Plain JavaScript for any Node from 18 up.
import { serviceNodeFlags } from "./node-runtime.mjs";
import { prepare, prepareClient, warnWithoutAgent } from "./setup/prepare.mjs";

if (process.argv[2] === "serve") {
  const { node, agent } = await prepare({ service: true });
  warnWithoutAgent(agent);
  process.stdout.write(`${[node, ...serviceNodeFlags()].join("\n")}\n`);
} else {
  process.stdout.write(`${await prepareClient()}\n`);
}
