import type { PreviewTarget } from "../../core/previews/preview-links.ts";
import { hostname } from "../host-name.ts";

/** What a Host header means: a preview, something that has the form of one and is none, or another host. */
export type PreviewHost =
  | { kind: "preview"; target: PreviewTarget }
  | { kind: "malformed" }
  | { kind: "other" };

/** A name that begins as previews do; no other host of this service does. */
const form = /^(\d+)-([^.]+)$/;
const sandboxId = /^sb-[a-z0-9]{1,32}$/;

/**
 * Reads `<port>-<sandbox id>.<domain>`. What begins like a preview below one of its domains is never the API's: its pages
 * are foreign to it. `localhost` is always such a domain, because browsers resolve every name below it by themselves.
 */
export function readPreviewHost(host: string | undefined, previewDomain: string): PreviewHost {
  if (host === undefined) return { kind: "other" };
  const name = hostname(host);
  for (const domain of new Set([hostname(previewDomain), "localhost"])) {
    if (domain === "" || !name.endsWith(`.${domain}`)) continue;
    const [, port = "", id = ""] = form.exec(name.slice(0, -domain.length - 1)) ?? [];
    if (port === "") continue;
    const number = Number(port);
    const fits = number >= 1 && number <= 65_535 && String(number) === port;
    return fits && sandboxId.test(id)
      ? { kind: "preview", target: { sandboxId: id, port: number } }
      : { kind: "malformed" };
  }
  return { kind: "other" };
}
