import { validateHeaderName, validateHeaderValue } from "node:http";

/**
 * Reads `Name: value`, one a line; empty lines are passed over.
 * @throws Error naming the line by its number, never what it holds.
 */
export function parseOtlpHeaders(text: string): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const [index, line] of text.split(/\r?\n/).entries()) {
    if (line.trim() === "") continue;
    const colon = line.indexOf(":");
    const name = line.slice(0, Math.max(colon, 0)).trim().toLowerCase();
    const value = line.slice(colon + 1).trim();
    if (colon === -1 || value === "" || !isHeader(name, value))
      throw new Error(
        `line ${index + 1} is no header: expected Name: value, such as Authorization: Bearer KEY`,
      );
    headers[name] = value;
  }
  return headers;
}

function isHeader(name: string, value: string): boolean {
  try {
    validateHeaderName(name);
    validateHeaderValue(name, value);
    return true;
  } catch {
    return false;
  }
}
