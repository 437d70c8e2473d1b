import type { FastifyReply } from "fastify";
import type { Answer, AnswerBudget } from "../core/answers/answer-budget.ts";
import { shareOf } from "./share.ts";

/** How long a caller may take for an answer of this many bytes that is ready. */
const patienceMs = 30_000;
const slowestBytesPerMs = 24;

/**
 * Puts an answer together within the budget. Its memory is given back when the caller has taken it or is gone; one who
 * takes too long is cut off, so that nobody keeps memory by not reading.
 */
export async function answered<T>(
  reply: FastifyReply,
  budget: AnswerBudget,
  act: (answer: Answer) => Promise<T>,
): Promise<T> {
  let held = false;
  const answer = budget.open((release) => {
    held = true;
    if (reply.raw.closed) release();
    else reply.raw.once("close", release);
  }, shareOf(reply.request));
  try {
    return await act(answer);
  } finally {
    // A refusal may hold as much: it tells what a command has written until then.
    if (held && !reply.raw.closed) {
      const timer = setTimeout(
        () => reply.raw.destroy(),
        patienceMs + answer.bytes / slowestBytesPerMs,
      ).unref();
      reply.raw.once("close", () => clearTimeout(timer));
    }
  }
}
