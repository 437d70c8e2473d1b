import { type CommandNode, parse, type ScriptNode, type WordNode } from "just-bash";

const shells = new Set(["sh", "/bin/sh", "/usr/bin/sh", "bash", "/bin/bash", "/usr/bin/bash"]);

/** Programs that read standard input, and how many operands they take before they read files instead. */
const stdinReaders = new Map<string, number>([
  ...[
    "cat",
    "head",
    "tail",
    "wc",
    "sort",
    "uniq",
    "tac",
    "rev",
    "nl",
    "od",
    "fold",
    "expand",
    "unexpand",
  ].map((name) => [name, 0] as const),
  ...["base64", "md5sum", "sha1sum", "sha256sum", "strings", "column", "gzip", "gunzip", "sh", "bash"].map(
    (name) => [name, 0] as const,
  ),
  ...["grep", "egrep", "fgrep", "sed", "awk", "jq", "cut"].map((name) => [name, 1] as const),
  ...["tr", "tee", "read", "mapfile", "xargs", "paste", "split", "tar"].map(
    (name) => [name, Number.POSITIVE_INFINITY] as const,
  ),
]);

/** @returns the script a command amounts to: that of `sh -c SCRIPT [NAME ARG…]`, or the arguments, quoted. */
export function scriptOf(argv: readonly string[]): string {
  const [program = "", flag, script, , ...rest] = argv;
  if (shells.has(program) && flag === "-c" && script !== undefined)
    return rest.length === 0 ? script : `set -- ${rest.map(quote).join(" ")}\n${script}`;
  return argv.map(quote).join(" ");
}

/** The program a command starts directly, when it is no shell with a script. */
export function directProgram(argv: readonly string[]): string | undefined {
  const [program = "", flag] = argv;
  return shells.has(program) && flag === "-c" ? undefined : program;
}

function quote(text: string): string {
  return /^[\w./:=@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * Whether a script can read its standard input. The simulated shell takes standard input as a whole, so a script that
 * reads it starts when it is closed; every other one starts at once.
 */
export function readsStdin(script: string): boolean {
  let tree: ScriptNode;
  try {
    tree = parse(script);
  } catch {
    // A script that cannot be parsed fails when it runs; it reads nothing.
    return false;
  }
  return visit(tree);
}

function visit(node: unknown): boolean {
  if (Array.isArray(node)) return node.some(visit);
  if (typeof node !== "object" || node === null) return false;
  if ("type" in node && node.type === "Pipeline" && "commands" in node && Array.isArray(node.commands))
    return visit(node.commands[0]);
  if ("type" in node && node.type === "SimpleCommand") return commandReads(node as CommandNode);
  return Object.values(node).some(visit);
}

function commandReads(node: CommandNode): boolean {
  if (node.type !== "SimpleCommand") return false;
  if (node.redirections.some((each) => each.operator.startsWith("<"))) return false;
  const operands = stdinReaders.get(literal(node.name).split("/").pop() ?? "");
  if (operands === undefined) return visit(node.args);
  const words = node.args.map(literal);
  return words.includes("-") || words.filter((word) => !word.startsWith("-")).length <= operands;
}

/** The text of a word without expansions; a word with them counts as some text. */
function literal(word: WordNode | null): string {
  if (word === null) return "";
  return word.parts
    .map((part) => ("value" in part && typeof part.value === "string" ? part.value : "x"))
    .join("");
}
