import fc from "fast-check";
import { expect, test } from "vitest";
import { SummedMap } from "./summed-map.ts";

test("the sum is that of all entries of the maps that count in it, whatever was done to them", () => {
  const step = fc.record({
    what: fc.constantFrom("set", "set", "set", "delete", "clear", "leave"),
    map: fc.nat(2),
    key: fc.nat(5),
  });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const sum = { total: 0 };
      const maps = Array.from({ length: 3 }, () => new SummedMap<number, string>(sum));
      const counting = new Set(maps);
      for (const { what, map: index, key } of steps) {
        const map = maps[index] as SummedMap<number, string>;
        if (what === "set") map.set(key, "x");
        else if (what === "delete") map.delete(key);
        else if (what === "clear") map.clear();
        else {
          map.leaveSum();
          counting.delete(map);
        }
        expect(sum.total).toBe([...counting].reduce((all, { size }) => all + size, 0));
      }
    }),
  );
});
