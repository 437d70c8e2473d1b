/** The query parameter of a link. */
export const linkParameter = "alcove_preview";

/** Takes the link's pass out of a request target; the rest stays to the letter. */
export function splitLink(target: string): { path: string; pass: string | undefined } {
  const at = target.indexOf("?");
  if (at < 0) return { path: target, pass: undefined };
  const parts = target.slice(at + 1).split("&");
  const prefix = `${linkParameter}=`;
  const pass = parts.find((part) => part.startsWith(prefix))?.slice(prefix.length);
  if (pass === undefined) return { path: target, pass };
  const left = parts.filter((part) => !part.startsWith(prefix)).join("&");
  return { path: target.slice(0, at) + (left === "" ? "" : `?${left}`), pass };
}

/** A target as a Location on the same host: "//name" and "/\name" would name another. */
export function sameHost(target: string): string {
  return /^\/[/\\]/.test(target) ? `/.${target}` : target;
}
