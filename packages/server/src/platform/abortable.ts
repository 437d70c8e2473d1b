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

/**
 * Aborts `controller` with the reason of `signal`, for as long as it is not disposed. What `AbortSignal.any` makes is held by weak
 * references and a finalizer, which the collector deals with one by one.
 */
export function forwardAbort(signal: AbortSignal, controller: AbortController): Disposable {
  const onAbort = () => controller.abort(signal.reason);
  if (signal.aborted) onAbort();
  else signal.addEventListener("abort", onAbort, { once: true });
  return { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
}
