import { BadRequest } from "../../ports/index.ts";

export type EngineAddress =
  | { kind: "unix"; path: string; text: string }
  | { kind: "tcp"; host: string; port: number; text: string };

const defaultTcpPort = 2375;
const defaultTlsPort = 2376;

/**
 * Reads `unix:///path` or `tcp://host:port`.
 * @param options.tls whether it is spoken to over TLS, which has another usual port.
 * @throws BadRequest for anything else, naming the config key.
 */
export function parseEngineAddress(text: string, options: { tls?: boolean } = {}): EngineAddress {
  if (text.startsWith("unix://")) {
    const path = text.slice("unix://".length);
    if (path.startsWith("/")) return { kind: "unix", path, text };
  }
  // Read as http, because a URL of another scheme may have neither host nor port checked.
  const url = /^(tcp|http):\/\//.test(text) ? URL.parse(text.replace(/^tcp:/, "http:")) : null;
  if (url !== null) {
    const host = url.hostname.replace(/^\[|\]$/g, "");
    if (host !== "")
      return {
        kind: "tcp",
        host,
        port:
          url.port === ""
            ? /:80\/*$/.test(text)
              ? 80
              : options.tls
                ? defaultTlsPort
                : defaultTcpPort
            : Number(url.port),
        text,
      };
  }
  throw new BadRequest(
    `providers.docker.socket ${JSON.stringify(text)} is neither unix:///path nor tcp://host:port; ` +
      "for an engine behind TLS set providers.docker.tls_dir too; behind ssh, forward its socket and name the forwarded one",
  );
}
