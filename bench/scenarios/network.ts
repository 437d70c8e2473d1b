import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { Readable } from "node:stream";
import { promisify } from "node:util";
import { randomIds } from "../../packages/server/src/platform/random-ids.ts";
import type { RuntimeId, RuntimeSpec } from "../../packages/server/src/ports/index.ts";
import type { NativeProvider } from "../../packages/server/src/providers/native/index.ts";
import { runScript } from "../../packages/server/test/support/attack-probe.ts";
import { allowed, FarNetwork, farAddress } from "../../packages/server/test/support/far-network.ts";
import { nativeHome } from "../../packages/server/test/support/native.ts";
import { which } from "../floors.ts";
import type { Row } from "../row.ts";
import { projectRoot } from "../service.ts";
import { ms, summarize } from "../stats.ts";

const run = promisify(execFile);
const rounds = 40;
const seconds = 3;
const press = path.join(projectRoot, "packages/server/test/support/programs/press.py");
const soon = () => ({ signal: AbortSignal.timeout(60_000) });

/**
 * What a network costs a sandbox: time, memory and bytes, each beside `slirp4netns` alone. Bytes go between two network
 * namespaces of this run's own.
 */
export async function networkRows(): Promise<Row[]> {
  const slirp = await which("slirp4netns");
  if (slirp === undefined || process.getuid?.() !== 0) return [];
  await using network = await FarNetwork.open();
  const home = await nativeHome();
  const config = { networkMode: "outbound", networkAllow: [allowed], networkMbit: 0 } as const;
  const provider = home.open(config, { launcher: network.launcher });
  try {
    await provider.check(soon());
    const [without, within] = [[], []] as [number[], number[]];
    for (let round = 0; round < rounds; round += 1) {
      without.push(await spawnOnce(provider, { network: "none" }));
      within.push(await spawnOnce(provider, {}));
    }
    const runtimeId = randomIds.runtimeId();
    await provider.spawn(specOf(runtimeId, {}), soon());
    const operations = provider.sandbox(runtimeId);
    await operations.files.write("/tmp/press.py", Readable.from([await readFile(press)]), soon());
    const measured = async (what: string): Promise<number> =>
      JSON.parse(
        (await runScript(operations, `python3 /tmp/press.py ${what} ${farAddress} ${seconds}`)).output,
      ).bytes;
    const relay: number = JSON.parse(
      await readFile(path.join(home.dataDir, "runtimes/native", runtimeId, "network.json"), "utf8"),
    ).pid;
    const idle = { relay: await memoryOf(relay), helper: await memoryOf(await childOf(relay)) };
    const [received, sent] = [await measured("receive"), await measured("send")];
    await provider.destroy(runtimeId, soon());
    const floor = await slirpAlone(slirp, network);
    const [plain, connected] = [summarize(without), summarize(within)];
    const mib = (bytes: number) => `${(bytes / 1_048_576).toFixed(2)} MiB`;
    const rate = (bytes: number) => `${Math.round(bytes / seconds / 1e6)} MB/s`;
    return [
      {
        what: "native: spawn with a network",
        figure: `p50 ${ms(connected.p50)}, p95 ${ms(connected.p95)}; without p50 ${ms(plain.p50)}`,
        floor: `slirp4netns alone, until it runs p50 ${ms(summarize(floor.started).p50)}`,
        budget: "without + the floor",
        met: connected.p50 <= plain.p50 + summarize(floor.started).p50,
        data: {
          p50: connected.p50,
          p95: connected.p95,
          without: plain.p50,
          floor: summarize(floor.started).p50,
        },
      },
      {
        what: "native: memory of a network, its own",
        figure: `relay ${mib(idle.relay)}, slirp4netns ${mib(idle.helper)}; without none`,
        floor: `slirp4netns alone ${mib(floor.memory)}`,
        budget: "floor + 1 MiB",
        met: idle.relay + idle.helper <= floor.memory + 1_048_576,
        data: { relay: idle.relay, helper: idle.helper, floor: floor.memory },
      },
      {
        what: "native: one connection to outside, no limit",
        figure: `receives ${rate(received)}, sends ${rate(sent)}`,
        floor: `slirp4netns alone ${rate(floor.received)}, ${rate(floor.sent)}`,
        budget: "≥ 125 MB/s each",
        met: Math.min(received, sent) >= 125e6 * seconds,
        data: { received, sent, floorReceived: floor.received, floorSent: floor.sent },
      },
    ];
  } finally {
    await provider[Symbol.asyncDispose]();
    await home.remove();
  }
}

function specOf(runtimeId: RuntimeId, change: Partial<RuntimeSpec>): RuntimeSpec {
  const spec = { image: "host", memoryMb: 256, vcpus: 2, env: {}, expiresInMs: 600_000, metadata: {} };
  return { runtimeId, sandboxId: randomIds.sandboxId(), ...spec, ...change };
}

async function spawnOnce(provider: NativeProvider, change: Partial<RuntimeSpec>): Promise<number> {
  const runtimeId = randomIds.runtimeId();
  const began = performance.now();
  await provider.spawn(specOf(runtimeId, change), soon());
  const spent = performance.now() - began;
  await provider.destroy(runtimeId, soon());
  return spent;
}

/** The helper as its own manual has it: with an interface in a namespace, and no relay. */
async function slirpAlone(
  slirp: string,
  network: FarNetwork,
): Promise<{ started: number[]; memory: number; received: number; sent: number }> {
  const started: number[] = [];
  for (let round = 0; ; round += 1) {
    const holder = spawn("unshare", ["--net", "sleep", "600"], { stdio: "ignore" });
    // It is in its namespace once it is what it was to become.
    while ((await readFile(`/proc/${holder.pid}/comm`, "utf8")).trim() !== "sleep") await tick();
    const began = performance.now();
    const options = ["--configure", "--mtu=16384", "--enable-sandbox", "--enable-seccomp", "--ready-fd=3"];
    const helper = spawn(network.entry, [slirp, ...options, String(holder.pid), "tap0"], {
      stdio: ["ignore", "ignore", "ignore", "pipe"],
    });
    await once(helper.stdio[3] as NodeJS.ReadableStream, "data");
    started.push(performance.now() - began);
    const last = round === rounds - 1;
    const figures = last && {
      memory: await memoryOf(helper.pid ?? 0),
      received: await within(holder.pid, "receive"),
      sent: await within(holder.pid, "send"),
    };
    const ended = Promise.all([once(helper, "exit"), once(holder, "exit")]);
    helper.kill("SIGKILL");
    holder.kill("SIGKILL");
    await ended;
    if (figures) return { started, ...figures };
  }
}

async function within(pid: number | undefined, what: string): Promise<number> {
  const command = [`--net=/proc/${pid}/ns/net`, "python3", press, what, farAddress, String(seconds)];
  const { stdout } = await run("nsenter", command);
  return JSON.parse(stdout).bytes;
}

/** What is its own: shared pages of programs are there once, however many run. */
async function memoryOf(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/smaps_rollup`, "utf8");
  return 1_024 * Number(/^Private_Dirty:\s+(\d+)/m.exec(text)?.[1]);
}

async function childOf(pid: number): Promise<number> {
  return Number((await readFile(`/proc/${pid}/task/${pid}/children`, "utf8")).trim().split(" ")[0]);
}

const tick = () => new Promise((resolve) => setTimeout(resolve, 1));
