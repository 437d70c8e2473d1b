import SerializerSelector from "@fastify/fast-json-stringify-compiler";
import type { FastifySchemaCompiler, FastifyServerOptions } from "fastify";

type Check = ReturnType<FastifySchemaCompiler<unknown>>;
type Compilers = NonNullable<NonNullable<FastifyServerOptions["schemaController"]>["compilersFactory"]>;

/**
 * A check that is compiled when something is to be checked by it: of more than two hundred schemas most services use a few, and
 * what each is compiled to stays for good. That all of them can be compiled is for a test to see.
 */
export function checkOnFirstUse(compile: () => Check): Check {
  let compiled: Check | undefined;
  const check: Check = (value) => {
    compiled ??= compile();
    const result = compiled(value);
    check.errors = compiled.errors ?? null;
    return result;
  };
  return check;
}

/** Fastify's own way to spell out answers, compiled when there is one. */
export const serializersOnFirstUse: Required<Pick<Compilers, "buildSerializer">> = {
  buildSerializer: (known, options) => {
    const compile = SerializerSelector()(known, options);
    return (route) => {
      let compiled: ReturnType<typeof compile> | undefined;
      return (answer: unknown) => {
        compiled ??= compile(route);
        return compiled(answer);
      };
    };
  },
};
