import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { silentLogger } from "../../platform/logger.ts";
import type { Launcher } from "../launcher/index.ts";
import type { LaunchGround } from "./launch-ground.ts";
import { Removals } from "./removals.ts";
import type { RuntimeDirectories } from "./runtime-directories.ts";

const ground = { rooted: false, unprivilegedIds: { kind: "single" } } as LaunchGround;

describe("what was deleted and is still there", () => {
  let trash: string[];
  let deleted: string[];
  let destroy: (dir: string) => Promise<void>;
  let removals: Removals;
  /** A look, and all that it begins. */
  const look = async () => {
    removals.clear(ground);
    await removals.settled();
    return deleted.splice(0);
  };
  const pass = (ms: number) => vi.advanceTimersByTime(ms);

  beforeEach(() => {
    vi.useFakeTimers({ toFake: ["performance"] });
    [trash, deleted] = [["/trash/one"], []];
    destroy = async () => undefined;
    const directories: Partial<RuntimeDirectories> = { trash: "/trash", listTrash: async () => trash };
    const launcher: Pick<Launcher, "destroy"> = {
      destroy: async ({ dir }) => {
        deleted.push(dir);
        await destroy(dir);
      },
    };
    removals = new Removals({
      directories: directories as RuntimeDirectories,
      launcher: launcher as Launcher,
      uidBase: 1,
      isOwn: () => true,
      busy: () => ({ [Symbol.dispose]: () => undefined }),
      logger: silentLogger,
    });
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it("is left for half a minute to whoever deletes it, and deleted once more then", async () => {
    expect(await look()).toEqual([]);
    pass(29_999);
    expect(await look()).toEqual([]);
    pass(1);
    expect(await look()).toEqual(["/trash/one"]);
  });

  it("is tried ever more rarely where that does not help, once an hour at least", async () => {
    await look();
    const triedAtMinutes: number[] = [];
    for (let minute = 1; minute <= 300; minute++) {
      pass(60_000);
      if ((await look()).length > 0) triedAtMinutes.push(minute);
    }
    expect(triedAtMinutes).toEqual([1, 2, 4, 8, 16, 32, 64, 124, 184, 244]);
  });

  it("is forgotten once it is gone: another of its name has its half minute", async () => {
    await look();
    trash = [];
    pass(60_000);
    await look();
    trash = ["/trash/one"];
    expect(await look()).toEqual([]);
  });

  it("is waited for by nobody, and nothing more is begun once the service gives up", async () => {
    trash = ["/trash/one", "/trash/two"];
    await look();
    pass(60_000);
    const launcher = Promise.withResolvers<void>();
    destroy = () => launcher.promise;
    removals.clear(ground);
    await vi.waitFor(() => expect(deleted).toEqual(["/trash/one"]));
    removals.giveUp();
    launcher.resolve();
    await removals.settled();
    expect(deleted).toEqual(["/trash/one"]);
  });

  it("keeps nothing else from being deleted where it cannot be", async () => {
    trash = ["/trash/one", "/trash/two"];
    await look();
    pass(30_000);
    destroy = (dir) => (dir === "/trash/one" ? Promise.reject(new Error("it is busy")) : Promise.resolve());
    expect(await look()).toEqual(["/trash/one", "/trash/two"]);
  });

  it("is kept in mind once where it cannot be removed, however often that was tried", async () => {
    let tries = 0;
    const remove = async () => {
      tries += 1;
      throw new Error("it is busy");
    };
    for (let time = 0; time < 3; time++) await removals.removeOrLeave("/group", remove);
    tries = 0;
    await look();
    expect(tries).toBe(1);
  });
});
