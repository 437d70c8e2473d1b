import type { IncomingMessage } from "node:http";
import type { PreviewTarget } from "../../core/previews/preview-links.ts";
import { BadRequest } from "../../ports/errors.ts";
import { hostname, isLoopback } from "../host-name.ts";
import type { Clients } from "./clients.ts";

/**
 * The address of a preview as who asks would reach it: by the scheme and port of `server.public_url`, else by those of this
 * very request, which has come the same way.
 * @throws BadRequest where no address of a preview leads here, saying what to configure.
 */
export function previewUrl(
  request: IncomingMessage,
  target: PreviewTarget,
  options: { clients: Clients; server: { publicUrl: string; previewDomain: string } },
): URL {
  const { clients, server } = options;
  const domain = hostname(server.previewDomain);
  if (domain === "")
    throw new BadRequest(
      "server.preview_domain is empty: previews have no address; set it to a domain whose names lead here",
    );
  const { host = "" } = request.headers;
  const local = domain === "localhost" || domain.endsWith(".localhost");
  if (local && !isLoopback(hostname(host)))
    throw new BadRequest(
      `server.preview_domain is ${domain}, whose names lead every browser to its own machine, and this service was asked as ${JSON.stringify(host.slice(0, 100))}: set server.preview_domain to a domain whose names (*.<domain>) lead here`,
    );
  const given = local ? null : URL.parse(server.publicUrl);
  const scheme = given?.protocol ?? `${clients.of(request, domain).proto}:`;
  const port = given === null ? portOf(host) : given.port;
  return new URL(`${scheme}//${target.port}-${target.sandboxId}.${domain}${port === "" ? "" : `:${port}`}/`);
}

/** The port in a Host header; empty: the scheme's own. */
function portOf(host: string): string {
  return /:(\d{1,5})$/.exec(host)?.[1] ?? "";
}
