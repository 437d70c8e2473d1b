// A service with the native provider in a process of its own, for tests that change what is mounted around it.
// usage: native-service.ts DATA_DIR ROOTFS   prints one line of JSON: check(), and what a sandbox of each image says.
import { randomIds } from "../../../src/platform/random-ids.ts";
import { runScript } from "../attack-probe.ts";
import { nativeProvider, testImage } from "../native.ts";

const [dataDir = "", rootfs = ""] = process.argv.slice(2);
const soon = () => ({ signal: AbortSignal.timeout(30_000) });
const script = [
  "exec 2>/dev/null",
  "echo mine > /root/file && echo more >> /etc/passwd && stat -c %u /root/file",
  "ls -d /proc/[0-9]* | wc -l | sed 's/^[1-9]$/few/'",
  "ls -d /usr /etc /proc/self/status",
  "echo > /usr/planted && echo written",
].join("; ");

const provider = nativeProvider(dataDir, rootfs, { diskMb: process.env.ALCOVE_TEST_DISK_MB ? 256 : 0 });
const said: Record<string, unknown> = { check: await provider.check(soon()) };
for (const image of ["host", testImage]) {
  const runtimeId = randomIds.runtimeId();
  try {
    const spec = { runtimeId, sandboxId: randomIds.sandboxId(), image, memoryMb: 128, vcpus: 1 };
    await provider.spawn({ ...spec, env: {}, expiresInMs: 60_000, metadata: {} }, soon());
    said[image] = (await runScript(provider.sandbox(runtimeId), script)).output;
  } catch (error) {
    said[image] = error instanceof Error ? `failed: ${error.message}` : String(error);
  } finally {
    await provider.destroy(runtimeId, soon());
  }
}
said.left = await provider.inventory(soon());
await provider[Symbol.asyncDispose]();
console.log(JSON.stringify(said));
