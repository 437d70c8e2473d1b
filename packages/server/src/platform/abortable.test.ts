import { expect, test } from "vitest";
import { forwardAbort } from "./abortable.ts";

test("what a signal aborts with is passed on, also when it has happened, and not once that is over", () => {
  const [source, target] = [new AbortController(), new AbortController()];
  {
    using _forwarding = forwardAbort(source.signal, target);
    source.abort("first");
    expect(target.signal.reason).toBe("first");
  }
  const late = new AbortController();
  using _late = forwardAbort(source.signal, late);
  expect(late.signal.reason).toBe("first");
  const [ended, kept] = [new AbortController(), new AbortController()];
  forwardAbort(ended.signal, kept)[Symbol.dispose]();
  ended.abort("after");
  expect(kept.signal.aborted).toBe(false);
});
