/** What a service holds at a moment; of processes, those of its sandboxes. */
export type Held = Record<
  "memory" | "descriptors" | "processes" | "mounts" | "directories" | "groups",
  number
>;

/** What memory may differ by between the two: what was collected is not given back at once. */
const memorySlack = 0.15;

/**
 * @param options.countSlack what everything that is counted may differ by.
 * @returns what has grown, a line each.
 */
export function growth(before: Held, after: Held, { countSlack }: { countSlack: number }): string[] {
  return (Object.keys(before) as (keyof Held)[]).flatMap((what) => {
    const most = what === "memory" ? before.memory * (1 + memorySlack) : before[what] + countSlack;
    return after[what] > most ? [`${what} grew from ${before[what]} to ${after[what]}`] : [];
  });
}

/**
 * What there must have been and was looked for where it is not: it would never be seen to grow.
 * @param options.grouped whether sandboxes have control groups.
 */
export function neverSeen(looks: readonly Held[], { grouped }: { grouped: boolean }): string[] {
  const owed = [...(grouped ? (["processes", "groups"] as const) : []), "directories" as const];
  return owed.filter((what) => looks.every((look) => look[what] === 0));
}
