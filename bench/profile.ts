interface Profile {
  nodes: { id: number; callFrame: { functionName: string; url: string; lineNumber: number } }[];
  samples: number[];
  /** Microseconds. */
  timeDeltas: number[];
}

/** @param text a profile of V8's. @returns a line for each function that most time was spent in itself, beside waiting. */
export function hottest(text: string, count = 25): string[] {
  const { nodes, samples, timeDeltas } = JSON.parse(text) as Profile;
  const names = new Map(
    nodes.map(({ id, callFrame: { functionName, url, lineNumber } }) => [
      id,
      `${functionName || "(no name)"} ${url.split("/").slice(-3).join("/")}:${lineNumber + 1}`,
    ]),
  );
  const spent = new Map<string, number>();
  samples.forEach((id, index) => {
    const name = names.get(id) ?? "";
    if (!name.startsWith("(idle)")) spent.set(name, (spent.get(name) ?? 0) + (timeDeltas[index + 1] ?? 0));
  });
  return [...spent]
    .sort(([, a], [, b]) => b - a)
    .slice(0, count)
    .map(([name, microseconds]) => `${(microseconds / 1_000).toFixed(0)} ms ${name}`);
}
