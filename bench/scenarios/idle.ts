import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { startService } from "../service.ts";

const mebibyte = 1_048_576;

interface Spawned {
  id: string;
}
interface Stats {
  memory_bytes?: number;
}

/** What sandboxes that do nothing cost: each one's memory, and the server's with five hundred of them. */
export async function idleCost(): Promise<Row[]> {
  const count = 500;
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const clients = Array.from({ length: 8 }, () => new KeepAliveClient(service.url));
  const ids: string[] = [];
  await Promise.all(
    clients.map(async (client, index) => {
      for (let number = index; number < count; number += clients.length) {
        ids.push((await client.expect<Spawned>(201, "POST", "/sandboxes", {})).id);
      }
    }),
  );
  const rss = await service.rssBytes();
  const [client] = clients;
  const [first] = ids;
  if (client === undefined || first === undefined) throw new Error("nothing was spawned");
  const stats = await client.expect<Stats>(200, "GET", `/sandboxes/${first}/stats`);
  await Promise.all(
    clients.map(async (each, index) => {
      for (let number = index; number < ids.length; number += clients.length)
        await each.expect(200, "DELETE", `/sandboxes/${ids[number]}`);
      each.close();
    }),
  );
  const perSandbox = stats.memory_bytes ?? Number.NaN;
  return [
    {
      what: "native: idle cost with 500 sandboxes",
      figure: `${(perSandbox / mebibyte).toFixed(2)} MiB per sandbox, server RSS ${Math.round(rss / mebibyte)} MiB`,
      floor: "-",
      budget: "≤ 2 MB per sandbox, server ≤ 150 MB",
      met: perSandbox <= 2e6 && rss <= 150e6,
      data: { perSandbox, serverRss: rss },
    },
  ];
}
