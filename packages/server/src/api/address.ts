import type { FastifyRequest } from "fastify";

/**
 * @returns where a request came from, as the trusted proxies say; "" when that is not known. Fastify's type leaves out that its
 * `ip` is undefined once the connection is gone and was not asked for its address before.
 */
export function addressOf(request: FastifyRequest): string {
  const address: string | undefined = request.ip;
  return address ?? "";
}
