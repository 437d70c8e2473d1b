import { prepare } from "../scripts/setup/prepare.mjs";

/**
 * Builds what the sources of this moment make, as `npm start` does: the agent, and the bundles of the commands and the service. Otherwise a change
 * would be measured by what was built before it, and be found well.
 */
export async function buildWhatIsMeasured(program: string, build = prepare): Promise<void> {
  const { agent } = await build({ service: true });
  if (agent.ready) return;
  console.error(`${program}: ${agent.why}; what runs in sandboxes is as it was built before, if it ever was`);
}
