import type { Readable } from "node:stream";
import { clientError } from "./errors.ts";

const maxLineBytes = 64 * 2 ** 20;

/** Lines of a stream, without their ends; the last one counts when it is not empty. Reading slowly slows the sender. */
export async function* readLines(body: Readable): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for await (const chunk of body) {
      const text = typeof chunk === "string" ? chunk : decoder.decode(chunk, { stream: true });
      const lines = text.split("\n");
      lines[0] = rest + (lines[0] ?? "");
      rest = lines.pop() ?? "";
      if (rest.length > maxLineBytes)
        throw clientError("bad_response", `a line is longer than ${maxLineBytes} bytes`);
      for (const line of lines) yield line.endsWith("\r") ? line.slice(0, -1) : line;
    }
  } finally {
    body.destroy();
  }
  rest += decoder.decode();
  if (rest !== "") yield rest;
}

/** Values of an NDJSON stream; empty lines are passed over. */
export async function* readNdjson<T>(body: Readable): AsyncGenerator<T> {
  for await (const line of readLines(body)) {
    if (line === "") continue;
    const value: T = parse(line);
    yield value;
  }
}

/** One message of an event stream. */
export interface ServerSentEvent {
  id: string | undefined;
  data: string;
}

/**
 * Messages of a `text/event-stream`; comments are passed over, `on.retry` is told the pause the service asks for, `on.id`
 * an id that comes without a message: the place to go on from.
 */
export async function* readEvents(
  body: Readable,
  on: { retry?: (ms: number) => void; id?: (id: string) => void } = {},
): AsyncGenerator<ServerSentEvent> {
  let id: string | undefined;
  let data: string[] = [];
  for await (const line of readLines(body)) {
    if (line === "") {
      if (data.length > 0) yield { id, data: data.join("\n") };
      else if (id !== undefined) on.id?.(id);
      data = [];
      continue;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") data.push(value);
    else if (field === "id") id = value;
    else if (field === "retry" && /^\d+$/.test(value)) on.retry?.(Number(value));
  }
}

export function parse<T>(text: string): T {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw clientError("bad_response", `not JSON: ${text.slice(0, 80)}`, cause);
  }
}
