import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { bubblewrap, forkExec, which } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import { inRounds, median, medianRatio } from "../rounds.ts";
import type { Row } from "../row.ts";
import { startService } from "../service.ts";
import { ms, summarize, timeEach } from "../stats.ts";

const run = promisify(execFile);

const rounds = 5;
const trueCommand = { command: "/bin/true", mode: "argv" };

interface Spawned {
  id: string;
}

/** A way to run `true`, milliseconds in the middle of some runs. */
type Way = () => Promise<number>;

/** What people would pick instead, as far as it is on the machine, in turns with the same by this service. */
export async function alternatives(): Promise<Row[]> {
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const client = new KeepAliveClient(service.url);
  const exec = (id: string) => client.expect(200, "POST", `/sandboxes/${id}/exec`, trueCommand);
  const spawn = () => client.expect<Spawned>(201, "POST", "/sandboxes", {});
  const destroy = (id: string) => client.expect(200, "DELETE", `/sandboxes/${id}`);
  const whole = async () => {
    const { id } = await spawn();
    await exec(id);
    await destroy(id);
  };
  const { id } = await spawn();
  await timeEach({ count: 0, warmup: 1_000 }, () => exec(id));
  await timeEach({ count: 0, warmup: 20 }, whole);
  const middle = async (count: number, operation: () => Promise<unknown>) =>
    summarize(await timeEach({ count, warmup: 0 }, operation)).p50;

  await using docker = await containers();
  const once: Record<string, Way> = { ...(await plainWays()), ...docker?.once };
  const again: Record<string, Way> = docker?.again ?? {};
  const rows = [
    ...(await compared("spawn, exec of true, destroy", () => middle(15, whole), once)),
    ...(await compared("exec of true", () => middle(50, () => exec(id)), again)),
  ];
  client.close();
  return rows;
}

async function compared(what: string, ours: Way, theirs: Record<string, Way>): Promise<Row[]> {
  if (Object.keys(theirs).length === 0) return [];
  const figures = await inRounds<string>(rounds, { ours, ...theirs });
  const own = figures.ours ?? [];
  return Object.keys(theirs).map((name) => {
    const other = figures[name] ?? [];
    const ratio = medianRatio(other, own);
    return {
      what: `native: ${what}`,
      figure: `p50 ${ms(median(own))}`,
      floor: `${name}: p50 ${ms(median(other))}, ${ratio.toFixed(1)} × ours`,
      budget: "-",
      met: undefined,
      data: { p50: median(own), other: median(other), ratio },
    };
  });
}

async function plainWays(): Promise<Record<string, Way>> {
  const ways: Record<string, Way> = {};
  const unshare = await which("unshare");
  if (unshare !== undefined)
    ways["unshare --fork --pid --mount-proc --net true"] = async () =>
      summarize(await forkExec([unshare, "--fork", "--pid", "--mount-proc", "--net", "/bin/true"], 15)).p50;
  if ((await which("bwrap")) !== undefined)
    ways["bwrap true"] = async () => summarize((await bubblewrap(15)) ?? []).p50;
  return ways;
}

/** By docker's own command line. @returns undefined when that, an engine or its image is missing. */
async function containers(): Promise<
  (AsyncDisposable & { once: Record<string, Way>; again: Record<string, Way> }) | undefined
> {
  const docker = await which("docker");
  if (docker === undefined) return undefined;
  const env = { ...process.env, DOCKER_HOST: process.env.BENCH_DOCKER ?? "unix:///var/run/docker.sock" };
  const image = process.env.BENCH_IMAGE ?? "busybox:latest";
  const call = (...words: string[]) => run(docker, words, { env });
  const started = await call("run", "-d", "--network", "none", image, "sleep", "1000000").catch(
    () => undefined,
  );
  if (started === undefined) return undefined;
  const container = started.stdout.trim();
  const some = (count: number, ...words: string[]) =>
    timeEach({ count, warmup: 1 }, () => call(...words)).then((taken) => summarize(taken).p50);
  return {
    once: { "docker run --rm true": () => some(3, "run", "--rm", "--network", "none", image, "true") },
    again: { "docker exec true": () => some(5, "exec", container, "true") },
    [Symbol.asyncDispose]: async () => {
      await call("rm", "--force", container);
    },
  };
}
