/** As one word of a shell of the family of sh, whatever is in it. */
export function quoted(text: string): string {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** As one word of fish, where a backslash counts in single quotes too. */
export function quotedForFish(text: string): string {
  return `'${text.replaceAll(/['\\]/g, String.raw`\$&`)}'`;
}
