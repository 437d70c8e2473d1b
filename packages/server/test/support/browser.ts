import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { WebSocket } from "ws";
import { eventually } from "./http.ts";

/** The Chromium of this machine; undefined: there is none. */
export const chromium = (process.env.PATH ?? "")
  .split(path.delimiter)
  .flatMap((folder) =>
    ["chromium", "chromium-browser", "google-chrome"].map((name) => path.join(folder, name)),
  )
  .find((file) => {
    try {
      accessSync(file, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });

interface Message {
  id?: number;
  method?: string;
  // biome-ignore lint/suspicious/noExplicitAny: the protocol's messages have every shape.
  params?: any;
  // biome-ignore lint/suspicious/noExplicitAny: the same.
  result?: any;
  error?: { message: string };
}

/** A page in a browser without a screen, spoken to in the DevTools protocol. */
export class BrowserPage implements AsyncDisposable {
  /** What it asked for, by whatever: addresses in order. */
  readonly requested: string[] = [];
  /** What the console and the security policy complained of. */
  readonly complaints: string[] = [];
  readonly #process: ChildProcess;
  readonly #profile: string;
  readonly #socket: WebSocket;
  readonly #answers = new Map<number, (message: Message) => void>();
  #last = 0;

  private constructor(process_: ChildProcess, profile: string, socket: WebSocket) {
    this.#process = process_;
    this.#profile = profile;
    this.#socket = socket;
    socket.on("message", (data) => this.#hear(JSON.parse(String(data)) as Message));
  }

  static async open(url: string): Promise<BrowserPage> {
    if (chromium === undefined) throw new Error("there is no Chromium on this machine");
    const profile = await mkdtemp(path.join(tmpdir(), "alcove-browser-"));
    const child = spawn(
      chromium,
      [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--remote-debugging-port=0",
        `--user-data-dir=${profile}`,
        "about:blank",
      ],
      { stdio: ["ignore", "ignore", "pipe"] },
    );
    let said = "";
    child.stderr?.on("data", (data) => {
      said += String(data);
    });
    const port = await eventually(() => /DevTools listening on ws:\/\/127\.0\.0\.1:(\d+)/.exec(said)?.[1]);
    const targets = await eventually(async () => {
      const list = (await (await fetch(`http://127.0.0.1:${port}/json/list`)).json()) as {
        type: string;
        webSocketDebuggerUrl: string;
      }[];
      return list.find(({ type }) => type === "page");
    });
    const socket = new WebSocket(targets.webSocketDebuggerUrl);
    await once(socket, "open");
    const page = new BrowserPage(child, profile, socket);
    for (const domain of ["Page", "Network", "Runtime", "Log"]) await page.#send(`${domain}.enable`);
    await page.#send("Page.navigate", { url });
    return page;
  }

  /** @returns what a script of the page comes to, as JSON can tell it; undefined when it throws. */
  async evaluate(expression: string): Promise<unknown> {
    const params = { expression, returnByValue: true, awaitPromise: true };
    const { result } = await this.#send("Runtime.evaluate", params);
    return result?.result?.value;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#socket.terminate();
    this.#process.kill("SIGKILL");
    if (this.#process.exitCode === null && this.#process.signalCode === null)
      await once(this.#process, "exit");
    await rm(this.#profile, { recursive: true, force: true, maxRetries: 5 });
  }

  #send(method: string, params: Record<string, unknown> = {}): Promise<Message> {
    const id = ++this.#last;
    const { promise, resolve } = Promise.withResolvers<Message>();
    this.#answers.set(id, resolve);
    this.#socket.send(JSON.stringify({ id, method, params }));
    return promise;
  }

  #hear(message: Message): void {
    if (message.id !== undefined) {
      this.#answers.get(message.id)?.(message);
      this.#answers.delete(message.id);
    }
    const { method, params } = message;
    if (method === "Network.requestWillBeSent") this.requested.push(params.request.url);
    if (method === "Log.entryAdded" && params.entry.level === "error")
      this.complaints.push(params.entry.text);
    if (method === "Runtime.exceptionThrown")
      this.complaints.push(params.exceptionDetails.exception?.description);
  }
}
