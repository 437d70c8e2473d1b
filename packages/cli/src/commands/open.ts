import { spawn } from "node:child_process";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson, printLines } from "../terminal/output.ts";
import { parsePort } from "../terminal/text.ts";
import { idOf } from "./named.ts";

/** What opens a link, by platform. */
const openers: Readonly<Record<string, readonly [string, ...string[]]>> = {
  darwin: ["open"],
  win32: ["cmd", "/c", "start", ""],
};

/** Prints the address of a port and, on a terminal, opens it in the browser. */
export async function open(
  wanted: string,
  port: string,
  flags: ClientFlags & JsonFlags & { ttl?: string; browser: boolean },
): Promise<void> {
  const number = parsePort(port);
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const { signal } = interrupt;
  const id = await idOf(client, wanted, { flags, signal });
  const preview = await client.previewUrl(id, number, {
    signal,
    ...(flags.ttl !== undefined && { ttl: flags.ttl }),
  });
  if (flags.json) printJson(preview);
  else printLines([preview.url]);
  if (flags.browser && !flags.json && process.stdout.isTTY === true) openInBrowser(preview.url);
}

/** Where there is no browser, the address that was printed is all there is. */
function openInBrowser(url: string): void {
  const [program, ...args] = openers[process.platform] ?? ["xdg-open"];
  const child = spawn(program, [...args, url], { stdio: "ignore", detached: true });
  child.on("error", () => undefined);
  child.unref();
}
