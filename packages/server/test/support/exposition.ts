const number = String.raw`(?:[+-]?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|Inf)|NaN)`;
const sampleLine = new RegExp(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\\{(.*)\\})? (${number})$`);
const labelPair = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|$)/y;

/**
 * Reads the text format of Prometheus (0.0.4), strictly: every metric has one help and one type before its samples, which
 * stand together and are there once; labels are well-formed; histograms have rising buckets that end in their count.
 * @returns value by name and labels, as they stand in the text.
 */
export function readExposition(text: string): Map<string, number> {
  if (!text.endsWith("\n")) throw new Error("the last line does not end");
  const samples = new Map<string, number>();
  const types = new Map<string, string>();
  const helped = new Set<string>();
  let current = "";
  for (const line of text.slice(0, -1).split("\n")) {
    const [, keyword, metric = "", rest = ""] = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line) ?? [];
    if (keyword === "HELP") {
      if (helped.has(metric)) throw new Error(`two helps: ${line}`);
      helped.add(metric);
      current = metric;
    } else if (keyword === "TYPE") {
      if (current !== metric || types.has(metric)) throw new Error(`type out of place: ${line}`);
      if (!["counter", "gauge", "histogram"].includes(rest)) throw new Error(`unknown type: ${line}`);
      types.set(metric, rest);
    } else {
      const [, name = "", labels, value] = sampleLine.exec(line) ?? [];
      const of = types.get(current) === "histogram" ? name.replace(/_(?:bucket|sum|count)$/, "") : name;
      if (of !== current || !types.has(current)) throw new Error(`sample out of place: ${line}`);
      if (labels !== undefined) checkLabels(labels, line);
      const key = labels === undefined ? name : `${name}{${labels}}`;
      if (samples.has(key)) throw new Error(`two samples: ${line}`);
      if (types.get(current) !== "gauge" && Number(value) < 0) throw new Error(`negative: ${line}`);
      samples.set(key, Number(value));
    }
  }
  for (const [metric, type] of types) if (type === "histogram") checkHistogram(metric, samples);
  return samples;
}

function checkLabels(labels: string, line: string): void {
  const names = new Set<string>();
  labelPair.lastIndex = 0;
  while (labelPair.lastIndex < labels.length) {
    const [, name = "", , end] = labelPair.exec(labels) ?? [];
    if (name === "" || names.has(name)) throw new Error(`labels: ${line}`);
    names.add(name);
    if (end === "" && labelPair.lastIndex !== labels.length) throw new Error(`labels: ${line}`);
  }
}

function checkHistogram(metric: string, samples: ReadonlyMap<string, number>): void {
  const last = new Map<string, { bound: number; count: number }>();
  for (const [key, count] of samples) {
    const [, labels = "", bound] = new RegExp(`^${metric}_bucket\\{(.*?),?le="([^"]*)"\\}$`).exec(key) ?? [];
    if (bound === undefined) continue;
    const before = last.get(labels) ?? { bound: Number.NEGATIVE_INFINITY, count: 0 };
    const upTo = bound === "+Inf" ? Number.POSITIVE_INFINITY : Number(bound);
    if (!(upTo > before.bound) || count < before.count) throw new Error(`buckets of ${key}`);
    last.set(labels, { bound: upTo, count });
  }
  if (last.size === 0) throw new Error(`${metric} has no buckets`);
  for (const [labels, { bound, count }] of last) {
    const suffix = labels === "" ? "" : `{${labels}}`;
    if (bound !== Number.POSITIVE_INFINITY) throw new Error(`${metric}${suffix} has no bucket +Inf`);
    if (samples.get(`${metric}_count${suffix}`) !== count) throw new Error(`count of ${metric}${suffix}`);
    if (!samples.has(`${metric}_sum${suffix}`)) throw new Error(`sum of ${metric}${suffix}`);
  }
}
