import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { Socket } from "node:net";
import type { CallOptions } from "../../ports/sandbox-operations.ts";
import type { AgentDialer } from "./channel.ts";
import { encodeHello } from "./connection.ts";

/** An agent that nobody has told what it is for. */
export interface HeldAgent extends Disposable {
  /** Aborts when it ends. */
  readonly ended: AbortSignal;
}

/**
 * Keeps an agent waiting for its sandbox: it does as long as somebody is connected. Resolves once it answers.
 * @throws what dialling does; Error when it ends before it answers.
 */
export async function holdAgent(dial: AgentDialer, { signal }: CallOptions): Promise<HeldAgent> {
  const connection = await dial({ signal });
  const ended = new AbortController();
  connection.on("error", () => undefined);
  connection.once("close", () => ended.abort(new Error("the agent ended while it waited")));
  try {
    // Until it is configured any token will do.
    connection.write(encodeHello(randomBytes(32).toString("hex")));
    await Promise.race([
      once(connection, "data", { signal }),
      once(ended.signal, "abort", { signal }).then(() => ended.signal.throwIfAborted()),
    ]);
  } catch (error) {
    connection.destroy();
    throw error;
  }
  connection.resume();
  // What waits for somebody keeps no process alive.
  if (connection instanceof Socket) connection.unref();
  return { ended: ended.signal, [Symbol.dispose]: () => connection.destroy() };
}
