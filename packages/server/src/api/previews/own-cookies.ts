/** Of the cookie that a link is traded for: over TLS bound to its host by the prefix, which nothing else can set. */
export const cookieNames = { https: "__Host-alcove-preview", http: "alcove-preview" } as const;

const own: ReadonlySet<string> = new Set(Object.values(cookieNames));
/** Others below the domain can set cookies for all of it, so that there may be several of a name; but not of the one with the prefix. */
const mostPasses = 8;

/** The passes that a request comes with. */
export function passesOf(cookies: string | undefined): string[] {
  const found: string[] = [];
  const counts = new Map<string, number>();
  for (const cookie of (cookies ?? "").split(";")) {
    const [before = "", value = ""] = cookie.split("=", 2);
    const name = before.trim();
    const count = counts.get(name) ?? 0;
    if (!own.has(name) || count >= mostPasses) continue;
    counts.set(name, count + 1);
    found.push(value.trim());
  }
  return found;
}

/** A Cookie header without the service's own; undefined when nothing is left. */
export function withoutOwn(cookies: string): string | undefined {
  const left = cookies.split(";").filter((cookie) => !own.has(nameOf(cookie)));
  return left.length === 0 ? undefined : left.join(";").trim();
}

/**
 * What a program may set: never the service's own cookie, and for its own host alone. A Domain would send it to every
 * sandbox below the same domain, and let one write what another reads. Nor one without a name: what comes back of it is its
 * value alone, which may read as the service's own.
 */
export function confinedSetCookie(value: string): string | undefined {
  const [cookie = "", ...attributes] = value.split(";");
  const name = cookie.includes("=") ? nameOf(cookie) : "";
  if (name === "" || own.has(name)) return undefined;
  const kept = attributes.filter((attribute) => !/^\s*domain\s*(=|$)/i.test(attribute));
  return [cookie, ...kept].join(";");
}

export function setCookie(options: {
  proto: "http" | "https";
  pass: string;
  expiresAt: Date;
  now: Date;
}): string {
  const { proto, pass, expiresAt, now } = options;
  const maxAge = Math.max(Math.floor((expiresAt.getTime() - now.getTime()) / 1_000), 0);
  const common = `${cookieNames[proto]}=${pass}; Path=/; Max-Age=${maxAge}; HttpOnly`;
  // In a frame on another site's page too, but kept apart for each such site, so that no other can use it.
  return proto === "https" ? `${common}; Secure; SameSite=None; Partitioned` : `${common}; SameSite=Lax`;
}

function nameOf(cookie: string): string {
  return (cookie.split("=", 1)[0] ?? "").trim();
}
