/** How many are sorted or merged in one turn of the loop: long texts with one beginning take a microsecond to compare. */
const perTurn = 2_000;

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

/** Sorts by a text of each, a little in each turn of the loop: a hundred thousand long ones take a third of a second. Stable. */
export async function sortedInTurns<T>(items: readonly T[], textOf: (item: T) => string): Promise<T[]> {
  const byText = (one: T, other: T) => {
    const [a, b] = [textOf(one), textOf(other)];
    return a < b ? -1 : a > b ? 1 : 0;
  };
  let runs: T[][] = [];
  for (let at = 0; at < items.length; at += perTurn) {
    if (at > 0) await turn();
    runs.push(items.slice(at, at + perTurn).sort(byText));
  }
  while (runs.length > 1) {
    const merged: T[][] = [];
    for (let at = 0; at < runs.length; at += 2)
      merged.push(await mergedInTurns(runs[at] ?? [], runs[at + 1] ?? [], byText));
    runs = merged;
  }
  return runs[0] ?? [];
}

async function mergedInTurns<T>(
  first: readonly T[],
  second: readonly T[],
  compare: (one: T, other: T) => number,
): Promise<T[]> {
  const merged: T[] = [];
  let [inFirst, inSecond] = [0, 0];
  while (inFirst < first.length || inSecond < second.length) {
    if (merged.length % perTurn === 0) await turn();
    const takesFirst =
      inSecond === second.length ||
      (inFirst < first.length && compare(first[inFirst] as T, second[inSecond] as T) <= 0);
    merged.push(takesFirst ? (first[inFirst++] as T) : (second[inSecond++] as T));
  }
  return merged;
}
