import { copyFile, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { floorProgram, forkExec, forkExecPerSecond, freshProot, which } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import { type TimingOptions, timeCalls } from "../light-client.ts";
import { inRounds, median, medianRatio } from "../rounds.ts";
import type { Row } from "../row.ts";
import { startService } from "../service.ts";
import { ms, percent, perSecond, summarize, timeEach } from "../stats.ts";

interface Spawned {
  id: string;
}

const trueCommand = { command: "/bin/true", mode: "argv" };

const rounds = 7;
/** Before that V8 has compiled little of the service. */
const warmUp = 1_000;
const fresh = 150;
const atOnce = 16;
/** More calls than a round has time for. */
const unbounded = 1_000_000;

/** Buffered exec of `true` on native: the first calls of a service, one client, then sixteen. */
export async function nativeExec(): Promise<Row[]> {
  // Made before a connection would wait for it.
  await floorProgram();
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const { url } = service;
  const client = new KeepAliveClient(url);
  // With one virtual CPU the sandbox's own limit would be measured.
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { vcpus: 2 });
  client.close();
  const exec = { method: "POST", path: `/sandboxes/${id}/exec`, body: trueCommand };
  const times = async (options: Omit<TimingOptions, "url">) =>
    (await timeCalls([exec], { url, ...options })).flat();
  const p50 = async (count: number) => summarize(await times({ count })).p50;
  const floorP50 = async () => summarize(await forkExec(["/bin/true"], 120)).p50;
  const aboveFloor = (figure: number, floor: number) => (figure - floor) / floor;

  await floorP50();
  const first = { floor: await floorP50(), p50: await p50(fresh) };
  await times({ count: warmUp });
  const serial = await inRounds(rounds, { floor: floorP50, exec: () => p50(120) });
  const [one, floor] = [median(serial.exec), median(serial.floor)];
  const above = medianRatio(serial.exec, serial.floor, aboveFloor);

  const sixteen = (durationMs: number) => times({ clients: atOnce, count: unbounded, durationMs });
  await sixteen(1_000);
  const samples: number[] = [];
  const load = await inRounds(rounds, {
    bothCores: () => forkExecPerSecond(["/bin/true"], 750),
    exec: async () => {
      const taken = await sixteen(1_000);
      samples.push(...taken);
      const busyMs = taken.reduce((sum, each) => sum + each, 0) / atOnce;
      return (taken.length * 1_000) / busyMs;
    },
  });
  const loaded = summarize(samples);
  const share = medianRatio(load.exec, load.bothCores);
  const firstAbove = aboveFloor(first.p50, first.floor);
  return [
    {
      what: "native: buffered exec of true, 1 client",
      figure: `p50 ${ms(one)}, above the floor ${above.toFixed(2)} × the floor`,
      floor: `fork+exec p50 ${ms(floor)}`,
      budget: "≤ 0.9 × the floor above it",
      met: above <= 0.9,
      data: { p50: one, floor, above },
    },
    {
      what: `native: the same, first ${fresh} calls of a fresh service`,
      figure: `p50 ${ms(first.p50)}, above the floor ${firstAbove.toFixed(2)} × the floor`,
      floor: `fork+exec p50 ${ms(first.floor)}`,
      budget: "-",
      met: undefined,
      data: { p50: first.p50, floor: first.floor, above: firstAbove },
    },
    {
      what: "native: buffered exec of true, 16 clients",
      figure: `${perSecond(median(load.exec))}, ${percent(share)} of the floor, p50 ${ms(loaded.p50)}, p99 ${ms(loaded.p99)}`,
      floor: `fork+exec alone, on two cores ${perSecond(median(load.bothCores))}`,
      budget: "≥ 68 % of the floor",
      met: share >= 0.68,
      data: {
        perSecond: median(load.exec),
        share,
        p50: loaded.p50,
        p99: loaded.p99,
        floor: median(load.bothCores),
      },
    },
  ];
}

/** Buffered exec on proot, in a root of busybox, against a proot started afresh for each command there. */
export async function prootExec(): Promise<Row[]> {
  const [proot, busybox] = await Promise.all([which("proot"), which("busybox")]);
  if (proot === undefined || busybox === undefined) return [];
  await floorProgram();
  const root = await busyboxRoot(busybox);
  await using service = await startService({
    ALCOVE_PROVIDERS_DEFAULT: "proot",
    ALCOVE_PROVIDERS_PROOT_ENABLED: "true",
  });
  await service.command(["image", "import", root, "bench:latest"]);
  const client = new KeepAliveClient(service.url);
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { image: "bench:latest" });
  const exec = () => client.expect(200, "POST", `/sandboxes/${id}/exec`, trueCommand);
  await timeEach({ count: warmUp, warmup: 0 }, exec);
  const { figures, floors } = await inRounds(rounds, {
    floors: async () => summarize(await freshProot(proot, root, 30)).p50,
    figures: async () => summarize(await timeEach({ count: 40, warmup: 0 }, exec)).p50,
  });
  client.close();
  await rm(root, { recursive: true });
  const ratio = medianRatio(figures, floors);
  return [
    {
      what: "proot: buffered exec of true",
      figure: `p50 ${ms(median(figures))}, ${ratio.toFixed(2)} × a new proot`,
      floor: `a new proot p50 ${ms(median(floors))}`,
      budget: "≤ 1.2 ×",
      met: ratio <= 1.2,
      data: { p50: median(figures), floor: median(floors), ratio },
    },
  ];
}

/** The smallest root file system that has `true`; the program must be static. */
async function busyboxRoot(busybox: string): Promise<string> {
  const root = await mkdtemp(path.join(tmpdir(), "alcove-bench-root-"));
  for (const folder of ["bin", "etc", "tmp", "proc", "dev"]) await mkdir(path.join(root, folder));
  await copyFile(busybox, path.join(root, "bin", "busybox"));
  for (const applet of ["sh", "true"]) await symlink("busybox", path.join(root, "bin", applet));
  await writeFile(path.join(root, "etc", "passwd"), "root:x:0:0:root:/root:/bin/sh\n");
  return root;
}
