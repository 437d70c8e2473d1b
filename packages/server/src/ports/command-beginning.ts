/** How much of a command line lists tell, in characters; a record of its own has more. */
export const listedCommandLength = 4_096;
/** What an argument counts beside its text, as in the agent. */
const argumentLength = 24;

interface CommandLine {
  command: string;
  args: readonly unknown[];
}

/** @returns the beginning of a text, as a text of its own: part of one would keep the whole in memory. */
export function beginningOf(text: string, length: number): string {
  return text.length <= length ? text : `${Buffer.from(text.slice(0, length)).toString()}…`;
}

/** The command and its arguments, as much as fits `length`; what was cut ends in an ellipsis. */
export function commandBeginning(line: CommandLine, length: number): { command: string; args: string[] } {
  const command = beginningOf(line.command, length);
  const args: string[] = [];
  let left = length - command.length - argumentLength;
  for (const arg of line.args) {
    if (left <= 0) break;
    const text = beginningOf(String(arg), left);
    left -= text.length + argumentLength;
    args.push(text);
  }
  return { command, args };
}
