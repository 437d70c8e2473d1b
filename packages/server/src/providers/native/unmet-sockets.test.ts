import { describe, expect, it } from "vitest";
import type { OpenFile } from "./open-files.ts";
import { UnmetSockets } from "./unmet-sockets.ts";

const socket = (inode: number): OpenFile => ({
  kind: "socket",
  device: 9,
  inode,
  size: 0,
  unlinked: false,
  path: undefined,
  waiting: 0,
});
const open = (inodes: readonly number[], each = 1) => ({
  sample: inodes.map(socket),
  each,
  refused: false,
});

describe("Unix sockets that no descriptor is met for", () => {
  it("are told once one was nowhere open at three looks in a row", () => {
    const unmet = new UnmetSockets();
    for (const told of [false, false, true]) {
      unmet.look(open([1, 2]), [1, 2, 3]);
      expect(unmet.areNowhere).toBe(told);
    }
  });

  it("are not told where another one was made at each look meanwhile", () => {
    const unmet = new UnmetSockets();
    for (let look = 0; look < 20; look++) {
      unmet.look(open([1]), [1, 100 + look]);
      expect(unmet.areNowhere).toBe(false);
    }
  });

  it("are not told of who has so many open files that each look meets some by chance, but for one that none meets", () => {
    const sockets = Array.from({ length: 1_000 }, (_, index) => index + 1);
    const [honest, hiding] = [new UnmetSockets(), new UnmetSockets()];
    for (let look = 0; look < 60; look++) {
      const met = () => sockets.filter(() => Math.random() < 0.5);
      honest.look(open(met(), 2), sockets);
      hiding.look(open(met(), 2), [...sockets, 2_000]);
      expect(honest.areNowhere).toBe(false);
    }
    expect(hiding.areNowhere).toBe(true);
  });

  it("are not told where somebody may not be looked at, who may have them open", () => {
    const unmet = new UnmetSockets();
    for (let look = 0; look < 5; look++) {
      unmet.look({ ...open([1]), refused: true }, [1, 2]);
      expect(unmet.areNowhere).toBe(false);
    }
  });

  it("are told where there are too many to be read, as long as that is so", () => {
    const unmet = new UnmetSockets();
    for (let look = 0; look < 3; look++) unmet.look(open([1]), undefined);
    expect(unmet.areNowhere).toBe(true);
    unmet.look(open([1]), [1]);
    expect(unmet.areNowhere).toBe(false);
  });
});
