/** Classes of HTTP statuses. */
export const responseClasses = ["1xx", "2xx", "3xx", "4xx", "5xx"] as const;
export type ResponseClass = (typeof responseClasses)[number];

/** How many requests were answered how, since the start of this process. */
export class ResponseCounts {
  readonly #counts: Record<ResponseClass, number> = { "1xx": 0, "2xx": 0, "3xx": 0, "4xx": 0, "5xx": 0 };

  count(status: number): void {
    const name = responseClasses[Math.floor(status / 100) - 1];
    if (name !== undefined) this.#counts[name]++;
  }

  get all(): Readonly<Record<ResponseClass, number>> {
    return this.#counts;
  }
}
