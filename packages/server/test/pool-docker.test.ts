import { expect, test, vi } from "vitest";
import { sharedEngine } from "./support/docker-engine.ts";
import { openDocker } from "./support/docker-provider.ts";
import { TestClient } from "./support/http.ts";
import { describeWith } from "./support/requirements.ts";
import { startTestServer } from "./support/test-server.ts";

// On a machine that is busy with other tests.
vi.setConfig({ testTimeout: 60_000 });

await describeWith(["docker", "agent", "busybox"], "users of one VM on docker", () => {
  test.each([false, true])("are apart and at home, with a read-only image: %s", async (readOnlyRootfs) => {
    const docker = await openDocker(await sharedEngine(), { config: { readOnlyRootfs } });
    await using stack = new AsyncDisposableStack();
    stack.defer(() => docker.close());
    const server = stack.use(
      await startTestServer({
        provider: async () => docker.provider,
        env: {
          ALCOVE_POOL_ENABLED: "true",
          ALCOVE_POOL_MAX_VMS: "1",
          ALCOVE_POOL_MAX_USERS_PER_VM: "2",
          ALCOVE_POOL_MEMORY_MB: "128",
          ALCOVE_SERVER_DESTROY_ON_EXIT: "true",
        },
      }),
    );
    const [ann, bob] = ["ann", "bob"].map((name) => new TestClient(server.url, { "x-user-id": name }));
    if (ann === undefined || bob === undefined) throw new Error("there are two of them");
    const mine = await ann.spawn();
    const other = await bob.spawn();
    const run = async (of: TestClient, id: string, command: string) => (await of.exec(id, { command })).json;
    expect((await run(ann, mine, "id -u; pwd; stat -c '%a %u' /workspace")).stdout).toBe(
      "10001\n/workspace\n700 10001\n",
    );
    expect((await run(bob, other, "id -u")).stdout).toBe("10002\n");
    await ann.call("POST", `/api/v1/sandboxes/${mine}/files`, { path: "/secret", content: "treasure" });
    await run(ann, mine, "cp secret /tmp/secret; chmod 777 secret /tmp/secret");
    expect((await run(ann, mine, "cat /workspace/secret")).stdout).toBe("treasure");
    const { stdout } = await run(
      bob,
      other,
      "cat /workspace/secret /tmp/secret /proc/[0-9]*/cwd/secret 2>&1",
    );
    expect(stdout).not.toContain("treasure");
    expect((await run(bob, other, "dd if=/dev/zero of=/dev/shm/fill bs=1M count=90")).exit_code).not.toBe(0);
    const eve = new TestClient(server.url, { "x-user-id": "eve" });
    expect((await eve.call("POST", "/api/v1/sandboxes", {})).status).toBe(503);
    for (const [of, id] of [
      [ann, mine],
      [bob, other],
    ] as const)
      expect((await of.call("DELETE", `/api/v1/sandboxes/${id}`)).status).toBe(200);
    expect((await eve.call("GET", "/api/v1/pool/status")).json).toMatchObject({ vms: 0, total_users: 0 });
  });
});
