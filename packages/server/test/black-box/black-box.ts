import { type EventType, eventData } from "@alcove/wire";
import { afterAll, beforeAll, describe, expect } from "vitest";
import { eventually, TestClient } from "../support/http.ts";
import { type ProviderFactory, startTestServer, type TestServer } from "../support/test-server.ts";
import { auditSuite } from "./audit-suite.ts";
import { eventSuite } from "./events-suite.ts";
import { execRecordSuite } from "./exec-record-suite.ts";
import { execSuite } from "./exec-suite.ts";
import { fileSuite } from "./file-suite.ts";
import { malformedSuite } from "./malformed-suite.ts";
import { nameSuite } from "./name-suite.ts";
import { quotaSuite } from "./quota-suite.ts";
import { sandboxSuite } from "./sandbox-suite.ts";
import { socketSuite } from "./socket-suite.ts";
import { systemSuite } from "./system-suite.ts";
import { templateSuite } from "./template-suite.ts";

/** What a suite works on: one server for all of its tests. */
export interface Subject {
  readonly server: TestServer;
  readonly client: TestClient;
  /** A sandbox that tests share; those that end or fill one spawn their own. */
  readonly sandbox: string;
}

/** The HTTP interface as docs/api has it, over one provider. */
export function blackBox(name: string, options: { provider: ProviderFactory; skip?: string }): void {
  const title = `HTTP interface over ${name}`;
  describe.skipIf(options.skip !== undefined)(
    options.skip === undefined ? title : `${title} (skipped: ${options.skip})`,
    () => {
      let server: TestServer;
      let client: TestClient;
      let sandbox: string;
      beforeAll(async () => {
        server = await startTestServer({
          provider: options.provider,
          env: { ALCOVE_EXEC_DISCONNECT_GRACE: "300ms", ALCOVE_EXEC_MAX_OUTPUT: "64KiB" },
        });
        client = new TestClient(server.url);
        sandbox = await client.spawn();
      });
      afterAll(async () => {
        const undocumented = await undocumentedData(server);
        const { callsUnderWay } = server.app;
        const left = await eventually(() => (callsUnderWay.size === 0 ? 0 : undefined)).catch(
          () => callsUnderWay.size,
        );
        await server[Symbol.asyncDispose]();
        expect(left, "calls left under way").toBe(0);
        expect(undocumented, "data of events that docs/api/events.md does not name").toEqual([]);
      });
      const subject: Subject = {
        get server() {
          return server;
        },
        get client() {
          return client;
        },
        get sandbox() {
          return sandbox;
        },
      };
      describe("system", () => systemSuite(subject));
      describe("sandboxes", () => sandboxSuite(subject));
      describe("exec", () => execSuite(subject));
      describe("exec records", () => execRecordSuite(subject));
      describe("exec over WebSocket", () => socketSuite(subject));
      describe("files", () => fileSuite(subject));
      describe("names", () => nameSuite(subject));
      describe("quotas", () => quotaSuite(subject));
      describe("templates", () => templateSuite(subject));
      describe("audit", () => auditSuite(subject));
      describe("events", () => eventSuite(subject));
      describe("malformed requests", () => malformedSuite(subject));
    },
  );
}

/** What events told that is not among what they may. */
async function undocumentedData({ url, events }: TestServer): Promise<string[]> {
  await events.flush();
  const controller = new AbortController();
  const response = await fetch(`${url}/api/v1/events`, {
    headers: { "last-event-id": "0" },
    signal: controller.signal,
  });
  // One more, so that the end of what there is can be told.
  events.emit({ type: "reconcile.action", sandboxId: "last", ownerId: "", data: {} });
  const found: string[] = [];
  let text = "";
  const decoder = new TextDecoder();
  for await (const chunk of response.body ?? []) {
    text += decoder.decode(chunk, { stream: true });
    const lines = text.split("\n");
    text = lines.pop() ?? "";
    const told = lines.flatMap((line) => (line.startsWith("data:") ? [JSON.parse(line.slice(5))] : []));
    for (const { type, data } of told) {
      const known: readonly string[] = eventData[type as EventType];
      found.push(
        ...Object.keys(data ?? {}).flatMap((name) => (known.includes(name) ? [] : [`${type}: ${name}`])),
      );
    }
    if (told.some(({ sandbox_id }) => sandbox_id === "last")) break;
  }
  controller.abort();
  return [...new Set(found)];
}
