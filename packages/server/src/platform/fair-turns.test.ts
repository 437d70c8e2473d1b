import { AsyncLocalStorage } from "node:async_hooks";
import { expect, test } from "vitest";
import { FairTurns } from "./fair-turns.ts";

const share = (principal: string, owner = "") => ({ principal, owner });

const loop = () => new Promise((resolve) => setImmediate(resolve));

/** Notes what is done, and where a turn of the loop ended. Each work takes so many milliseconds. */
function setUp(workMs: number) {
  let nowMs = 0;
  const done: string[] = [];
  const turns = new FairTurns({ now: () => nowMs });
  const take = (what: string): undefined => {
    nowMs += workMs;
    done.push(what);
  };
  const all = async (count: number) => {
    while (done.filter((what) => what !== "|").length < count) {
      await new Promise((resolve) => setImmediate(resolve));
      if (done.at(-1) !== "|") done.push("|");
    }
    return done.join("");
  };
  return { turns, take, all };
}

test("a quarter of a millisecond of work is done in a turn, and the rest in later ones", async () => {
  const { turns, take, all } = setUp(0.125);
  for (const what of "abcde") turns.add(share("one"), () => take(what));
  expect(await all(5)).toBe("ab|cd|e|");
});

test.each([
  [1, "ab|cd|ef|"],
  [4, "abcdefgh|ijklmnop|"],
  [400, `${"x".repeat(32)}|x|`],
])(
  "what else takes %d ms of each turn of the loop leaves a quarter of that, 4 ms at most",
  async (othersMs, expected) => {
    let nowMs = 0;
    const done: string[] = [];
    const turns = new FairTurns({ now: () => nowMs });
    const wanted = expected.replaceAll("|", "");
    for (const what of wanted)
      turns.add(share("one"), () => {
        nowMs += 0.125;
        done.push(what);
        return undefined;
      });
    while (done.filter((what) => what !== "|").length < wanted.length) {
      nowMs += othersMs;
      await loop();
      done.push("|");
    }
    expect(done.join("")).toBe(expected);
  },
);

test("what a work goes on with in microtasks counts as its own", async () => {
  const { turns, take, all } = setUp(0.125);
  const later = async (what: string) => {
    for (let n = 0; n < 20; n++) await null;
    take(what);
  };
  for (const what of "abcde") turns.add(share("one"), () => void later(what));
  expect(await all(5)).toBe("ab|cd|e|");
});

test("callers take turns, and below them their owners", async () => {
  const { turns, take, all } = setUp(0);
  for (const what of "abc") turns.add(share("one", "x"), () => take(what));
  for (const what of "ABC") turns.add(share("one", "y"), () => take(what));
  for (const what of "123") turns.add(share("two"), () => take(what));
  expect(await all(9)).toBe("a1A2b3BcC|");
});

test("what is left of a work comes before its owner's next, and after others", async () => {
  const { turns, take, all } = setUp(0);
  const inParts = (first: string, second: string) => () => {
    take(first);
    return () => take(second);
  };
  turns.add(share("one"), inParts("a", "b"));
  turns.add(share("one"), inParts("c", "d"));
  turns.add(share("two"), inParts("1", "2"));
  expect(await all(6)).toBe("a1b2cd|");
});

test("next() waits for a turn, and work is done within what it was asked for in", async () => {
  const { turns, take, all } = setUp(0.25);
  const within = new AsyncLocalStorage<string>();
  const work = async () => {
    for (let n = 0; n < 2; n++) {
      await turns.next(share("one"));
      take(within.getStore() ?? "nothing");
    }
  };
  within.run("a", () => void work());
  within.run("b", () => turns.add(share("one"), () => take(within.getStore() ?? "nothing")));
  expect(await all(3)).toBe("a|b|a|");
});

test("a little work goes on at once while nobody waits and the turn has time left, and again in the next turn", async () => {
  let nowMs = 100;
  const turns = new FairTurns({ now: () => nowMs });
  const claims = () => {
    const free = turns.mayGoOn();
    nowMs += 0.0625;
    return free;
  };
  const atOnce = () => Array.from({ length: 6 }, claims);
  expect(atOnce()).toEqual([true, true, true, true, false, false]);
  await loop();
  nowMs += 1_000;
  expect(atOnce()).toEqual([true, true, true, true, false, false]);
});

test("who comes while others wait goes behind them", async () => {
  const { turns, take, all } = setUp(0.05);
  for (const what of "abc") turns.add(share("one"), () => take(what));
  const claimed = turns.claim(share("one"));
  expect(claimed).toBeInstanceOf(Promise);
  void claimed?.then(() => take("d"));
  expect(await all(4)).toBe("abcd|");
  await loop();
  expect(turns.claim(share("one"))).toBe(undefined);
});

test("who goes on at once within a turn ends it for others as well", async () => {
  const { turns, take, all } = setUp(0.125);
  turns.add(share("one"), () => {
    take("a");
    queueMicrotask(() => {
      while (turns.mayGoOn()) take("+");
    });
    return undefined;
  });
  expect(await all(2)).toBe("a+|");
  turns.add(share("one"), () => {
    turns.add(share("one"), () => take("c"));
    queueMicrotask(() => {
      take("B");
      expect(turns.mayGoOn()).toBe(false);
    });
    return take("b");
  });
  expect(await all(5)).toBe("a+|bB|c|");
});

test("what comes of somebody's turn is within it for a while, whoever waits", async () => {
  let nowMs = 0;
  const done: string[] = [];
  const turns = new FairTurns({ now: () => nowMs });
  const writer = async (name: string) => {
    for (let line = 0; line < 8; line++) {
      const turn = turns.claim(share(name));
      if (turn !== undefined) {
        await turn;
        done.push(" ");
      }
      nowMs += 0.0625;
      done.push(name);
      await null;
    }
  };
  // Nobody goes on at once any more.
  turns.mayGoOn();
  nowMs += 4;
  await Promise.all([writer("a"), writer("b")]);
  expect(done.join("")).toBe(" aaaa bbbb aaaa bbbb");
});
