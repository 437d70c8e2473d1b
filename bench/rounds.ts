/** The middle one. @param samples at least one number. */
export function median(samples: readonly number[]): number {
  const sorted = [...samples].sort((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? Number.NaN;
}

/**
 * Measures several things in turns, each once a round and in the other order every second one: what else happens on the machine
 * meets all of them, and a ratio of two is of the same moment.
 * @param parts each answers with its figure of that round.
 * @returns of each part the figures, in the order of the rounds.
 */
export async function inRounds<Name extends string>(
  count: number,
  parts: Record<Name, () => Promise<number>>,
): Promise<Record<Name, number[]>> {
  const names = Object.keys(parts) as Name[];
  const figures = Object.fromEntries(names.map((name) => [name, []])) as unknown as Record<Name, number[]>;
  for (let round = 0; round < count; round++)
    for (const name of round % 2 === 0 ? names : names.toReversed()) figures[name].push(await parts[name]());
  return figures;
}

/** The median of what `of` makes of the figures of one round. */
export function medianRatio(
  figures: readonly number[],
  floors: readonly number[],
  of: (figure: number, floor: number) => number = (figure, floor) => figure / floor,
): number {
  return median(figures.map((figure, round) => of(figure, floors[round] ?? Number.NaN)));
}
