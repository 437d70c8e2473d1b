import { setTimeout as delay } from "node:timers/promises";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { startService } from "../service.ts";
import { summarize } from "../stats.ts";

const warmup = 60;
const rounds = 25;
/** So many in a row, as the rows of spawns have them. */
const inRow = 3;
/** Until what was claimed is made again. */
const settleMs = 200;

/**
 * Where the time of a spawn goes, as `Server-Timing` tells it: the launcher's steps are parts of `launch`, and `launch`, `wait` and `configure` of
 * `provider`. What a client waits beside them is HTTP, checks and the answer.
 */
export async function spawnHops(): Promise<Row[]> {
  return [...(await hopsOf("cold", "0")), ...(await hopsOf("prepared", "4"))];
}

async function hopsOf(kind: string, prepared: string): Promise<Row[]> {
  await using service = await startService({
    ALCOVE_PROVIDERS_DEFAULT: "native",
    ALCOVE_PROVIDERS_NATIVE_PREPARED: prepared,
  });
  const client = new KeepAliveClient(service.url);
  const told = new Map<string, number[]>();
  const tell = (stage: string, ms: number) => told.set(stage, [...(told.get(stage) ?? []), ms]);
  const spawn = async () => {
    const began = performance.now();
    const { status, head, body } = await client.request("POST", "/sandboxes", {});
    const wholeMs = performance.now() - began;
    if (status !== 201) throw new Error(`POST /sandboxes: ${status} ${body}`);
    await client.expect(200, "DELETE", `/sandboxes/${JSON.parse(body).id}`);
    return { wholeMs, stages: stagesIn(head) };
  };
  for (let index = 0; index < warmup; index++) await spawn();
  for (let index = 0; index < rounds * inRow; index++) {
    if (index % inRow === 0) await delay(settleMs);
    const { wholeMs, stages } = await spawn();
    // One that found none waiting.
    if (kind === "prepared" && stages.has("launch_directory")) continue;
    for (const [stage, ms] of stages) tell(stage, ms);
    tell("client", wholeMs);
  }
  client.close();
  const count = told.get("client")?.length ?? 0;
  return [...told].map(([stage, all]) => {
    const { p50 } = summarize(all);
    const figure = `${p50.toFixed(2)} ms${stage === "client" ? `, ${count} spawns` : ""}`;
    return {
      what: `spawn, ${kind}: ${stage}`,
      figure,
      floor: "-",
      budget: "-",
      met: undefined,
      data: { p50 },
    };
  });
}

function stagesIn(head: string): Map<string, number> {
  const value = /^server-timing: (.*)$/im.exec(head)?.[1] ?? "";
  return new Map(
    value.split(", ").flatMap((entry) => {
      const [stage, ms] = entry.split(";dur=");
      return stage === undefined || ms === undefined ? [] : [[stage, Number(ms)] as const];
    }),
  );
}
