import { spawn } from "node:child_process";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import { floorProgram } from "./floors.ts";

/** A call of the service. `{id}` in its path is the last `id` that an answer before it had. */
export interface Call {
  method: string;
  /** After `/api/v1`. */
  path: string;
  body?: unknown;
}

export interface TimingOptions {
  url: string;
  /** Connections that do the same at once; 1 unless given. */
  clients?: number;
  /** How often each makes the calls at most. */
  count: number;
  /** After so long none begins again. */
  durationMs?: number;
}

/**
 * Makes calls one after the other from a small program (`bench/floor`): its part of a call is some microseconds, where a client in Node takes 0.1 ms and
 * more of the two processors, after a pause 0.4. The floors are taken by the same program.
 * @returns a list for each time through, the milliseconds of each call.
 * @throws Error when an answer is not of class 2xx.
 */
export async function timeCalls(calls: readonly Call[], options: TimingOptions): Promise<number[][]> {
  const { url, clients = 1, count, durationMs } = options;
  const numbers = [new URL(url).port, clients, count, ...(durationMs === undefined ? [] : [durationMs])];
  const child = spawn(await floorProgram(), ["http", ...numbers.map(String)]);
  const lines = calls.map(({ method, path, body }) =>
    [method, `/api/v1${path}`, ...(body === undefined ? [] : [JSON.stringify(body)])].join(" "),
  );
  child.stdin.end(lines.join("\n"));
  const [output, complaint, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, "close"),
  ]);
  if (code !== 0) throw new Error(`the bench's client: ${complaint}`);
  return output
    .trim()
    .split("\n")
    .map((line) => line.split(" ").map((nanoseconds) => Number(nanoseconds) / 1e6));
}
