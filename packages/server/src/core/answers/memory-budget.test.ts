import { describe, expect, test } from "vitest";
import { TooLarge, Unavailable } from "../../ports/errors.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { AnswerBudget, mostAnswersWaiting } from "./answer-budget.ts";
import { BodyBudget, mostBodiesWaiting } from "./body-budget.ts";
import { refusals } from "./testing/budgets.ts";

const mib = 1024 * 1024;

const kinds = {
  answers: {
    make: (clock: FakeClock) => new AnswerBudget({ totalBytes: 8 * mib, waitMs: 10_000, clock }),
    most: mostAnswersWaiting,
  },
  bodies: {
    make: (clock: FakeClock) => new BodyBudget({ totalBytes: 8 * mib, waitMs: 10_000, clock, refusals }),
    most: mostBodiesWaiting,
  },
};

const never = () => new AbortController().signal;

describe.each(["answers", "bodies"] as const)("memory of %s:", (kind) => {
  function setUp() {
    const clock = new FakeClock();
    const { make, most } = kinds[kind];
    const budget = make(clock);
    const open = (principal = "") => {
      let release: () => void = () => undefined;
      const onHeld = (give: () => void) => {
        release = give;
      };
      const answer = budget.open(onHeld, { principal, owner: "" });
      return { answer, release: () => release() };
    };
    return { clock, budget, most, open };
  }

  test("small answers are free, larger ones are counted until they are released, once", () => {
    const { budget, open } = setUp();
    const { answer, release } = open();
    expect(answer.grow("a", 64 * 1024, never())).toBeUndefined();
    expect(budget.heldBytes).toBe(0);
    expect(answer.grow("a", mib, never())).toBeUndefined();
    expect(answer.grow("a", 2 * mib, never())).toBeUndefined();
    expect(budget.heldBytes).toBe(2 * mib);
    release();
    release();
    expect(budget.heldBytes).toBe(0);
  });

  test("what was asked for beforehand and is not used is there for others at once", async () => {
    const { budget, open } = setUp();
    const [first, second] = [open(), open()];
    first.answer.grow("a", 4 * mib, never());
    const waits = second.answer.grow("a", 2 * mib, never());
    first.answer.shrink(2 * mib);
    await waits;
    expect(budget.heldBytes).toBe(4 * mib);
    second.answer.shrink(100);
    second.answer.shrink(mib);
    expect(budget.heldBytes).toBe(2 * mib);
    first.release();
    second.release();
    expect(budget.heldBytes).toBe(0);
  });

  test("what does not fit waits for a release, and one owner has half at most", async () => {
    const { clock, budget, open } = setUp();
    const [first, second, third] = [open(), open(), open()];
    first.answer.grow("a", 3 * mib, never());
    const waits = second.answer.grow("a", 2 * mib, never());
    expect(waits).toBeInstanceOf(Promise);
    // Another owner is not kept waiting by them.
    expect(third.answer.grow("b", 3 * mib, never())).toBeUndefined();
    expect(budget.waiting).toBe(1);
    first.release();
    await waits;
    expect(budget.heldBytes).toBe(5 * mib);
    expect(clock.armed).toBe(0);
    second.release();
    third.release();
    expect(budget.heldBytes).toBe(0);
  });

  test("who waits too long is refused, and who leaves waits no longer", async () => {
    const { clock, budget, open } = setUp();
    const holder = open();
    holder.answer.grow("a", 4 * mib, never());
    const refused = expect(open().answer.grow("a", mib, never())).rejects.toThrow(Unavailable);
    const leaving = new AbortController();
    const left = expect(open().answer.grow("a", mib, leaving.signal)).rejects.toThrow("gone");
    leaving.abort(new Error("gone"));
    await left;
    expect(budget.waiting).toBe(1);
    await clock.advance(10_000);
    await refused;
    expect([budget.waiting, clock.armed]).toEqual([0, 0]);
    holder.release();
    expect(budget.heldBytes).toBe(0);
  });

  test("an answer larger than any share is too large, at once", () => {
    const { budget, open } = setUp();
    expect(() => open().answer.grow("a", 4 * mib + 1, never())).toThrow(TooLarge);
    expect(budget.heldBytes).toBe(0);
  });

  test("what is released while it waits is not granted", async () => {
    const { budget, open } = setUp();
    const [holder, other] = [open(), open()];
    holder.answer.grow("a", 4 * mib, never());
    const leaving = new AbortController();
    const waits = other.answer.grow("a", mib, leaving.signal);
    other.release();
    holder.release();
    expect(budget.heldBytes).toBe(0);
    leaving.abort(new Error("gone"));
    await expect(waits).rejects.toThrow("gone");
  });

  test("a principal has three quarters at most, whichever owners it names", async () => {
    const { clock, open } = setUp();
    open("key").answer.grow("a", 3 * mib, never());
    open("key").answer.grow("b", 3 * mib, never());
    const refused = expect(open("key").answer.grow("c", mib, never())).rejects.toThrow(/your share/);
    expect(open("other").answer.grow("c", 2 * mib, never())).toBeUndefined();
    await clock.advance(10_000);
    await refused;
  });

  test("how many wait is bounded; who comes takes the place of the newest of those of whom most wait", async () => {
    const { clock, budget, most } = setUp();
    const refused: string[] = [];
    const wait = (principal: string, owner: string, signal = never()) => {
      const answer = budget.open(() => undefined, { principal, owner });
      answer.grow("", mib, signal)?.catch((error) => refused.push(`${principal} ${owner} ${error.name}`));
      return answer;
    };
    for (const owner of ["a", "b"]) {
      budget.open(() => undefined, { principal: "holder", owner }).grow("", 3 * mib, never());
    }
    budget.open(() => undefined, { principal: "other", owner: "" }).grow("", 2 * mib, never());
    for (let index = 0; index < most.ofOwner + 1; index++) wait("p0", "first");
    await settle();
    expect([budget.waiting, refused]).toEqual([most.ofOwner, ["p0 first NoRoom"]]);
    for (let index = 0; index < most.ofOwner; index++) wait("p0", "second");
    wait("p0", "third");
    await settle();
    expect([budget.waiting, refused.splice(0).at(-1)]).toEqual([most.ofPrincipal, "p0 first NoRoom"]);
    for (let index = 0; budget.waiting < most.inAll; index++) wait(`p${1 + (index % 4)}`, `${index % 8}`);
    await settle();
    expect(refused).toEqual([]);
    wait("newcomer", "");
    wait("p1", "0");
    await settle();
    expect([budget.waiting, refused.splice(0)]).toEqual([
      most.inAll,
      ["p0 second NoRoom", "p0 first NoRoom"],
    ]);
    await clock.advance(10_000);
    expect([budget.waiting, refused.length]).toEqual([0, most.inAll]);
  });

  test("nobody gives up a place in the line for who has left already", async () => {
    const { clock, budget, most } = setUp();
    const open = (owner: string) => budget.open(() => undefined, { principal: "key", owner });
    open("holder").grow("holder", 4 * mib, never());
    open("second").grow("second", 2 * mib, never());
    const waiting: Promise<unknown>[] = [];
    for (let n = 0; n < most.ofPrincipal; n++) {
      const owner = n % 2 === 0 ? "a" : "b";
      waiting.push(
        open(owner)
          .grow(owner, mib, never())
          ?.catch(() => undefined) ?? Promise.resolve(),
      );
    }
    expect(budget.waiting).toBe(most.ofPrincipal);
    const gone = AbortSignal.abort(new Error("gone"));
    await expect(open("c").grow("c", mib, gone)).rejects.toThrow("gone");
    expect(budget.waiting).toBe(most.ofPrincipal);
    await clock.advance(10_000);
    await Promise.all(waiting);
  });

  test("who is gone when it begins to hold memory holds none", () => {
    const { budget } = setUp();
    const answer = budget.open((release) => release(), { principal: "key", owner: "a" });
    expect(answer.grow("a", mib, never())).toBeUndefined();
    expect(budget.heldBytes).toBe(0);
  });

  test("what fits is not refused because others are about to be served and no more may wait", async () => {
    const { clock, budget, most, open } = setUp();
    const small = open("key");
    small.answer.grow("a", mib, never());
    open("key").answer.grow("a", 3 * mib, never());
    const waiting = Array.from({ length: most.ofOwner }, () => {
      const one = open("key").answer;
      return one.grow("a", 3 * mib, never())?.catch(() => undefined);
    });
    expect(budget.waiting).toBe(most.ofOwner);
    await settle();
    small.release();
    expect(open("key").answer.grow("a", mib, never())).toBeUndefined();
    await expect(open("key").answer.grow("a", mib, never())).rejects.toThrow(Unavailable);
    await clock.advance(10_000);
    await Promise.all(waiting);
  });
});
