import type { CompletedOption, Place } from "./command-tree.ts";
import { quoted } from "./quote.ts";

/** For `source <(alcove completion zsh)`, or a file `_alcove` in a folder of `fpath`. */
export function zshCompletion(places: readonly Place[]): string {
  const [root] = places;
  const name = root?.at ?? "";
  const deeper = places.slice(1).map(({ at }) => quoted(at));
  return `#compdef ${name}
# Completion of ${name} for zsh: source <(${name} completion zsh)
_${name}() {
  local at=${name} word prev=\${words[CURRENT-1]}
  local -a found
  for word in "\${(@)words[2,CURRENT-1]}"; do
    case "$at $word" in
    ${deeper.join(" | ")}) at="$at $word" ;;
    esac
  done
  if [[ $words[CURRENT] == --*=* ]]; then prev=\${words[CURRENT]%%=*}; compset -P 1 '*='; fi
  case "$at $prev" in
${places.flatMap(valueCases).join("\n")}
  esac
  case "$at" in
${places.map(placeCase).join("\n")}
  esac
}
if (( \${+functions[compdef]} )); then compdef _${name} ${name}; fi
if [[ \${funcstack[1]-} == _${name} ]]; then _${name} "$@"; fi
`;
}

function valueCases({ at, options }: Place): string[] {
  return options.flatMap((option) => {
    if (option.value === undefined) return [];
    const flags = [option.long, ...(option.short === undefined ? [] : [option.short])];
    const pattern = flags.map((flag) => quoted(`${at} ${flag}`)).join(" | ");
    return [`  ${pattern}) ${completionOf(option)}; return ;;`];
  });
}

function completionOf({ value, description }: CompletedOption): string {
  if (value === "file") return "_files";
  if (value === "text" || value === undefined) return `_message ${quoted(description)}`;
  return `compadd -- ${value.map(quoted).join(" ")}`;
}

function placeCase({ at, words, options, takesSandboxes, takesFiles }: Place): string {
  const described = (entries: readonly { name: string; description: string }[]) =>
    entries
      .map(({ name, description }) => quoted(`${name.replaceAll(":", String.raw`\:`)}:${description}`))
      .join(" ");
  const flags = described(options.map(({ long, description }) => ({ name: long, description })));
  const others = [
    ...(words.length > 0 ? [`found=(${described(words)}); _describe word found`] : []),
    ...(takesSandboxes ? ['found=($("$words[1]" ls --words 2>/dev/null)); compadd -- $found'] : []),
    ...(takesFiles ? ["_files"] : []),
  ];
  const lines = [
    `  ${quoted(at)})`,
    `    if [[ $words[CURRENT] == -* ]]; then found=(${flags}); _describe option found`,
    ...(others.length > 0 ? [`    else ${others.join("; ")}`] : []),
    "    fi ;;",
  ];
  return lines.join("\n");
}
