import { KeepAliveClient } from "./keep-alive-client.ts";
import { processorMs, type Service } from "./service.ts";
import { summarize, timeEach } from "./stats.ts";

interface Spawned {
  id: string;
}

/** Warm, and ready to be measured in rounds. */
export interface Measured extends AsyncDisposable {
  /** @returns less is better. */
  round(): Promise<number>;
}

export interface HotRow {
  what: string;
  unit: string;
  settings: Record<string, string>;
  measure(service: Service): Promise<Measured>;
}

const native = { ALCOVE_PROVIDERS_DEFAULT: "native" };
const mock = { ALCOVE_PROVIDERS_DEFAULT: "mock", ALCOVE_PROVIDERS_MOCK_ENABLED: "true" };

/** What is called most, short enough for each change. */
export const hotRows: readonly HotRow[] = [
  {
    what: "native: buffered exec of true",
    unit: "ms",
    settings: native,
    measure: async ({ url }) => {
      const client = new KeepAliveClient(url);
      const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { vcpus: 2 });
      const exec = () =>
        client.expect(200, "POST", `/sandboxes/${id}/exec`, { command: "/bin/true", mode: "argv" });
      await timeEach({ count: 0, warmup: 1_000 }, exec);
      return {
        round: async () => summarize(await timeEach({ count: 150, warmup: 0 }, exec)).p50,
        [Symbol.asyncDispose]: async () => client.close(),
      };
    },
  },
  {
    what: "native: spawn, exec and destroy",
    unit: "ms",
    settings: native,
    measure: async ({ url }) => {
      const client = new KeepAliveClient(url);
      const once = async () => {
        const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", {});
        await client.expect(200, "POST", `/sandboxes/${id}/exec`, { command: "echo ready" });
        await client.expect(200, "DELETE", `/sandboxes/${id}`);
      };
      await timeEach({ count: 0, warmup: 20 }, once);
      return {
        round: async () => summarize(await timeEach({ count: 15, warmup: 0 }, once)).p50,
        [Symbol.asyncDispose]: async () => client.close(),
      };
    },
  },
  {
    what: "mock: spawn and destroy, of the service's processors",
    unit: "ms",
    settings: mock,
    measure: async ({ url, pid }) => {
      const clients = Array.from({ length: 16 }, () => new KeepAliveClient(url));
      const pairs = (count: number) =>
        Promise.all(
          clients.map(async (client) => {
            for (let index = 0; index < count; index++) {
              const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", {});
              await client.expect(200, "DELETE", `/sandboxes/${id}`);
            }
          }),
        );
      await pairs(300);
      return {
        round: async () => {
          const before = await processorMs(pid);
          await pairs(100);
          return ((await processorMs(pid)) - before) / (clients.length * 100);
        },
        [Symbol.asyncDispose]: async () => {
          for (const client of clients) client.close();
        },
      };
    },
  },
];
