import { copyFile, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { forkExec, forkExecPerSecond, freshProot, which } from "../floors.ts";
import { KeepAliveClient } from "../keep-alive-client.ts";
import type { Row } from "../row.ts";
import { startService } from "../service.ts";
import { ms, perSecond, summarize, sustain, timeEach } from "../stats.ts";

interface Spawned {
  id: string;
}

const trueCommand = { command: "/bin/true", mode: "argv" };

/** Buffered exec of `true` on native: one client, then sixteen. */
export async function nativeExec(): Promise<Row[]> {
  const floor = summarize(await forkExec(["/bin/true"], 400));
  const bothCores = await forkExecPerSecond(["/bin/true"], 1_500);
  await using service = await startService({ ALCOVE_PROVIDERS_DEFAULT: "native" });
  const client = new KeepAliveClient(service.url);
  // With one virtual CPU the sandbox's own limit would be measured.
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { vcpus: 2 });
  const exec = (with_: KeepAliveClient) => with_.expect(200, "POST", `/sandboxes/${id}/exec`, trueCommand);
  const serial = summarize(await timeEach({ count: 500, warmup: 100 }, () => exec(client)));
  const clients = Array.from({ length: 16 }, () => new KeepAliveClient(service.url));
  await sustain({ clients: 16, durationMs: 1_000 }, (index) => exec(clients[index] ?? client));
  const load = await sustain({ clients: 16, durationMs: 5_000 }, (index) => exec(clients[index] ?? client));
  const loaded = summarize(load.samples);
  for (const each of [client, ...clients]) each.close();
  return [
    {
      what: "native: buffered exec of true, 1 client",
      figure: `p50 ${ms(serial.p50)}, p95 ${ms(serial.p95)}`,
      floor: `fork+exec p50 ${ms(floor.p50)}`,
      budget: "p50 ≤ floor + 1 ms",
      met: serial.p50 <= floor.p50 + 1,
      data: { p50: serial.p50, p95: serial.p95, floor: floor.p50 },
    },
    {
      what: "native: buffered exec of true, 16 clients",
      figure: `${perSecond(load.perSecond)}, p50 ${ms(loaded.p50)}, p99 ${ms(loaded.p99)}`,
      floor: `fork+exec alone, on two cores ${perSecond(bothCores)}`,
      budget: "≥ 2000/s",
      met: load.perSecond >= 2_000,
      data: { perSecond: load.perSecond, p50: loaded.p50, p99: loaded.p99, floor: bothCores },
    },
  ];
}

/** Buffered exec on proot, in a root of busybox, against a proot started afresh for each command there. */
export async function prootExec(): Promise<Row[]> {
  const [proot, busybox] = await Promise.all([which("proot"), which("busybox")]);
  if (proot === undefined || busybox === undefined) return [];
  const root = await busyboxRoot(busybox);
  const floor = summarize(await freshProot(proot, root, 60));
  await using service = await startService({
    ALCOVE_PROVIDERS_DEFAULT: "proot",
    ALCOVE_PROVIDERS_PROOT_ENABLED: "true",
  });
  await service.command(["image", "import", root, "bench:latest"]);
  await rm(root, { recursive: true });
  const client = new KeepAliveClient(service.url);
  const { id } = await client.expect<Spawned>(201, "POST", "/sandboxes", { image: "bench:latest" });
  const serial = summarize(
    await timeEach({ count: 200, warmup: 20 }, () =>
      client.expect(200, "POST", `/sandboxes/${id}/exec`, trueCommand),
    ),
  );
  client.close();
  return [
    {
      what: "proot: buffered exec of true",
      figure: `p50 ${ms(serial.p50)}, p95 ${ms(serial.p95)}`,
      floor: `a new proot p50 ${ms(floor.p50)}`,
      budget: "below the floor",
      met: serial.p50 < floor.p50,
      data: { p50: serial.p50, p95: serial.p95, floor: floor.p50 },
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
