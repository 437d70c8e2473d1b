import type { Config } from "../config/config.ts";
import { Forbidden } from "../ports/errors.ts";

interface Guarded {
  method: string;
  headers: { host?: string | undefined; origin?: string | undefined; upgrade?: string | undefined };
  /** The address the connection arrived at. */
  localAddress: string | undefined;
}

/**
 * Without keys, a page from anywhere could command a service on localhost through the user's browser: by its name made
 * to point here (Host), or across origins (Origin). DESIGN §6, a browser's reach.
 */
export class BrowserGuard {
  readonly #hosts: readonly string[];
  readonly #previewDomain: string;
  readonly #origins: ReadonlySet<string>;

  constructor(server: Pick<Config["server"], "publicUrl" | "previewDomain" | "corsAllowedOrigins">) {
    const publicHost = URL.canParse(server.publicUrl) ? new URL(server.publicUrl).hostname : "";
    this.#previewDomain = hostname(server.previewDomain);
    this.#hosts = [publicHost, this.#previewDomain].filter((host) => host !== "");
    const own = URL.canParse(server.publicUrl) ? [new URL(server.publicUrl).origin] : [];
    this.#origins = new Set([...server.corsAllowedOrigins.filter((origin) => origin !== "*"), ...own]);
  }

  /** @throws Forbidden for a foreign Host, and for a change or an upgrade asked for by a foreign Origin. */
  check(request: Guarded): void {
    const { host, origin, upgrade } = request.headers;
    if (host !== undefined && !this.#knowsHost(hostname(host), request.localAddress))
      throw new Forbidden(
        `the host ${JSON.stringify(host.slice(0, 100))} is not this service's; set server.public_url to its URL, or turn auth on`,
      );
    if (origin === undefined) return;
    const reads = ["GET", "HEAD", "OPTIONS"].includes(request.method) && upgrade === undefined;
    if (!reads && !this.#knowsOrigin(origin))
      throw new Forbidden(
        `pages of ${JSON.stringify(origin.slice(0, 100))} may not change anything here; list it in server.cors_allowed_origins, or turn auth on`,
      );
  }

  #knowsHost(host: string, localAddress: string | undefined): boolean {
    if (isLoopback(host) || this.#hosts.includes(host)) return true;
    if (this.#previewDomain !== "" && host.endsWith(`.${this.#previewDomain}`)) return true;
    // An address cannot be made to point elsewhere, as a name can.
    return localAddress !== undefined && host === localAddress.replace(/^::ffff:/, "");
  }

  #knowsOrigin(origin: string): boolean {
    if (this.#origins.has(origin)) return true;
    return URL.canParse(origin) && isLoopback(hostname(new URL(origin).host));
  }
}

/** The name in a Host header, without port and brackets, lower case. */
function hostname(host: string): string {
  const name = host.startsWith("[")
    ? host.slice(1, host.indexOf("]") === -1 ? undefined : host.indexOf("]"))
    : host.split(":", 1)[0];
  return (name ?? "").toLowerCase().replace(/\.$/, "");
}

function isLoopback(host: string): boolean {
  return (
    host === "localhost" ||
    host.endsWith(".localhost") ||
    host === "::1" ||
    /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(host)
  );
}
