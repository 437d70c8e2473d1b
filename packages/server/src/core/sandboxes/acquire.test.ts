import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { SqliteStore } from "../../stores/sqlite/index.ts";
import { FakeClock, settle } from "../testing/fake-clock.ts";
import { forever, Harness } from "../testing/harness.ts";

let store: SqliteStore;
let clock: FakeClock;
let harness: Harness;

beforeEach(async () => {
  store = await SqliteStore.open({ path: ":memory:" });
  clock = new FakeClock();
  harness = await new Harness({ store, clock }).start();
});
afterEach(async () => {
  await harness[Symbol.asyncDispose]();
  await store[Symbol.asyncDispose]();
});

const acquire = (name = "web") => harness.service.acquire({ name, ownerId: "acme" }, { signal: forever });

describe("acquire()", () => {
  it("gives one that does not answer as it is", async () => {
    const { sandbox } = await acquire();
    await store.sandboxes.update(
      sandbox.id,
      ["running"],
      { state: "unhealthy", updatedAt: clock.now() },
      { holder: "", generation: 0 },
    );
    expect(await acquire()).toMatchObject({ made: false, sandbox: { id: sandbox.id, state: "unhealthy" } });
  });

  it("makes another one once the sandbox has expired", async () => {
    const { sandbox } = await acquire();
    await clock.advance(31 * 60_000);
    await settle();
    const next = await acquire();
    expect(next.made).toBe(true);
    expect(next.sandbox.id).not.toBe(sandbox.id);
  });

  it("makes another one at once when the clock was set to after its end", async () => {
    const { sandbox } = await acquire();
    clock.jump(3_600_000);
    const next = await acquire();
    expect(next).toMatchObject({ made: true });
    expect((await store.sandboxes.get(sandbox.id))?.state).toBe("destroyed");
  });

  it("gives up on one whose destroy is not confirmed, and makes another once it is", async () => {
    const { sandbox } = await acquire();
    harness.provider.hook = (step) => {
      if (step === "destroy") throw new Error("not now");
    };
    await harness.service.destroy(sandbox.id, { signal: forever }).catch(() => undefined);
    const waiting = acquire();
    const refused = expect(waiting).rejects.toMatchObject({ code: "unavailable" });
    for (let turn = 0; turn < 70; turn++) {
      await settle();
      await clock.advance(100);
    }
    await refused;
    harness.provider.hook = () => undefined;
    await harness.service.destroy(sandbox.id, { signal: forever });
    expect(await acquire()).toMatchObject({ made: true });
  });

  it("passes a failed spawn's turn on to the next", async () => {
    let failures = 1;
    harness.provider.hook = (step) => {
      if (step === "spawn" && failures-- > 0) throw new Error("not now");
    };
    const answers = await Promise.allSettled([acquire(), acquire(), acquire()]);
    expect(answers.filter(({ status }) => status === "rejected")).toHaveLength(1);
    const given = answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : []));
    expect(given.map(({ made }) => made).sort()).toEqual([false, true]);
    expect(new Set(given.map(({ sandbox }) => sandbox.id)).size).toBe(1);
  });
});
