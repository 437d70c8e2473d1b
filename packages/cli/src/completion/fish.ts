import type { CompletedOption, Place } from "./command-tree.ts";
import { quotedForFish as quoted } from "./quote.ts";

/** For `alcove completion fish | source`. */
export function fishCompletion(places: readonly Place[]): string {
  const [root] = places;
  const name = root?.at ?? "";
  const deeper = places.slice(1).map(({ at }) => quoted(at));
  const lines = places.flatMap((place) => linesOf(name, place));
  return `# Completion of ${name} for fish: ${name} completion fish | source
function __${name}_at
  set -l at ${name}
  for word in (commandline -opc)[2..]
    switch "$at $word"
      case ${deeper.join(" ")}
        set at "$at $word"
    end
  end
  test "$at" = "$argv[1]"
end
complete -c ${name} -f
${lines.join("\n")}
`;
}

function linesOf(name: string, { at, words, options, takesSandboxes, takesFiles }: Place): string[] {
  const here = `complete -c ${name} -n ${quoted(`__${name}_at ${quoted(at)}`)}`;
  return [
    ...words.map(({ name, description }) => `${here} -a ${quoted(name)} -d ${quoted(description)}`),
    ...options.map((option) => `${here} ${flagsOf(option)} -d ${quoted(option.description)}`),
    ...(takesSandboxes ? [`${here} -a '(command ${name} ls --words 2>/dev/null)'`] : []),
    ...(takesFiles ? [`${here} -F`] : []),
  ];
}

function flagsOf({ long, short, value }: CompletedOption): string {
  const flags = `-l ${quoted(long.slice(2))}${short === undefined ? "" : ` -s ${quoted(short.slice(1))}`}`;
  if (value === undefined) return flags;
  if (value === "file") return `${flags} -r -F`;
  return value === "text" ? `${flags} -x` : `${flags} -x -a ${quoted(value.join(" "))}`;
}
