// Hands this process over to another program. Plain JavaScript, Node 18 and up.
import { spawn } from "node:child_process";

const forwarded = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"];

/**
 * Becomes the program where this Node can (22.15 and up); otherwise runs it in the same process group, passes signals
 * on and ends as it ends. Never returns.
 */
export async function become(command, args, env = process.env) {
  if (typeof process.execve === "function" && process.platform === "linux") {
    process.execve(command, [command, ...args], env);
  }
  const child = spawn(command, args, { stdio: "inherit", env });
  for (const signal of forwarded) process.on(signal, () => child.kill(signal));
  const { code, signal } = await new Promise((resolve) => {
    child.once("error", (error) => {
      process.stderr.write(`alcove: cannot run ${command}: ${error.message}\n`);
      resolve({ code: 126, signal: null });
    });
    child.once("exit", (exitCode, exitSignal) => resolve({ code: exitCode, signal: exitSignal }));
  });
  if (signal !== null) {
    for (const name of forwarded) process.removeAllListeners(name);
    process.kill(process.pid, signal);
  }
  process.exit(code ?? 1);
}
