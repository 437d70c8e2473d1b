import type { Config } from "./config.ts";

/** A key that says that others than this machine reach the service, with its value. */
export interface WayIn {
  key: "server.host" | "server.public_url" | "server.trusted_proxies";
  value: string | readonly string[];
}

/**
 * By which keys others than this machine reach the service; none: it is for this machine alone. To listen on loopback keeps
 * nobody out whom a proxy leads in, so what is set for a proxy counts as much as an address does. The domain of previews does not:
 * nothing below it is the API's, and without keys no other name is answered that is not this machine's.
 */
export function waysIn(server: Pick<Config["server"], "host" | "publicUrl" | "trustedProxies">): WayIn[] {
  const { host, publicUrl, trustedProxies } = server;
  const publicHost = URL.parse(publicUrl)?.hostname ?? "";
  const found: WayIn[] = [];
  if (host !== "" && !isLoopback(host)) found.push({ key: "server.host", value: host });
  if (publicHost !== "" && !leadsToItself(publicHost))
    found.push({ key: "server.public_url", value: publicUrl });
  if (trustedProxies.length > 0) found.push({ key: "server.trusted_proxies", value: trustedProxies });
  return found;
}

/** Whether an address reaches this machine only. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(host);
}

/** Whether a name of a URL leads everybody to the machine they ask on. */
function leadsToItself(name: string): boolean {
  const host = name
    .toLowerCase()
    .replace(/^\[(.*)\]$/, "$1")
    .replace(/\.$/, "");
  return isLoopback(host) || host.endsWith(".localhost");
}
