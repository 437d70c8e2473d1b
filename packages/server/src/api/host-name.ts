/** The name in a Host header, without port and brackets, lower case. */
export function hostname(host: string): string {
  const name = host.startsWith("[")
    ? host.slice(1, host.indexOf("]") === -1 ? undefined : host.indexOf("]"))
    : host.split(":", 1)[0];
  return (name ?? "").toLowerCase().replace(/\.$/, "");
}

/** A name or an address that leads to the machine it is asked on. */
export function isLoopback(host: string): boolean {
  return (
    host === "localhost" ||
    host.endsWith(".localhost") ||
    host === "::1" ||
    /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(host)
  );
}

/** The name in `server.public_url`; empty: there is none. */
export function publicHost({ publicUrl }: { publicUrl: string }): string {
  return hostname(URL.parse(publicUrl)?.host ?? "");
}
