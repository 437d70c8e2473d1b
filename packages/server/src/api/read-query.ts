import { isUtf8 } from "node:buffer";
import { parse } from "node:querystring";

/**
 * Reads a query. An empty value is a parameter not given, but for metadata. Bytes that are not UTF-8 become lone surrogates,
 * never a character that somebody could have meant: whoever checks a text tells by `isWellFormed()`.
 */
export function readQuery(text: string): Record<string, unknown> {
  if (text === "") return {};
  const query = parse(escapeBytes(text), "&", "=", { decodeURIComponent: decode });
  for (const [name, value] of Object.entries(query))
    if (value === "" && !name.startsWith("metadata.")) delete query[name];
  return query;
}

/** Clients that do not escape send bytes, which Node reads as one character each. */
function escapeBytes(text: string): string {
  return text.replaceAll(/[\x80-\xff]/g, (byte) => `%${byte.charCodeAt(0).toString(16)}`);
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    // A percent sign that escapes nothing means itself.
    const raw = text.replaceAll(/%([0-9a-f]{2})/gi, (_, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    );
    const bytes = Buffer.from(raw, "latin1");
    if (isUtf8(bytes)) return bytes.toString("utf8");
    return raw.replaceAll(/[\x80-\xff]/g, (byte) => String.fromCharCode(0xdc00 + byte.charCodeAt(0)));
  }
}
