/** What became of requests for ports of sandboxes, since the service started. */
export class PreviewCounts {
  /** Answered by the program to the end, or sent on to where it is. */
  answered = 0;
  /** Cut in the middle, by either side. */
  cut = 0;
  /** Answered by the service: no link, no sandbox, no program. */
  refused = 0;
  /** WebSockets that were asked for. */
  sockets = 0;

  get all() {
    const { answered, cut, refused, sockets } = this;
    return { answered, cut, refused, sockets };
  }

  count(outcome: "whole" | "cut"): void {
    if (outcome === "whole") this.answered += 1;
    else this.cut += 1;
  }
}
