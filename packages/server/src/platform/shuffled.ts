/** A copy in an order by chance. */
export function shuffled<T>(items: readonly T[]): T[] {
  const all = [...items];
  for (let last = all.length - 1; last > 0; last--) {
    const other = Math.floor(Math.random() * (last + 1));
    [all[last], all[other]] = [all[other] as T, all[last] as T];
  }
  return all;
}
