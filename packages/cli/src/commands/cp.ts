import { sandboxNamePattern } from "@alcove/wire/light";
import { type ClientFlags, interruptSignal, openClient } from "../context.ts";
import { UsageError } from "../exit-codes.ts";
import { download } from "./cp-download.ts";
import { upload } from "./cp-upload.ts";
import { idOf } from "./named.ts";

export interface CpFlags extends ClientFlags {
  recursive?: boolean;
  quiet?: boolean;
}

/** A path on this machine, or inside a sandbox. */
export type Place = { kind: "local"; path: string } | { kind: "sandbox"; id: string; path: string };

export async function cp(source: string, target: string, flags: CpFlags): Promise<void> {
  const [from, to] = [parsePlace(source), parsePlace(target)];
  if (from.kind === to.kind)
    throw new UsageError(
      `one side must be in a sandbox and the other here: alcove cp ./a sb-…:/b${meant(source, target)}`,
    );
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const options = {
    recursive: flags.recursive === true,
    quiet: flags.quiet === true,
    signal: interrupt.signal,
  };
  for (const place of [from, to])
    if (place.kind === "sandbox")
      place.id = await idOf(client, place.id, { flags, signal: interrupt.signal });
  if (from.kind === "local" && to.kind === "sandbox") return await upload(client, from.path, to, options);
  if (from.kind === "sandbox" && to.kind === "local") return await download(client, from, to.path, options);
}

const named = new RegExp(`^(${sandboxNamePattern}):(/.*)$`, "s");

/** What looks like a name and a path that is not absolute is a file here; where no side is in a sandbox it was meant otherwise. */
function meant(...texts: string[]): string {
  const [, name, path] = texts.map((text) => relative.exec(text)).find((found) => found !== null) ?? [];
  return name === undefined ? "" : `; a path inside is absolute, such as ${name}:/workspace/${path}`;
}

const relative = new RegExp(`^(${sandboxNamePattern}):([^/].*|)$`, "s");

/** `sb-…:/path` and `name:/path` are inside a sandbox; everything else is here. */
export function parsePlace(text: string): Place {
  const inNamed = named.exec(text);
  if (inNamed !== null) return { kind: "sandbox", id: inNamed[1] ?? "", path: inNamed[2] ?? "" };
  const match = /^(sb[-_][A-Za-z0-9_-]+):(.*)$/s.exec(text);
  if (match === null) return { kind: "local", path: text };
  const [, id = "", path = ""] = match;
  if (!path.startsWith("/")) {
    throw new UsageError(`${text}: a path inside a sandbox is absolute, such as ${id}:/workspace/${path}`);
  }
  return { kind: "sandbox", id, path };
}
