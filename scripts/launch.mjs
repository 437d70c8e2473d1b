// What `bin/alcove` asks when something may be missing: gets Node and the packages, for `serve` the agent too, and prints
// the Node to run on and its flags, a line each. Plain JavaScript for any Node from 18 up.
import { spawnSync } from "node:child_process";
import path from "node:path";
import { projectRoot, serviceNodeFlags } from "./node-runtime.mjs";
import { prepare, prepareClient, warnWithoutAgent } from "./setup/prepare.mjs";

/** As `exitCodes.usage` of the command line. */
const usage = 2;
const askMs = 30_000;

const given = process.argv.slice(2);
if (given[0] === "serve" && !given.some((word) => word === "--help" || word === "-h")) {
  const { node, agent } = await prepare({ service: true, beforeAgent: refuseWrongArguments });
  warnWithoutAgent(agent);
  process.stdout.write(`${[node, ...serviceNodeFlags()].join("\n")}\n`);
} else {
  process.stdout.write(`${await prepareClient()}\n`);
}

/** Ends with the command's own words, which would come only after the agent was built. What else keeps it from answering is told later. */
function refuseWrongArguments(node) {
  const { status } = spawnSync(node, [path.join(projectRoot, "packages/cli/src/bin.cjs"), ...given], {
    env: { ...process.env, ALCOVE_ARGUMENTS_ONLY: "1" },
    stdio: ["ignore", "ignore", "inherit"],
    timeout: askMs,
    killSignal: "SIGKILL",
  });
  if (status === usage) process.exit(usage);
}
