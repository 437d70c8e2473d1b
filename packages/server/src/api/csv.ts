/**
 * RFC 4180: lines end with CR LF, quotes are doubled. A text that a spreadsheet would take for a formula gets an
 * apostrophe in front, because callers choose some of these texts; numbers stay numbers.
 */
export function csv(header: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  return [header, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

function cell(value: string | number): string {
  if (typeof value === "number") return String(value);
  const harmless = /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}
