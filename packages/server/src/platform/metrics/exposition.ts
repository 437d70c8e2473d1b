import type { Histogram } from "./histogram.ts";

export type Labels = Readonly<Record<string, string>>;
type Sample = readonly [labels: Labels, value: number];

/** Metrics as text, in the format that Prometheus scrapes (0.0.4). Each name is given once, with all its samples. */
export class Exposition {
  static readonly contentType = "text/plain; version=0.0.4; charset=utf-8";
  readonly #lines: string[] = [];

  gauge(name: string, help: string, samples: readonly Sample[] | number): void {
    this.#metric("gauge", name, help, samples);
  }

  counter(name: string, help: string, samples: readonly Sample[] | number): void {
    this.#metric("counter", name, help, samples);
  }

  histogram(
    name: string,
    help: string,
    samples: readonly (readonly [Labels, Pick<Histogram, "count" | "sum" | "upTo">])[],
  ): void {
    this.#head("histogram", name, help);
    for (const [labels, histogram] of samples) {
      for (const { bound, count } of histogram.upTo())
        this.#sample(`${name}_bucket`, { ...labels, le: String(bound) }, count);
      this.#sample(`${name}_bucket`, { ...labels, le: "+Inf" }, histogram.count);
      this.#sample(`${name}_sum`, labels, histogram.sum);
      this.#sample(`${name}_count`, labels, histogram.count);
    }
  }

  toString(): string {
    return `${this.#lines.join("\n")}\n`;
  }

  #metric(kind: string, name: string, help: string, samples: readonly Sample[] | number): void {
    this.#head(kind, name, help);
    const all: readonly Sample[] = typeof samples === "number" ? [[{}, samples]] : samples;
    for (const [labels, value] of all) this.#sample(name, labels, value);
  }

  #head(kind: string, name: string, help: string): void {
    this.#lines.push(`# HELP ${name} ${help.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")}`);
    this.#lines.push(`# TYPE ${name} ${kind}`);
  }

  #sample(name: string, labels: Labels, value: number): void {
    const pairs = Object.entries(labels).map(([label, text]) => `${label}="${escaped(text)}"`);
    this.#lines.push(`${name}${pairs.length === 0 ? "" : `{${pairs.join(",")}}`} ${value}`);
  }
}

function escaped(text: string): string {
  return text.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");
}
