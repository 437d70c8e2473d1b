import type { CommandNode, PipelineNode, ScriptNode, StatementNode, WordNode } from "just-bash";
import { streamPaths } from "./shell-messages.ts";

type SimpleCommand = Extract<CommandNode, { type: "SimpleCommand" }>;
type Redirection = SimpleCommand["redirections"][number];
type Compound = Exclude<CommandNode, SimpleCommand | { type: "FunctionDef" }>;

/** Programs that read standard input, and how many operands they take before they read files instead. */
const readers = new Map<string, number>([
  ..."cat head tail wc sort uniq tac rev nl od fold expand unexpand base64 md5sum sha1sum sha256sum strings column gzip gunzip zcat sh bash"
    .split(" ")
    .map((name) => [name, 0] as const),
  ..."grep egrep fgrep sed awk jq yq cut rg".split(" ").map((name) => [name, 1] as const),
  ..."tr tee mapfile readarray xargs paste split tar"
    .split(" ")
    .map((name) => [name, Number.POSITIVE_INFINITY] as const),
]);

/** Commands that write nothing unless they fail: not worth the calls that a redirection costs, in a loop above all. */
const silent = new Set(
  "[ test true false : cd export local unset shift set return exit break continue read sleep trap wait".split(
    " ",
  ),
);

type Reading = "nothing" | "line" | "all";

/**
 * Makes a script send its output while it runs and read its input when it needs it. The simulated shell collects what a
 * statement writes until it has ended and takes input as a whole; so each pipeline that stands alone, in loops and
 * branches too, gets redirections of its own to and from the files that stand for the command's streams.
 */
export function rewrite(script: ScriptNode, options: { stdin: boolean }): ScriptNode {
  return { ...script, statements: statements(script.statements, options.stdin) };
}

function statements(list: StatementNode[], stdin: boolean): StatementNode[] {
  return list.map((statement) =>
    statement.deferredError !== undefined
      ? statement
      : { ...statement, pipelines: statement.pipelines.map((each) => pipeline(each, stdin)) },
  );
}

function pipeline(node: PipelineNode, stdin: boolean): PipelineNode {
  const [only] = node.commands;
  if (node.commands.length === 1 && only !== undefined && isOpen(only, stdin))
    return { ...node, commands: [descend(only, stdin)] };
  const last = node.commands.length - 1;
  return {
    ...node,
    commands: node.commands.map((command, index) =>
      redirected(command, [
        ...(stdin && index === 0 ? inputOf(command) : []),
        ...(isSilent(command)
          ? []
          : outputOf(command, { isLast: index === last, keepsStderr: node.pipeStderr?.[index] === true })),
      ]),
    ),
  };
}

/** Its own redirections come later and so win. Assignments alone and `exec`, which redirects the shell itself, stay as they are. */
function redirected(command: CommandNode, added: Redirection[]): CommandNode {
  if (command.type === "FunctionDef") return command;
  if (command.type === "SimpleCommand" && (command.name === null || literal(command.name) === "exec"))
    return command;
  return { ...command, redirections: [...added, ...command.redirections] };
}

function isSilent(command: CommandNode): boolean {
  return command.type === "SimpleCommand" && silent.has(literal(command.name));
}

function outputOf(command: CommandNode, options: { isLast: boolean; keepsStderr: boolean }): Redirection[] {
  const stdout = writesBytes(command) ? streamPaths.bytes : streamPaths.stdout;
  return [
    ...(options.isLast ? [redirection(1, ">>", stdout)] : []),
    ...(options.keepsStderr ? [] : [redirection(2, ">>", streamPaths.stderr)]),
  ];
}

/** A printf that spells bytes out, as in `printf '\\377'`: the shell hands them over as if they were characters. */
function writesBytes(command: CommandNode): boolean {
  if (command.type !== "SimpleCommand" || literal(command.name) !== "printf") return false;
  const words = command.args.map(literal).join(" ");
  return /\\(?:[0-3]?[0-7]{2}|x[0-9a-fA-F])/.test(words) && !/[^\0-\x7f]/.test(words);
}

