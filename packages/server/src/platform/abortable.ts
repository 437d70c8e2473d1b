/**
 * Waits for `promise`, but no longer than `signal` allows; what `promise` does goes on.
 * @throws the signal's reason when it aborts first.
 */
export function abortable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    if (signal.aborted) {
      // The outcome has no other listener here; whoever started the work deals with it.
      promise.catch(ignoreOutcome);
      reject(signal.reason);
      return;
    }
    const onAbort = () => reject(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
  });
}

/** For a promise whose outcome somebody else deals with. */
export const ignoreOutcome = (): undefined => undefined;
