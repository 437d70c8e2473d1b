/**
 * Runs `act` once at a time: asked for while it runs, it runs once more when that is over, however often it was asked.
 * So the last run began after the last request.
 * @param act rejects for nothing.
 */
export function oneAtATime(act: () => Promise<void>): () => void {
  let running = false;
  let again = false;
  const run = async () => {
    running = true;
    do {
      again = false;
      await act();
    } while (again);
    running = false;
  };
  return () => {
    if (running) again = true;
    else void run();
  };
}
