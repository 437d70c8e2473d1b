/** One line of the benchmark's table: a figure of ours beside the floor taken in the same run. docs/performance.md. */
export interface Row {
  what: string;
  figure: string;
  floor: string;
  budget: string;
  /** undefined: there is no budget to hold, or its floor could not be measured here. */
  met: boolean | undefined;
  /** The numbers behind the texts, for bench/results. */
  data: Record<string, number>;
}

export function printTable(rows: readonly Row[]): string {
  const cells = [
    ["what", "measured", "floor, same run", "budget", "met"],
    ...rows.map((row) => [
      row.what,
      row.figure,
      row.floor,
      row.budget,
      row.met === undefined ? "-" : row.met ? "yes" : "NO",
    ]),
  ];
  const widths =
    cells[0]?.map((_, column) => Math.max(...cells.map((line) => line[column]?.length ?? 0))) ?? [];
  return cells
    .map((line, index) => {
      const text = `| ${line.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join(" | ")} |`;
      return index === 0 ? `${text}\n|${widths.map((width) => "-".repeat(width + 2)).join("|")}|` : text;
    })
    .join("\n");
}
