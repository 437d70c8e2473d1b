import { expect, it } from "vitest";
import { Exposition } from "./exposition.ts";
import { Histogram } from "./histogram.ts";

it("writes each metric with its help, its type and its samples", () => {
  const waits = new Histogram([1, 10]);
  for (const ms of [0.5, 1, 7, 100]) waits.observe(ms);
  const text = new Exposition();
  text.counter("a_total", "All of a\nand \\.", 3);
  text.gauge("b", "Of each.", [[{ name: 'x"y\\z\n', other: "1" }, 0.25]]);
  text.histogram("c", "Waits.", [[{ of: "d" }, waits]]);
  expect(text.toString()).toBe(
    `# HELP a_total All of a\\nand \\\\.
# TYPE a_total counter
a_total 3
# HELP b Of each.
# TYPE b gauge
b{name="x\\"y\\\\z\\n",other="1"} 0.25
# HELP c Waits.
# TYPE c histogram
c_bucket{of="d",le="1"} 2
c_bucket{of="d",le="10"} 3
c_bucket{of="d",le="+Inf"} 4
c_sum{of="d"} 108.5
c_count{of="d"} 4
`,
  );
});
