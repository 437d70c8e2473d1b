// One step of the set-up that may take a while: says what it does and how far it is. Plain JavaScript, Node 18 and up.
import { spawn } from "node:child_process";
import { accessSync, constants } from "node:fs";
import path from "node:path";

const refreshMs = 120;
const lineEveryMs = 10_000;
const frames = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const keptOutput = 64 * 1024;

/** Says something on standard error, where it does not mix with what commands print. */
export function say(text) {
  process.stderr.write(`alcove: ${text}\n`);
}

/**
 * Runs a program as one step. On a terminal a line with the time and the program's last words is kept current,
 * elsewhere a line is written at the start, every ten seconds and at the end. What the program said is shown when it
 * fails.
 * @returns whether it succeeded.
 */
export async function runStep(title, command, args, options = {}) {
  const startedAt = Date.now();
  const seconds = () => `${((Date.now() - startedAt) / 1000).toFixed(1)} s`;
  const live = process.stderr.isTTY === true;
  let output = "";
  let frame = 0;
  if (!live) say(`${title} …`);
  const timer = setInterval(
    () => {
      const last = lastLine(output);
      if (!live) return say(`${title}: ${seconds()} so far${last === "" ? "" : `; ${last}`}`);
      frame = (frame + 1) % frames.length;
      const line = `${frames[frame]} ${title}  ${seconds()}  ${last}`;
      process.stderr.write(`\r\x1b[2K${line.slice(0, Math.max(20, (process.stderr.columns || 80) - 1))}`);
    },
    live ? refreshMs : lineEveryMs,
  );
  const result = await new Promise((resolve) => {
    const child = spawn(command, args, {
      cwd: options.cwd,
      env: { ...process.env, ...options.env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    const keep = (chunk) => {
      output = (output + String(chunk)).slice(-keptOutput);
    };
    child.stdout.on("data", keep);
    child.stderr.on("data", keep);
    child.once("error", (error) => resolve({ ok: false, why: error.message }));
    child.once("close", (code, signal) =>
      resolve({ ok: code === 0, why: signal ? `ended by ${signal}` : `exit code ${code}` }),
    );
  });
  clearInterval(timer);
  if (live) process.stderr.write("\r\x1b[2K");
  if (result.ok) {
    say(`${title}: done in ${seconds()}`);
    return true;
  }
  say(`${title}: FAILED after ${seconds()} (${result.why}): ${command} ${args.join(" ")}`);
  const shown = output.trimEnd();
  if (shown !== "") process.stderr.write(`${shown.split("\n").slice(-25).join("\n")}\n`);
  return false;
}

function lastLine(output) {
  const lines = output.split(/[\r\n]+/).filter((line) => line.trim() !== "");
  return (lines[lines.length - 1] ?? "").replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "").trim();
}

/** @returns the path of a program, or undefined when there is none on the PATH. */
export function findProgram(name) {
  for (const folder of (process.env.PATH ?? "").split(path.delimiter)) {
    if (folder === "") continue;
    const file = path.join(folder, name);
    try {
      accessSync(file, constants.X_OK);
      return file;
    } catch {
      // Not in this folder.
    }
  }
  return undefined;
}
