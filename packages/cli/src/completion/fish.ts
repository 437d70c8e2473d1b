import { type CompletedOption, type Place, valuedOptions } from "./command-tree.ts";
import { quotedForFish as quoted } from "./quote.ts";

/** For `alcove completion fish | source`. */
export function fishCompletion(places: readonly Place[]): string {
  const [root] = places;
  const name = root?.at ?? "";
  const deeper = places.slice(1).map(({ at }) => quoted(at));
  const valued = valuedOptions(places).map(quoted);
  const lines = places.flatMap((place) => linesOf(name, place));
  return `# Completion of ${name} for fish: ${name} completion fish | source
# Whether it is this command, with so many arguments of it before the cursor; any number where none is named.
function __${name}_at
  set -l at ${name}
  set -l value no
  set -l n 0
  for word in (commandline -opc)[2..]
    if test $value = yes
      set value no
      continue
    end
    switch "$at $word"
      case ${deeper.join(" ")}
        set at "$at $word"
        set n 0
      case ${valued.join(" ")}
        set value yes
      case '* -*'
      case '*'
        set n (math $n + 1)
    end
  end
  test "$at" = "$argv[1]"; and begin; test (count $argv) -lt 2; or test $n = $argv[2]; end
end
complete -c ${name} -f
${lines.join("\n")}
`;
}

function linesOf(name: string, { at, options, arguments: expected }: Place): string[] {
  const when = (where: string) => `complete -c ${name} -n ${quoted(`__${name}_at ${where}`)}`;
  return [
    ...options.map((option) => `${when(quoted(at))} ${flagsOf(option)} -d ${quoted(option.description)}`),
    ...expected.flatMap(({ position, repeated, words, sandbox, file }) => {
      const here = when(repeated ? quoted(at) : `${quoted(at)} ${position}`);
      return [
        ...words.map((word) => `${here} -a ${quoted(word.name)} -d ${quoted(word.description)}`),
        ...(sandbox ? [`${here} -a '(command ${name} ls --words 2>/dev/null)'`] : []),
        ...(file ? [`${here} -F`] : []),
      ];
    }),
  ];
}

function flagsOf({ long, short, value }: CompletedOption): string {
  const flags = `-l ${quoted(long.slice(2))}${short === undefined ? "" : ` -s ${quoted(short.slice(1))}`}`;
  if (value === undefined) return flags;
  if (value === "file") return `${flags} -r -F`;
  return value === "text" ? `${flags} -x` : `${flags} -x -a ${quoted(value.join(" "))}`;
}
