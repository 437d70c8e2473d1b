import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLogger } from "../../src/platform/logger.ts";
import type { SandboxId } from "../../src/ports/index.ts";
import { AgentClient } from "../../src/providers/agent/agent-client.ts";
import { unixDialer } from "../../src/providers/agent/dialers.ts";
import { agentBinary } from "./agent-binary.ts";
import { eventually } from "./http.ts";

/** An agent that runs on this machine itself, in no sandbox: its ports are the machine's. */
export async function realAgent(): Promise<{ client: AgentClient } & AsyncDisposable> {
  const folder = await mkdtemp(join(tmpdir(), "alcove-agent-"));
  const path = join(folder, "s");
  const child = spawn(agentBinary("alcove-agent"), ["serve", "--socket", path], { stdio: "ignore" });
  const ended = once(child, "exit");
  const token = "0".repeat(64);
  const client = new AgentClient({
    dial: unixDialer(path),
    token,
    name: "sb-test",
    owner: "",
    logger: silentLogger,
  });
  const options = () => ({ signal: AbortSignal.timeout(5_000) });
  const request = {
    sandboxId: "sb-abc123def456" as SandboxId,
    workdir: join(folder, "w"),
    expiresInMs: null,
  };
  await eventually(() =>
    client.configure(request, options()).then(
      () => true,
      () => undefined,
    ),
  );
  return {
    client,
    [Symbol.asyncDispose]: async () => {
      await client[Symbol.asyncDispose]();
      child.kill("SIGTERM");
      await ended;
      await rm(folder, { recursive: true });
    },
  };
}
