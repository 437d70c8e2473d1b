import type { FastifyRequest } from "fastify";
import { TooLarge } from "../ports/errors.ts";

declare module "fastify" {
  interface FastifyContextConfig {
    /** It reads the body itself, whatever the method. */
    readsBody?: true;
    /** How what is too large for a body of this route gets there all the same. */
    insteadOfBody?: string;
  }
}

const mib = 1_048_576;

/** What a JSON body may have where a route says nothing else: four times the largest environment of a sandbox. */
export const usualBodyBytes = 2 * mib;

/** Of a route whose JSON bodies carry contents of files, input or scripts; `insteadOfBody` ends the refusal of a larger one. */
export function takesContents(insteadOfBody: string) {
  return { bodyLimit: 32 * mib, config: { insteadOfBody } };
}

/** @returns the limit in words. */
export function limitText(bytes: number): string {
  return `${bytes / mib} MiB`;
}

/** The refusal of a JSON body above the limit of its route. */
export function tooLarge(request: FastifyRequest): TooLarge {
  const { url = "this path", bodyLimit = usualBodyBytes, config } = request.routeOptions;
  const wayOut = config?.insteadOfBody ?? "no request here needs more";
  return new TooLarge(
    `the body is larger than the ${limitText(bodyLimit)} that ${request.method} ${url} takes; ${wayOut}`,
  );
}
