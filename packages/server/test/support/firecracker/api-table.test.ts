import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { parse } from "yaml";
import { apiTable, type Fields, type FieldType, unfitBody } from "./api-table.ts";

/** What of Swagger 2.0 the description uses. */
interface Schema {
  $ref?: string;
  type?: string;
  enum?: string[];
  minimum?: number;
  maximum?: number;
  required?: string[];
  properties?: Record<string, Schema>;
  additionalProperties?: Schema;
  items?: Schema;
}
interface Description {
  paths: Record<string, Record<string, { parameters?: { in: string; schema?: Schema }[] }>>;
  definitions: Record<string, Schema>;
}

/** The same facts in the table's own form. */
function fieldsOf(schema: Schema, { definitions }: Description): Fields {
  const whole = (found: Schema): Schema => {
    const name = found.$ref?.replace("#/definitions/", "");
    return name === undefined ? found : whole(definitions[name] ?? {});
  };
  const typeOf = (given: Schema): FieldType => {
    const found = whole(given);
    if (found.enum !== undefined) return { oneOf: found.enum };
    if (found.type === "array") {
      const items = whole(found.items ?? {});
      return { list: items.type === "string" ? "string" : objectOf(items) };
    }
    if (found.type === "object")
      return found.additionalProperties === undefined ? { object: objectOf(found) } : { texts: true };
    if (found.type === "integer" && (found.minimum !== undefined || found.maximum !== undefined))
      return {
        integer: {
          ...(found.minimum === undefined ? {} : { min: found.minimum }),
          ...(found.maximum === undefined ? {} : { max: found.maximum }),
        },
      };
    return found.type as "string" | "integer" | "boolean";
  };
  const objectOf = (found: Schema): Fields =>
    Object.fromEntries(
      Object.entries(found.properties ?? {}).map(([name, type]) => [
        found.required?.includes(name) ? `${name}!` : name,
        typeOf(type),
      ]),
    );
  return objectOf(whole(schema));
}

const path = process.env.ALCOVE_FIRECRACKER_OPENAPI;

describe("the table of Firecracker's API", () => {
  it.skipIf(path === undefined)("says what the published description says", () => {
    const description: Description = parse(readFileSync(path ?? "", "utf8"));
    for (const [request, { body }] of Object.entries(apiTable)) {
      const [method = "", at = ""] = request.split(" ");
      const operation = description.paths[at]?.[method.toLowerCase()];
      expect(operation, request).toBeDefined();
      const schema = operation?.parameters?.find((parameter) => parameter.in === "body")?.schema;
      expect(body, request).toEqual(schema === undefined ? undefined : fieldsOf(schema, description));
    }
  });

  it("refuses unknown fields, missing ones, and values of another type, wherever they are", () => {
    const drive = apiTable["PUT /drives/{drive_id}"]?.body ?? {};
    const whole = { drive_id: "a", is_root_device: true, rate_limiter: { ops: { size: 1, refill_time: 1 } } };
    expect(unfitBody(drive, whole)).toBeUndefined();
    expect(unfitBody(drive, { ...whole, extra: 1 })).toMatch(/unknown field `extra`/);
    expect(unfitBody(drive, { drive_id: "a" })).toMatch(/missing field `is_root_device`/);
    expect(unfitBody(drive, { ...whole, is_root_device: "yes" })).toMatch(/`is_root_device`: boolean/);
    expect(unfitBody(drive, { ...whole, cache_type: "unsafe" })).toMatch(/Unsafe, Writeback/);
    expect(unfitBody(drive, { ...whole, rate_limiter: { bytes: {} } })).toMatch(/`rate_limiter.bytes`/);
    expect(unfitBody(drive, { ...whole, rate_limiter: { ops: { size: 1 } } })).toMatch(
      /`rate_limiter.ops.refill_time`/,
    );
    const load = apiTable["PUT /snapshot/load"]?.body ?? {};
    const overrides = { snapshot_path: "s", network_overrides: [{ iface_id: "eth0" }] };
    expect(unfitBody(load, overrides)).toMatch(/`network_overrides\[0\].host_dev_name`/);
    expect(unfitBody(apiTable["PUT /vsock"]?.body ?? {}, { guest_cid: 2, uds_path: "v" })).toMatch(/3/);
  });
});
