import { Agent, request as httpRequest, type IncomingMessage } from "node:http";
import { DeadlineExceeded, deadlineAfter } from "../../../platform/deadline.ts";
import type { CallOptions } from "../../../ports/index.ts";
import { isOurs, refused, unanswered, unfit } from "./failures.ts";
import { type Bodies, type InstanceInfo, instanceStates } from "./shapes.ts";

/** Every answer is a few hundred bytes. */
const largestAnswerBytes = 64 * 1024;

/** How long requests may take, milliseconds. */
export interface ApiPatience {
  /** Setting something. */
  call: number;
  /** Starting a machine, which reads its kernel. */
  start: number;
  /** Writing a machine's memory to the disk, or mapping it back. */
  snapshot: number;
}

const usualPatience: ApiPatience = { call: 10_000, start: 30_000, snapshot: 180_000 };

type Method = "GET" | "PUT" | "PATCH";

/**
 * One Firecracker process, by its API socket. It answers one request at a time, so one connection is kept.
 * Every method throws ProviderError when it refuses or answers nonsense, Unavailable when it cannot be reached or does not
 * answer in time, and the signal's reason when that aborts.
 */
export class FirecrackerApi implements Disposable {
  readonly #socketPath: string;
  readonly #patience: ApiPatience;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 1 });

  /** @param options.socketPath at most 107 bytes; through `/proc/self/fd` any path is short. */
  constructor(options: { socketPath: string; patience?: Partial<ApiPatience> }) {
    this.#socketPath = options.socketPath;
    this.#patience = { ...usualPatience, ...options.patience };
  }

  async instance(options: CallOptions): Promise<InstanceInfo> {
    const answer = objectIn("GET /", await this.#send("GET", "/", undefined, options));
    const { id, state, vmm_version: version } = answer;
    const known = instanceStates.find((name) => name === state);
    if (typeof id !== "string" || typeof version !== "string" || known === undefined)
      throw unfit("GET /", "it lacks id, vmm_version or a state that is known");
    return { id, version, state: known };
  }

  setMachineConfig(body: Bodies["machineConfig"], options: CallOptions): Promise<void> {
    return this.#change("PUT", "/machine-config", body, options);
  }
  setBootSource(body: Bodies["bootSource"], options: CallOptions): Promise<void> {
    return this.#change("PUT", "/boot-source", body, options);
  }
  setDrive(body: Bodies["drive"], options: CallOptions): Promise<void> {
    return this.#change("PUT", `/drives/${body.drive_id}`, body, options);
  }
  setVsock(body: Bodies["vsock"], options: CallOptions): Promise<void> {
    return this.#change("PUT", "/vsock", body, options);
  }
  setEntropy(body: Bodies["entropy"], options: CallOptions): Promise<void> {
    return this.#change("PUT", "/entropy", body, options);
  }
  setNetworkInterface(body: Bodies["networkInterface"], options: CallOptions): Promise<void> {
    return this.#change("PUT", `/network-interfaces/${body.iface_id}`, body, options);
  }
  setLogger(body: Bodies["logger"], options: CallOptions): Promise<void> {
    return this.#change("PUT", "/logger", body, options);
  }
  setMetrics(body: Bodies["metrics"], options: CallOptions): Promise<void> {
    return this.#change("PUT", "/metrics", body, options);
  }
  start(options: CallOptions): Promise<void> {
    return this.#change("PUT", "/actions", { action_type: "InstanceStart" }, options, "start");
  }
  pause(options: CallOptions): Promise<void> {
    return this.#change("PATCH", "/vm", { state: "Paused" }, options, "start");
  }
  resume(options: CallOptions): Promise<void> {
    return this.#change("PATCH", "/vm", { state: "Resumed" }, options, "start");
  }
  createSnapshot(body: Bodies["snapshotCreate"], options: CallOptions): Promise<void> {
    return this.#change("PUT", "/snapshot/create", body, options, "snapshot");
  }
  loadSnapshot(body: Bodies["snapshotLoad"], options: CallOptions): Promise<void> {
    return this.#change("PUT", "/snapshot/load", body, options, "snapshot");
  }

  [Symbol.dispose](): void {
    this.#agent.destroy();
  }

  async #change(
    method: Method,
    path: string,
    body: object,
    options: CallOptions,
    patience: keyof ApiPatience = "call",
  ): Promise<void> {
    await this.#send(method, path, body, options, patience);
  }

  /** @returns the answer's text: of a request that changes something none. */
  async #send(
    method: Method,
    path: string,
    body: object | undefined,
    { signal }: CallOptions,
    patience: keyof ApiPatience = "call",
  ): Promise<string> {
    const request = `${method} ${path}`;
    signal.throwIfAborted();
    const withinMs = this.#patience[patience];
    using deadline = deadlineAfter(withinMs, signal);
    try {
      const { status, text } = await this.#exchange(method, path, body, deadline.signal, request);
      if (status === (method === "GET" ? 200 : 204)) return text;
      throw status >= 400
        ? refused(request, status, faultIn(text))
        : unfit(request, `its status is ${status}`);
    } catch (error) {
      signal.throwIfAborted();
      if (isOurs(error)) throw error;
      const late = deadline.signal.reason instanceof DeadlineExceeded;
      const why = late ? `it took more than ${withinMs / 1000} s` : "its process has ended or is not ready";
      throw unanswered(request, why, error);
    }
  }

  async #exchange(
    method: Method,
    path: string,
    body: object | undefined,
    signal: AbortSignal,
    request: string,
  ): Promise<{ status: number; text: string }> {
    const payload = body === undefined ? undefined : JSON.stringify(body);
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const headers =
        payload === undefined
          ? {}
          : { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(payload) };
      const target = { socketPath: this.#socketPath, method, path, agent: this.#agent, signal };
      const sent = httpRequest({ ...target, headers: { Accept: "application/json", ...headers } });
      sent.on("response", resolve).on("error", reject).end(payload);
    });
    const parts: Buffer[] = [];
    let length = 0;
    for await (const part of response) {
      length += part.length;
      if (length > largestAnswerBytes) {
        response.destroy();
        throw unfit(request, `it is longer than ${largestAnswerBytes} bytes`);
      }
      parts.push(part);
    }
    return { status: response.statusCode ?? 0, text: Buffer.concat(parts).toString("utf8") };
  }
}

function faultIn(text: string): string {
  try {
    const { fault_message: fault } = objectIn("", text);
    if (typeof fault === "string") return fault;
  } catch {
    // No JSON: the text itself is what there is.
  }
  return text.trim().slice(0, 1000) || "it said nothing";
}

function objectIn(request: string, text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw unfit(request, "it is no JSON", error);
  }
  if (typeof value !== "object" || value === null) throw unfit(request, "it is no object");
  return { ...value };
}
