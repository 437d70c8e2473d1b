/** Characters a POSIX shell leaves alone outside of quotes. */
const plain = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** Quotes one word so that a POSIX shell reads it back unchanged. */
export function quoteWord(word: string): string {
  return plain.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/**
 * What runs for a command. In mode `shell` the command is a line for `/bin/sh -c` with the quoted arguments appended;
 * in mode `argv` it is a program and the arguments are its own. docs/api/exec.md.
 */
export function commandArgv(options: {
  command: string;
  args: readonly string[];
  mode: "shell" | "argv";
}): string[] {
  if (options.mode === "argv") return [options.command, ...options.args];
  return ["/bin/sh", "-c", [options.command, ...options.args.map(quoteWord)].join(" ")];
}
