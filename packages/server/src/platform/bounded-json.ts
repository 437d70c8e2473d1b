export interface JsonBounds {
  /** Objects and lists within one another. */
  maxDepth: number;
  /** Values, roughly: what commas, colons and brackets separate. */
  maxParts: number;
}

const quote = 0x22;
const backslash = 0x5c;
const comma = 0x2c;
const colon = 0x3a;
const openings = new Set([0x5b, 0x7b]);
const closings = new Set([0x5d, 0x7d]);

/**
 * Looks at a text before it is parsed: parsing, and walking through what was parsed, costs by the number of values and
 * by their nesting, of which some megabytes can hold millions. Long strings are passed over at the speed of a search.
 * @returns what is too much of it, undefined when nothing is. Says nothing about whether the text is JSON.
 */
export function beyondBounds(text: string, { maxDepth, maxParts }: JsonBounds): string | undefined {
  // Every part takes a character.
  if (text.length <= maxDepth) return undefined;
  let depth = 0;
  let parts = 0;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === quote) {
      at = endOfString(text, at + 1);
    } else if (code === comma || code === colon) {
      if (++parts > maxParts) return `it holds more than ${maxParts} values`;
    } else if (openings.has(code)) {
      if (++depth > maxDepth) return `it is nested more than ${maxDepth} deep`;
      if (++parts > maxParts) return `it holds more than ${maxParts} values`;
    } else if (closings.has(code)) {
      depth--;
    }
  }
  return undefined;
}

/** @returns where the closing quote is; the length of the text when there is none. */
function endOfString(text: string, from: number): number {
  for (let end = text.indexOf('"', from); end !== -1; end = text.indexOf('"', end + 1)) {
    let before = end;
    while (before > from && text.charCodeAt(before - 1) === backslash) before--;
    if ((end - before) % 2 === 0) return end;
  }
  return text.length;
}
