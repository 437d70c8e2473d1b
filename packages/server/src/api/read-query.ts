import { isUtf8 } from "node:buffer";
import { parse } from "node:querystring";

const percent = 0x25;

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

/** Throws nothing to be caught here: a query may have thousands of parts that are no UTF-8. */
function decode(text: string): string {
  if (!text.includes("%")) return text;
  const bytes = unescaped(text);
  if (isUtf8(bytes)) return bytes.toString("utf8");
  const loneSurrogate = (byte: string) => String.fromCharCode(0xdc00 + byte.charCodeAt(0));
  return bytes.toString("latin1").replaceAll(/[\x80-\xff]/g, loneSurrogate);
}

/** @param text ASCII. A percent sign that escapes nothing means itself. */
function unescaped(text: string): Buffer {
  const bytes = Buffer.allocUnsafe(text.length);
  let length = 0;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    const byte = code === percent ? digit(text.charCodeAt(at + 1)) * 16 + digit(text.charCodeAt(at + 2)) : -1;
    bytes[length++] = byte >= 0 ? byte : code;
    if (byte >= 0) at += 2;
  }
  return bytes.subarray(0, length);
}

/** @returns what a hexadecimal digit stands for; something far below zero for what is none. */
function digit(code: number): number {
  if (code >= 0x30 && code <= 0x39) return code - 0x30;
  const lower = code | 0x20;
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x57 : -1_000;
}
