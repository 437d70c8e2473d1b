/** So many begin in one turn of the event loop: tasks that wait for nothing would hold everybody else up. */
const perTurn = 100;

/** Runs `task` for every item, at most `limit` at once. The first failure rejects once all that had begun have ended. */
export async function boundedParallel<T>(
  items: readonly T[],
  limit: number,
  task: (item: T) => Promise<void>,
): Promise<void> {
  const failures: unknown[] = [];
  let next = 0;
  let begun = 0;
  let turn: Promise<void> | undefined;
  const nextTurn = () =>
    new Promise<void>((resolve) => {
      setImmediate(() => {
        begun = 0;
        turn = undefined;
        resolve();
      });
    });
  const runOne = async () => {
    while (next < items.length && failures.length === 0) {
      if (begun >= perTurn) {
        turn ??= nextTurn();
        await turn;
        continue;
      }
      begun++;
      const item = items[next++] as T;
      try {
        await task(item);
      } catch (error) {
        failures.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, runOne));
  if (failures.length > 0) throw failures[0];
}
