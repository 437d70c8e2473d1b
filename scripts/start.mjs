// `npm start`: gets what is missing and starts the service; what follows `--` goes to `alcove serve`.
// Plain JavaScript for any Node from 18 up.
import path from "node:path";
import { projectRoot, serviceNodeFlags } from "./node-runtime.mjs";
import { prepare, warnWithoutAgent } from "./setup/prepare.mjs";
import { become } from "./setup/run.mjs";

const { node, agent } = await prepare();
warnWithoutAgent(agent);
const command = path.join(projectRoot, "packages", "cli", "src", "bin.mjs");
await become(node, [...serviceNodeFlags(), command, "serve", ...process.argv.slice(2)]);
