import type { Config } from "../config/config.ts";
import { Forbidden } from "../ports/errors.ts";
import { hostname, isLoopback, publicHost } from "./host-name.ts";

interface Guarded {
  headers: {
    host?: string | undefined;
    origin?: string | undefined;
    "sec-fetch-site"?: string | string[] | undefined;
  };
  /** The address the connection arrived at. */
  localAddress: string | undefined;
}

/**
 * Without keys, a page from anywhere could command and read a service on localhost through the user's browser: by its
 * name made to point here (Host), across origins (Origin), or by an element that sends no Origin (Sec-Fetch-Site).
 * docs/security.md, Browsers.
 */
export class BrowserGuard {
  readonly #publicHost: string;
  readonly #origins: ReadonlySet<string>;

  constructor(server: Pick<Config["server"], "publicUrl" | "corsAllowedOrigins">) {
    this.#publicHost = publicHost(server);
    const own = URL.canParse(server.publicUrl) ? [new URL(server.publicUrl).origin] : [];
    this.#origins = new Set([...server.corsAllowedOrigins.filter((origin) => origin !== "*"), ...own]);
  }

  /** @throws Forbidden for a foreign Host, a foreign Origin, and what another site's page asks for without saying which. */
  check(request: Guarded): void {
    const { host, origin, "sec-fetch-site": site } = request.headers;
    if (host !== undefined && !this.#knowsHost(hostname(host), request.localAddress))
      throw new Forbidden(
        `the host ${JSON.stringify(host.slice(0, 100))} is not this service's; ${wayOut(hostname(host))}, or turn auth on`,
      );
    if (origin !== undefined) {
      if (this.knowsOrigin(origin, host)) return;
      throw new Forbidden(
        `pages of ${JSON.stringify(origin.slice(0, 100))} may not call this service; list it in server.cors_allowed_origins, or turn auth on`,
      );
    }
    // Ports do not tell sites apart: to a browser a forwarded port of a sandbox is the same site.
    if (site === "cross-site" || site === "same-site")
      throw new Forbidden("pages of other origins may not reach this service; open its address directly");
  }

  /**
   * Whether pages of an origin may call the service at a host: those listed and the service's own. Not those of another
   * port of this machine, to which `alcove forward` may have led a sandbox, nor of another name or address with the same
   * port, where something else may listen; nor of names below `localhost`, where previews are.
   */
  knowsOrigin(origin: string, host: string | undefined): boolean {
    if (this.#origins.has(origin)) return true;
    if (host === undefined || origin !== `http://${host.toLowerCase()}`) return false;
    const name = hostname(host);
    return isLoopback(name) && !name.endsWith(".localhost");
  }

  #knowsHost(host: string, localAddress: string | undefined): boolean {
    if (isLoopback(host) || (host !== "" && host === this.#publicHost)) return true;
    // An address cannot be made to point elsewhere, as a name can.
    return localAddress !== undefined && host === localAddress.replace(/^::ffff:/, "");
  }
}

/** @returns what makes the service know a host. */
function wayOut(host: string): string {
  const domain = /^\d+-sb-[a-z0-9]+\.(.+)$/.exec(host)?.[1];
  return domain === undefined
    ? "set server.public_url to its URL"
    : `set server.preview_domain to ${JSON.stringify(domain.slice(0, 100))} for previews below it`;
}
