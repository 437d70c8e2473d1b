/** An agent loop: a model says what to do, a sandbox does it, the model sees what came of it. */
import { AlcoveClient, AlcoveError } from "@alcove/sdk";

type Said = { tool: string; input: Record<string, string> } | { answer: string };
interface Message {
  role: "user" | "assistant";
  content: string;
}

const task = "Write /workspace/sum.sh, which prints the sum of the numbers in /workspace/numbers.txt.";

/** What the model may do. Real ones take descriptions of this shape. */
const text = { type: "string" };
export const tools = [
  {
    name: "run",
    description: "Runs a shell command in the sandbox, in /workspace.",
    input_schema: { type: "object", properties: { command: text }, required: ["command"] },
  },
  {
    name: "write",
    description: "Writes a file in the sandbox.",
    input_schema: {
      type: "object",
      properties: { path: text, content: text },
      required: ["path", "content"],
    },
  },
];

/** Scripted: what a real model would say here. Yours is asked with `messages` and `tools`, and answers in one of these two forms. */
async function model(messages: readonly Message[]): Promise<Said> {
  const last = messages.at(-1)?.content ?? "";
  const write = (content: string) => ({ tool: "write", input: { path: "/workspace/sum.sh", content } });
  if (messages.length === 1)
    return write("cat numbers.txt | while read n; do total=$((total + n)); done\necho $((total))\n");
  if (last.includes("written")) return { tool: "run", input: { command: "sh sum.sh" } };
  const { stdout } = JSON.parse(last) as { stdout: string };
  // The loop ran in a subshell, and its total is gone with it.
  if (stdout === "0\n")
    return write("while read n; do total=$((total + n)); done < numbers.txt\necho $((total))\n");
  return { answer: `sum.sh prints ${stdout.trim()}` };
}

/** Does what the model asked for. Whatever comes of it is for the model to read, refusals and time-outs too. */
async function use(sandbox: string, { tool, input }: { tool: string; input: Record<string, string> }) {
  try {
    if (tool === "run") {
      // A command that does not end is ended, with all it started.
      const done = await alcove.exec(sandbox, { command: input.command ?? "", timeout: "60s" });
      // A model reads the end of a long output at most, without half of a character.
      const [stdout, stderr] = [done.stdout, done.stderr].map((text) => text.slice(-4000).toWellFormed());
      return JSON.stringify({ exit_code: done.exit_code, reason: done.reason, stdout, stderr });
    }
    if (tool === "write") {
      await alcove.files.write(sandbox, input.path ?? "", Buffer.from(input.content ?? ""));
      return JSON.stringify({ status: "written" });
    }
    return JSON.stringify({ message: `there is no tool ${tool}` });
  } catch (error) {
    if (error instanceof AlcoveError) return JSON.stringify(error.details);
    throw error;
  }
}

const { ALCOVE_URL: url = "http://127.0.0.1:7423", ALCOVE_API_KEY: apiKey } = process.env;
using alcove = new AlcoveClient({ url, ...(apiKey && { apiKey }) });
// It ends by itself after ten minutes, should this program be killed before it can end it.
const { id } = await alcove.spawn({ ttl: "10m", metadata: { for: "getting started" } });
try {
  await alcove.files.write(id, "/workspace/numbers.txt", Buffer.from("10\n20\n12\n"));
  const messages: Message[] = [{ role: "user", content: task }];
  let answer: string | undefined;
  for (let step = 0; step < 20 && answer === undefined; step++) {
    const said = await model(messages);
    if ("answer" in said) {
      answer = said.answer;
    } else {
      console.log(`${said.tool}: ${JSON.stringify(said.input)}`);
      const result = await use(id, said);
      console.log(`  -> ${result}`);
      messages.push({ role: "assistant", content: JSON.stringify(said) }, { role: "user", content: result });
    }
  }
  console.log(answer === undefined ? "it did not come to an answer in 20 steps" : `answer: ${answer}`);
} finally {
  await alcove.destroy(id);
}
