/** The first Ctrl-C is the command's, the second is ours. */
export function forwardSignals(to: {
  send: (signal: NodeJS.Signals) => void;
  leave: (why: string) => void;
}): Disposable {
  const forwarded = new Set<string>();
  const forward = (signal: NodeJS.Signals) => {
    if (forwarded.has(signal)) {
      to.leave("it is ended unless somebody picks it up within the service's exec.disconnect_grace");
      return;
    }
    forwarded.add(signal);
    to.send(signal);
  };
  process.on("SIGINT", forward);
  process.on("SIGTERM", forward);
  return {
    [Symbol.dispose]() {
      process.removeListener("SIGINT", forward);
      process.removeListener("SIGTERM", forward);
    },
  };
}
