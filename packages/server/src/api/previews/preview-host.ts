import type { PreviewTarget } from "../../core/previews/preview-links.ts";
import { hostname, isLoopback, publicHost } from "../host-name.ts";

/** What a Host header means: a preview, something that has the form of one and is none, or another host. */
export type PreviewHost =
  | { kind: "preview"; target: PreviewTarget }
  | { kind: "malformed" }
  | { kind: "other" };

/** A name that begins as previews do. */
const form = /^(\d+)-([^.]+)$/;
const sandboxId = /^sb-[a-z0-9]{1,32}$/;

/**
 * Reads `<port>-<sandbox id>.<domain>`. What is below the domain of previews is never the API's, but for the name that it was
 * given (`server.public_url`). `localhost` is always a domain of previews too, because browsers resolve every name below it by
 * themselves; there, only what begins like a preview is none of the API's.
 */
export function readPreviewHost(
  host: string | undefined,
  server: { publicUrl: string; previewDomain: string },
): PreviewHost {
  if (host === undefined) return { kind: "other" };
  const name = hostname(host);
  const own = hostname(server.previewDomain);
  for (const domain of new Set([own, "localhost"])) {
    if (domain === "" || !name.endsWith(`.${domain}`)) continue;
    const [, port = "", id = ""] = form.exec(name.slice(0, -domain.length - 1)) ?? [];
    if (port === "") {
      if (isLoopback(name) || name === publicHost(server)) continue;
      return { kind: "malformed" };
    }
    const number = Number(port);
    const fits = number >= 1 && number <= 65_535 && String(number) === port;
    return fits && sandboxId.test(id)
      ? { kind: "preview", target: { sandboxId: id, port: number } }
      : { kind: "malformed" };
  }
  return { kind: "other" };
}
