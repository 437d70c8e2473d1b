// Everything a fresh clone needs before the service can run: Node, packages, the agent. Plain JavaScript, Node 18 and up.
import path from "node:path";
import { agentIsCurrent, agentLibrary, whyNotMusl } from "../build-agent.mjs";
import { findNode, libraryDir, nodeFailure, nodeInstallation, projectRoot } from "../node-runtime.mjs";
import { ensureBundle } from "./bundles.mjs";
import { dependenciesCurrent, ensureDependencies } from "./dependencies.mjs";
import { ensureLibatomic } from "./libatomic.mjs";
import { withSetupLock } from "./lock.mjs";
import { ensureCargo } from "./rust.mjs";
import { runStep, say } from "./step.mjs";

/**
 * Fetches what is missing, does nothing when all is there.
 * @param options dev: packages of development too; agent: the agent; service: the bundle that the service starts from; beforeAgent: called
 *   with the Node to run on before the agent is built, which takes long.
 * @returns `{ node, agent }`: the Node to run on, and the agent's state: `ready`, or what stands in its way.
 */
export async function prepare({ dev = false, agent = true, service = false, beforeAgent } = {}) {
  const found = findNode();
  const agentState = agent ? agentIsCurrent() : true;
  const ready =
    found !== undefined && dependenciesCurrent(projectRoot, { dev }) && agentState
      ? { node: found, agent: { ready: true } }
      : await withSetupLock(projectRoot, async () => {
          const node = await ensureNode();
          if (!(await ensureDependencies(projectRoot, { dev })))
            fail("the npm packages could not be installed");
          if (!agentState) beforeAgent?.(node);
          return { node, agent: agent ? await ensureAgent() : { ready: true } };
        });
  await ensureBundle(projectRoot, ready.node, "client");
  if (service) await ensureBundle(projectRoot, ready.node, "service");
  return ready;
}

/** Packages and Node alone: what the client commands need. */
export async function prepareClient() {
  return (await prepare({ agent: false })).node;
}

async function ensureNode() {
  const found = findNode();
  if (found !== undefined) return found;
  const { title, command, args, failed } = nodeInstallation();
  if (nodeFailure() === "it is not installed" && !(await runStep(title, command, args))) fail(failed);
  const why = findNode() === undefined ? nodeFailure() : undefined;
  if (why?.includes("libatomic") && !(await ensureLibatomic(libraryDir))) fail(why);
  return findNode() ?? fail(`${failed}: ${nodeFailure()}`);
}

async function ensureAgent() {
  if (agentIsCurrent()) return { ready: true };
  const cargo = await ensureCargo();
  if (cargo.missing !== undefined) return { ready: false, why: cargo.missing, command: cargo.command };
  const built = await runStep(
    "building the agent (cargo, once, one to four minutes; its own code comes last and takes longest)",
    process.execPath,
    [path.join(projectRoot, "scripts", "build-agent.mjs")],
    { cwd: projectRoot, env: cargo.env },
  );
  if (built && agentLibrary() !== "musl")
    say(
      `the agent holds glibc instead of musl, and starts 0.25 ms later: ${whyNotMusl()}. docs/native-provider.md says more.`,
    );
  return built ? { ready: true } : { ready: false, why: "the agent could not be built; see above" };
}

/** Told again right before the service starts, where it is read. */
export function warnWithoutAgent(agent) {
  if (agent.ready) return;
  say(`WARNING: ${agent.why}.`);
  if (agent.command !== undefined) say(`To get it, run:  ${agent.command}  and start again.`);
  say("Until then no provider that isolates can work; the service falls back to `mock`, a simulation.");
}

function fail(why) {
  say(why);
  process.exit(1);
}
