/**
 * Puts the terminal of standard input into raw mode until disposed. It is put back on every way out: a return, an
 * exception, `process.exit`, a signal that ends the process.
 */
export function rawMode(): Disposable {
  const { stdin } = process;
  const restore = () => {
    stdin.setRawMode(false);
  };
  const leave = (signal: NodeJS.Signals) => {
    restore();
    process.removeListener(signal, leave);
    process.kill(process.pid, signal);
  };
  const endings = ["SIGTERM", "SIGHUP", "SIGQUIT"] as const;
  stdin.setRawMode(true);
  process.once("exit", restore);
  for (const signal of endings) process.on(signal, leave);
  return {
    [Symbol.dispose]() {
      restore();
      process.removeListener("exit", restore);
      for (const signal of endings) process.removeListener(signal, leave);
    },
  };
}
