import type { CallOptions } from "../../ports/index.ts";
import { ProviderError, RuntimeGone, Unavailable } from "../../ports/index.ts";
import type { AgentDialer } from "../agent/index.ts";
import { agentProgram, agentSocket } from "./container-spec.ts";
import type { EngineClient } from "./engine-client.ts";
import { isRefusal } from "./engine-errors.ts";
import { CreatedExec } from "./engine-shapes.ts";
import { ContainerStdio } from "./multiplexed-stream.ts";

/** Bytes of a bridge's complaints that are kept for the message. */
const keptStderrBytes = 2_000;

/** What engines say when a container ends while something is executed in it. */
const ended =
  /is not running|removal in progress|stopped (state|container)|no such container|cannot find container/i;

/**
 * Reaches an agent where its socket cannot be reached: each connection is a bridge program the engine executes in the
 * container, its standard input and output being the connection.
 */
export function execDialer(options: { engine: EngineClient; container: string; name: string }): AgentDialer {
  return async ({ signal }) => {
    try {
      return await dial(options, { signal });
    } catch (error) {
      // 404: no such container. 409: it is not running, or paused. One on its way out is refused in words alone.
      if (isRefusal(error, 404, 409) || (isRefusal(error) && ended.test(error.said))) {
        throw new RuntimeGone(`sandbox ${options.name} has ended`, { cause: error });
      }
      if (isRefusal(error)) {
        throw new Unavailable(`the Docker Engine cannot execute in sandbox ${options.name}`, {
          cause: error,
        });
      }
      throw error;
    }
  };
}

async function dial(
  { engine, container, name }: { engine: EngineClient; container: string; name: string },
  { signal }: CallOptions,
): Promise<ContainerStdio> {
  const exec = await engine.call(
    {
      method: "POST",
      path: `/containers/${container}/exec`,
      body: {
        AttachStdin: true,
        AttachStdout: true,
        AttachStderr: true,
        Tty: false,
        User: "0:0",
        WorkingDir: "/",
        Cmd: [agentProgram, "stdio", "--socket", agentSocket],
      },
      signal,
    },
    CreatedExec,
  );
  const { socket, head } = await engine.hijack({
    method: "POST",
    path: `/exec/${exec.Id}/start`,
    body: { Detach: false, Tty: false },
    signal,
  });
  let complaints = "";
  const stdio = new ContainerStdio({
    socket,
    head,
    onStderr: (data) => {
      complaints = (complaints + data.toString("utf8")).slice(0, keptStderrBytes);
    },
    // An engine that cannot start the program says so in plain text where its output would be.
    onForeign: (text) =>
      ended.test(text)
        ? new RuntimeGone(`sandbox ${name} has ended`, { cause: new Error(text) })
        : new ProviderError(`the Docker Engine cannot execute in sandbox ${name}`, {
            cause: new Error(text),
          }),
    onEarlyEnd: () =>
      new RuntimeGone(`sandbox ${name} has ended`, {
        cause: new Error(complaints === "" ? "the bridge to the agent ended at once" : complaints),
      }),
  });
  return stdio;
}
