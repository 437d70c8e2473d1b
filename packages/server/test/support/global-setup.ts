import type { TestProject } from "vitest/node";
import { prepareEngineDir } from "./docker-engine.ts";

/** Names the folder of the run's shared Docker Engine, which the first test that needs it starts, and ends it. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const { dir, release } = await prepareEngineDir();
  project.provide("engineDir", dir);
  return release;
}
