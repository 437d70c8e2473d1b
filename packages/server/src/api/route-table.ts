import type { FastifyInstance, RouteOptions } from "fastify";
import { DomainError, NotFound } from "../ports/errors.ts";
import { plainSchema } from "./validation.ts";

/** Every route as it was registered: for the OpenAPI page, and to tell a wrong method from an unknown path. */
export class RouteTable {
  readonly #routes: RouteOptions[] = [];
  /** More than any route has. */
  #mostParts = 1;

  /** Learns the routes that are registered from now on, and gives each schemas that serialise every key. */
  watch(app: Pick<FastifyInstance, "addHook">): void {
    app.addHook("onRoute", (route) => {
      this.#routes.push({ ...route });
      this.#mostParts = Math.max(this.#mostParts, partsOf(route.url).length + 1);
      if (route.schema?.response !== undefined)
        route.schema = { ...route.schema, response: plainSchema(route.schema.response) };
    });
  }

  get routes(): readonly RouteOptions[] {
    return this.#routes;
  }

  /** @returns the methods a path answers to, sorted. */
  methodsOf(path: string): string[] {
    const methods = new Set<string>();
    const parts = partsOf(path, this.#mostParts);
    for (const route of this.#routes)
      if (matches(route.url, parts)) for (const method of [route.method].flat()) methods.add(method);
    methods.delete("OPTIONS");
    return [...methods].sort();
  }

  /** The refusal of a request that no route took. docs/api/README.md. */
  refusal(method: string, path: string): { error: DomainError; allow?: string } {
    const methods = this.methodsOf(path);
    if (methods.length === 0) {
      const named = path.slice(0, 200);
      const way = this.#beginsOne(path) ? `add a "/": ${named}/` : "/docs lists what there is";
      return { error: new NotFound(`there is no ${named}; ${way}`) };
    }
    const allow = methods.join(", ");
    return {
      error: new DomainError(
        "method_not_allowed",
        `${path.slice(0, 200)} does not take ${method}, but ${allow}`,
      ),
      allow,
    };
  }

  /** Whether there are paths that begin so, with whatever follows a "/". */
  #beginsOne(path: string): boolean {
    const parts = partsOf(path, this.#mostParts);
    return this.#routes.some(({ url }) => url.endsWith("/*") && matches(url.slice(0, -2), parts));
  }
}

/** @param most a path may have thousands, which would be compared with each route. */
function partsOf(path: string, most?: number): readonly string[] {
  return path.split("/", most);
}

function matches(pattern: string, given: readonly string[]): boolean {
  const wanted = partsOf(pattern);
  if (wanted.at(-1) === "*" || wanted.length !== given.length) return false;
  return wanted.every((part, index) => (part.startsWith(":") ? given[index] !== "" : part === given[index]));
}
