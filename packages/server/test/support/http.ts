import http from "node:http";

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
  /** The body as JSON; a body that is none is undefined. */
  // biome-ignore lint/suspicious/noExplicitAny: tests look into bodies of every shape.
  json: any;
}

/** Speaks to a server under test. */
export class TestClient {
  readonly url: string;
  readonly #headers: Record<string, string>;

  constructor(url: string, headers: Record<string, string> = {}) {
    this.url = url;
    this.#headers = headers;
  }

  /** `body` is sent as JSON; text and bytes as they are, with the given content type. */
  async call(
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Answer> {
    const raw = typeof body === "string" || body instanceof Uint8Array;
    const response = await fetch(this.url + path, {
      method,
      headers: {
        ...this.#headers,
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: raw ? (body as string) : JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, text, json: parse(text) };
  }

  async spawn(body: Record<string, unknown> = {}): Promise<string> {
    const { status, json, text } = await this.call("POST", "/api/v1/sandboxes", body);
    if (status !== 201) throw new Error(`spawn answered ${status}: ${text}`);
    return json.id;
  }

  /** Ids of the sandboxes of the first page that run. */
  async running(): Promise<string[]> {
    const { json } = await this.call("GET", "/api/v1/sandboxes");
    const found: { id: string; state: string }[] = json;
    return found.filter(({ state }) => state === "running").map(({ id }) => id);
  }

  exec(id: string, body: Record<string, unknown>): Promise<Answer> {
    return this.call("POST", `/api/v1/sandboxes/${id}/exec`, body);
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Lines of an NDJSON body. */
// biome-ignore lint/suspicious/noExplicitAny: tests look into lines of every shape.
export function lines(text: string): any[] {
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line));
}

/** What one stream of an NDJSON body says. */
export function said(text: string, stream: "stdout" | "stderr"): string {
  return lines(text)
    .filter((line) => line.stream === stream)
    .map((line) => line.data)
    .join("");
}

/** A request whose response is read by hand, or not at all. */
export function openRequest(
  url: string,
  options: { method: string; body?: unknown; headers?: Record<string, string> },
): Promise<{ response: http.IncomingMessage; close(): void }> {
  return new Promise((resolve, reject) => {
    const body = options.body === undefined ? "" : JSON.stringify(options.body);
    const request = http.request(url, {
      method: options.method,
      agent: false,
      headers: {
        ...(body === ""
          ? {}
          : { "content-type": "application/json", "content-length": Buffer.byteLength(body) }),
        ...options.headers,
      },
    });
    request.on("error", reject);
    request.on("response", (response) => {
      response.on("error", () => response.destroy());
      resolve({ response, close: () => request.destroy() });
    });
    request.end(body);
  });
}

/** Reads server-sent events until `enough` says so. Times out by the test's own deadline. */
export async function readEvents(
  url: string,
  options: {
    headers?: Record<string, string>;
    enough: (events: SentEvent[]) => boolean;
    onOpen?: () => Promise<unknown>;
  },
): Promise<SentEvent[]> {
  const stop = new AbortController();
  const response = await fetch(url, { headers: options.headers ?? {}, signal: stop.signal });
  if (response.status !== 200 || response.body === null)
    throw new Error(`events answered ${response.status}: ${await response.text()}`);
  const opened = options.onOpen?.();
  const events: SentEvent[] = [];
  let text = "";
  const decoder = new TextDecoder();
  for await (const chunk of response.body) {
    text += decoder.decode(chunk, { stream: true });
    const blocks = text.split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      const fields = new Map(
        block
          .split("\n")
          .map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]),
      );
      const data = fields.get("data");
      if (data !== undefined) events.push({ id: fields.get("id") ?? "", ...JSON.parse(data) });
    }
    if (options.enough(events)) break;
  }
  stop.abort();
  await opened;
  return events;
}

export interface SentEvent {
  id: string;
  type: string;
  sandbox_id: string;
  timestamp: string;
  data?: Record<string, unknown>;
}

/** Waits until `check` gives a value; for effects nobody announces. */
export async function eventually<T>(
  check: () => Promise<T | undefined> | T | undefined,
  withinMs = 10_000,
): Promise<T> {
  const deadlineMs = performance.now() + withinMs;
  for (;;) {
    const value = await check();
    if (value !== undefined) return value;
    if (performance.now() > deadlineMs) throw new Error(`it did not happen within ${withinMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
