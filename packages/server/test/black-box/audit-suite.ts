import { AuditRecord } from "@alcove/wire";
import { expect, test } from "vitest";
import type { Subject } from "./black-box.ts";

let marks = 0;
/** In the paths of one test alone. */
const mark = () => `audited-${++marks}`;

/** docs/api/admin.md, on a service without keys. */
export function auditSuite(on: Subject): void {
  const call = (...of: Parameters<Subject["client"]["call"]>) => on.client.call(...of);
  const records = async (query: string): Promise<AuditRecord[]> => {
    const { status, json } = await call("GET", `/api/v1/admin/audit?${query}`);
    expect(status).toBe(200);
    return json;
  };
  const asked = (found: AuditRecord[]) =>
    found.map(({ method, path, status }) => `${method} ${path.replace("/api/v1", "")} ${status}`);

  test("every call below /admin and every change of quotas and templates is told, newest first", async () => {
    const name = mark();
    const quota = `/api/v1/quotas/${name}`;
    await call("PUT", `${quota}?secret=1`, { max_sandboxes: 1 });
    await call("GET", quota);
    await call("GET", `${quota}/usage`);
    await call("PUT", quota, { max_sandboxes: -1 });
    await call("GET", `/api/v1/admin/quotas/${name}?secret=1`);
    await call("HEAD", `/api/v1/admin/quotas/${name}`);
    await call("DELETE", quota);
    await call("DELETE", quota);
    await call("POST", "/api/v1/templates", { name, image: "host" });
    await call("GET", `/api/v1/templates/${name}`);
    await call("PUT", `/api/v1/templates/${name}`, { image: "host" });
    await call("POST", `/api/v1/templates/${name}/spawn`, { ttl: "no" });
    await call("DELETE", `/api/v1/templates/${name}`);
    await call("GET", `/api/v1/admin/nothing-${name}`);
    await call("GET", `/api/v1/%61dmin/quotas/${name}`);
    await call("GET", `/api/v1/%61dmin/nothing-${name}`);
    await call("PATCH", `/api/v1/admin/quotas/${name}`);
    await call("GET", `/api/v1/admin/${name}%zz`);
    expect(asked(await records(`path=${name}`))).toEqual([
      `GET /admin/${name}%zz 400`,
      `PATCH /admin/quotas/${name} 405`,
      `GET /%61dmin/nothing-${name} 404`,
      `GET /%61dmin/quotas/${name} 404`,
      `GET /admin/nothing-${name} 404`,
      `DELETE /templates/${name} 200`,
      `PUT /templates/${name} 200`,
      `DELETE /quotas/${name} 404`,
      `DELETE /quotas/${name} 200`,
      `HEAD /admin/quotas/${name} 200`,
      `GET /admin/quotas/${name} 200`,
      `PUT /quotas/${name} 400`,
      `PUT /quotas/${name} 200`,
    ]);
    expect(asked(await records("path=/api/v1/templates&method=POST&limit=1"))).toEqual([
      "POST /templates 201",
    ]);
  });

  test("a record has every field and nothing else", async () => {
    const name = mark();
    const before = Date.now();
    const answer = await call("GET", `/api/v1/admin/providers/${name}`, undefined, {
      "user-agent": "alcove-test/1",
      "x-request-id": `${name}-request`,
    });
    const [record, ...more] = await records(`path=${name}`);
    expect(more).toEqual([]);
    expect(record).toEqual({
      id: expect.any(Number),
      created_at: expect.any(String),
      actor: "local",
      method: "GET",
      path: `/api/v1/admin/providers/${name}`,
      status: answer.status,
      duration_ms: expect.any(Number),
      request_id: `${name}-request`,
      remote_addr: "127.0.0.1",
      user_agent: "alcove-test/1",
    } satisfies Record<keyof AuditRecord, unknown>);
    expect(Object.keys(record ?? {})).toEqual(Object.keys(AuditRecord.properties));
    const at = Date.parse(record?.created_at ?? "");
    expect(at).toBeGreaterThanOrEqual(before - 1);
    expect(at).toBeLessThanOrEqual(Date.now() + 1);
  });

  test("every filter narrows it, and all of them together", async () => {
    const name = mark();
    const at = `/api/v1/admin/quotas/${name}`;
    await call("PUT", at, {});
    const [first] = await records(`path=${name}`);
    // The clock of the service tells milliseconds.
    while (Date.now() <= Date.parse(first?.created_at ?? "")) await new Promise(setImmediate);
    await call("GET", `${at}/usage`);
    await call("DELETE", at);
    await call("DELETE", at);
    const methods = async (query: string) =>
      (await records(`path=${name}&${query}`)).map(({ method, status }) => `${method} ${status}`);
    expect(await methods("")).toEqual(["DELETE 404", "DELETE 200", "GET 200", "PUT 200"]);
    expect(await methods("method=delete")).toEqual(["DELETE 404", "DELETE 200"]);
    expect(await methods("status=404")).toEqual(["DELETE 404"]);
    expect(await methods("limit=2")).toEqual(["DELETE 404", "DELETE 200"]);
    expect(await methods("actor=local&method=PUT")).toEqual(["PUT 200"]);
    expect(await methods("actor=anonymous")).toEqual([]);
    expect(await methods("actor=&method=&status=&since=&until=&limit=&format=")).toHaveLength(4);
    const time = encodeURIComponent(first?.created_at ?? "");
    expect(await methods(`until=${time}`)).toEqual(["PUT 200"]);
    expect(await methods(`since=${time}`)).toHaveLength(4);
    expect(await methods("since=2999-01-01T00:00:00Z")).toEqual([]);
    expect(await methods(`until=${time}&since=${time}&status=200&method=PUT&actor=local&limit=1`)).toEqual([
      "PUT 200",
    ]);
    expect(await records(`path=${name.replace("-", "_")}`)).toEqual([]);
  });

  test.each([
    "limit=0",
    "limit=501",
    "limit=-1",
    "limit=1.5",
    "limit=many",
    "status=99",
    "status=600",
    "status=ok",
    "since=yesterday",
    "since=2026-11-22",
    "until=2026-11-22T25:00:00Z",
    "until=2016-12-31T23:59:60Z",
    "format=xml",
    "limit=1&limit=2",
    `path=${"x".repeat(2_049)}`,
  ])("?%s is 400", async (query) => {
    const { status, json } = await call("GET", `/api/v1/admin/audit?${query}`);
    expect([status, json.code]).toEqual([400, "bad_request"]);
  });

  test("500 is the most, 100 what comes unasked", async () => {
    for (let round = 0; round < 11; round++)
      await Promise.all(Array.from({ length: 10 }, () => call("GET", "/api/v1/admin/quotas/summary")));
    expect((await records("path=summary&limit=500")).length).toBeGreaterThanOrEqual(110);
    expect(await records("path=summary")).toHaveLength(100);
  });

  test("as CSV it says the same, and no cell is a formula", async () => {
    const name = mark();
    const agents = ['=cmd|"/c calc"!A1', "+1", "-1", "@x", 'plain, "quoted"', "a;b"];
    for (const agent of agents)
      await call("GET", `/api/v1/admin/quotas/${name}/usage`, undefined, { "user-agent": agent });
    const { status, text, headers } = await call("GET", `/api/v1/admin/audit?format=csv&path=${name}`);
    expect([status, headers.get("content-type")]).toEqual([200, "text/csv; charset=utf-8"]);
    const [header, ...rows] = parseCsv(text);
    expect(header).toEqual(Object.keys(AuditRecord.properties));
    const told = await records(`path=${name}`);
    const guarded = (value: unknown) => String(value).replace(/^(?=[=+\-@])/, "'");
    expect(rows).toEqual(told.map((record) => Object.values(record).map(guarded)));
    expect(rows.map((row) => row.at(-1)).reverse()).toEqual([
      '\'=cmd|"/c calc"!A1',
      "'+1",
      "'-1",
      "'@x",
      'plain, "quoted"',
      "a;b",
    ]);
    expect((await call("GET", "/api/v1/admin/audit?format=csv&actor=nobody")).text).toBe(
      `${Object.keys(AuditRecord.properties).join(",")}\r\n`,
    );
  });

  test("200 calls at once are 200 records", async () => {
    const name = mark();
    const answers = await Promise.all(
      Array.from({ length: 200 }, (_, index) => call("GET", `/api/v1/admin/quotas/${name}-${index}/usage`)),
    );
    expect(answers.every(({ status }) => status === 200)).toBe(true);
    const told = await records(`path=${name}-&limit=500`);
    expect(new Set(told.map(({ path }) => path)).size).toBe(200);
    expect(told).toHaveLength(200);
    expect(told.map(({ id }) => id)).toEqual(told.map(({ id }) => id).sort((a, b) => b - a));
    expect(new Set(told.map(({ request_id }) => request_id)).size).toBe(200);
  });

  test("providers are told below /admin as beside it", async () => {
    const provider = on.server.provider.name;
    const [list] = (await call("GET", "/api/v1/admin/providers")).json;
    expect(list).toMatchObject({ name: provider, healthy: true, default: true });
    const detail = (await call("GET", `/api/v1/admin/providers/${provider}`)).json;
    expect(detail).toMatchObject({ name: provider, health: { name: provider } });
    expect(Object.keys(detail)).toEqual(
      Object.keys((await call("GET", `/api/v1/providers/${provider}`)).json),
    );
    expect((await call("GET", "/api/v1/admin/providers/none")).status).toBe(404);
    expect((await call("POST", "/api/v1/admin/providers/test")).json).toEqual({ [provider]: true });
  });
}

/** RFC 4180, as strictly as it is written. */
function parseCsv(text: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  const cell = /(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n)/gy;
  for (let match = cell.exec(text); match !== null; match = cell.exec(text)) {
    row.push(match[1]?.replaceAll('""', '"') ?? match[2] ?? "");
    if (match[3] === ",") continue;
    rows.push(row);
    row = [];
    if (cell.lastIndex === text.length) return rows;
  }
  throw new Error(`no CSV: ${text}`);
}
