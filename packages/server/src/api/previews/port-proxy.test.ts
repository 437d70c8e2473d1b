import { once } from "node:events";
import { Duplex } from "node:stream";
import { expect, test } from "vitest";
import { join } from "./port-proxy.ts";

const silent = () => new Duplex({ read: () => undefined, write: (_chunk, _encoding, done) => done() });

test.each([0, 1])(
  "a connection that has closed before it is carried closes the other (%i)",
  async (first) => {
    const both = [silent(), silent()] as const;
    both[first]?.destroy();
    await once(both[first] as Duplex, "close");
    await join(both[0], both[1], new AbortController().signal);
    expect(both.map(({ closed }) => closed)).toEqual([true, true]);
  },
);
