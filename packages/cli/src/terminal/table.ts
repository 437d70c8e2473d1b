import { stripVTControlCharacters } from "node:util";
import { printableLine } from "./printable.ts";

/** Left-aligned columns with two spaces between them; no space at a line's end. */
export function table(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [header, ...rows].map((row) => row.map(printableLine));
  const widths = header.map((_, column) => Math.max(...lines.map((line) => width(line[column] ?? ""))));
  return lines
    .map((line) =>
      line
        .map((cell, column) => cell + " ".repeat((widths[column] ?? 0) - width(cell)))
        .join("  ")
        .trimEnd(),
    )
    .map((line) => `${line}\n`)
    .join("");
}

/** Columns a text takes on a terminal, near enough: wide East Asian characters and emoji take two. */
function width(text: string): number {
  let columns = 0;
  for (const character of stripVTControlCharacters(text)) {
    columns += /\p{Mn}/u.test(character)
      ? 0
      : /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u.test(
            character,
          )
        ? 2
        : 1;
  }
  return columns;
}
