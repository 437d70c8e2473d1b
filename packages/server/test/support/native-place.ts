import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { TestClient } from "./http.ts";
import { ModelService } from "./model.ts";
import { nativeHome } from "./native.ts";
import { startTestServer, type TestServer } from "./test-server.ts";

/** A server over `native` and a sandbox of image `host`, which end together. */
export interface NativePlace extends AsyncDisposable {
  readonly dataDir: string;
  readonly server: TestServer;
  readonly client: TestClient;
  readonly id: string;
}

export async function nativePlace(): Promise<NativePlace> {
  await using stack = new AsyncDisposableStack();
  const home = await nativeHome();
  stack.defer(() => home.remove());
  const { dataDir } = home;
  const server = stack.use(await startTestServer({ provider: async () => home.open(), dataDir }));
  const client = new TestClient(server.url);
  const id = await client.spawn({ image: "host", ttl: "10m" });
  const owned = stack.move();
  return { dataDir, server, client, id, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/** A service over `native` in a process of its own, and the data directory that it keeps from start to start. */
export async function nativeService(
  env: Record<string, string>,
): Promise<{ service: ModelService; dataDir: string; remove(): Promise<void> }> {
  const dataDir = await mkdtemp(path.join(tmpdir(), "alcove-service-"));
  const service = new ModelService({
    ALCOVE_DATA_DIR: dataDir,
    ALCOVE_SERVER_PORT: "0",
    ALCOVE_PROVIDERS_DEFAULT: "native",
    ALCOVE_PROVIDERS_NATIVE_DISK_MB: "0",
    ALCOVE_PROVIDERS_NATIVE_MIN_FREE_MB: "0",
    ALCOVE_PROVIDERS_DOCKER_ENABLED: "false",
    ALCOVE_PROVIDERS_PROOT_ENABLED: "false",
    ...env,
  });
  await service.start();
  const remove = async () => {
    await service.stop();
    await rm(dataDir, { recursive: true, force: true });
  };
  return { service, dataDir, remove };
}