function inputOf(command: CommandNode): Redirection[] {
  const reading = readingOf(command);
  if (reading === "nothing") return [];
  return [redirection(0, "<", reading === "line" ? streamPaths.line : streamPaths.stdin)];
}

/** Whether the parts of a command can be redirected one by one: a compound that redirects nothing and whose condition reads nothing. */
function isOpen(command: CommandNode, stdin: boolean): command is Compound {
  switch (command.type) {
    case "While":
    case "Until":
      return (
        command.redirections.length === 0 &&
        !(stdin && command.condition.some((each) => reads(each) !== "nothing"))
      );
    case "If":
      return (
        command.redirections.length === 0 &&
        !(
          stdin &&
          command.clauses.some((clause) => clause.condition.some((each) => reads(each) !== "nothing"))
        )
      );
    case "For":
    case "CStyleFor":
    case "Group":
    case "Case":
      return command.redirections.length === 0;
    default:
      return false;
  }
}

function descend(command: Compound, stdin: boolean): CommandNode {
  switch (command.type) {
    case "While":
    case "Until":
      return {
        ...command,
        condition: statements(command.condition, stdin),
        body: statements(command.body, stdin),
      };
    case "For":
    case "CStyleFor":
    case "Group":
      return { ...command, body: statements(command.body, stdin) };
    case "If":
      return {
        ...command,
        clauses: command.clauses.map((clause) => ({
          condition: statements(clause.condition, stdin),
          body: statements(clause.body, stdin),
        })),
        elseBody: command.elseBody === null ? null : statements(command.elseBody, stdin),
      };
    case "Case":
      return {
        ...command,
        items: command.items.map((item) => ({ ...item, body: statements(item.body, stdin) })),
      };
    default:
      return command;
  }
}

/** What a node reads of the standard input it is given. */
function reads(node: unknown): Reading {
  if (Array.isArray(node)) return node.reduce<Reading>((all, each) => more(all, reads(each)), "nothing");
  if (typeof node !== "object" || node === null) return "nothing";
  if ("type" in node && node.type === "Pipeline" && "commands" in node && Array.isArray(node.commands))
    return reads(node.commands[0]);
  if ("type" in node && node.type === "SimpleCommand") return readingOf(node as SimpleCommand);
  if ("type" in node && (node.type === "While" || node.type === "Until" || node.type === "For"))
    // A line each time round is more than one line.
    return reads(Object.values(node)) === "nothing" ? "nothing" : "all";
  return reads(Object.values(node));
}

function readingOf(command: CommandNode): Reading {
  if (command.type !== "SimpleCommand") return reads(command);
  if (command.redirections.some((each) => each.operator.startsWith("<"))) return "nothing";
  const name = literal(command.name).split("/").pop() ?? "";
  if (name === "read") return "line";
  const operands = readers.get(name);
  if (operands === undefined) return reads([command.args, command.assignments]);
  const words = command.args.map(literal);
  const isScript = (name === "sh" || name === "bash") && words.includes("-c");
  const reading =
    words.includes("-") || isScript || words.filter((word) => !word.startsWith("-")).length <= operands;
  return reading ? "all" : reads(command.args);
}

function more(one: Reading, other: Reading): Reading {
  if (one === "nothing") return other;
  // Two readers of a line each are served as one that reads all.
  return other === "nothing" ? one : "all";
}

function redirection(fd: number, operator: ">>" | "<", target: string): Redirection {
  return { type: "Redirection", fd, operator, target: word(target) };
}

function word(text: string): WordNode {
  return { type: "Word", parts: [{ type: "Literal", value: text }] };
}

/** The text of a word without expansions; a word with them counts as some text. */
function literal(node: WordNode | null): string {
  if (node === null) return "";
  return node.parts.map(literalPart).join("");
}

function literalPart(part: WordNode["parts"][number]): string {
  if ("value" in part && typeof part.value === "string") return part.value;
  return "pattern" in part && typeof part.pattern === "string" ? part.pattern : "x";
}
