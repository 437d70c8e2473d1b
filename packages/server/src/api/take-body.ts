import type { FastifyRequest } from "fastify";

/**
 * Takes the body from a request that may take long, so that it is not held beside what is made of it.
 * @param options.make must keep nothing of the body but what it returns. @param options.uses the memory of that.
 */
export function takeBody<Body, Made>(
  request: Pick<FastifyRequest, "bodyMemory"> & { body: Body },
  options: { make: (body: Body) => Made; uses: (made: Made) => number },
): Made {
  const made = options.make(request.body);
  (request as { body: unknown }).body = undefined;
  const memory = request.bodyMemory;
  if (memory !== null && memory.bytes > 0) memory.shrink(options.uses(made));
  return made;
}
