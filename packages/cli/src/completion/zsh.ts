import { type CompletedOption, type CompletedWord, type Place, valuedOptions } from "./command-tree.ts";
import { quoted } from "./quote.ts";

/** For `source <(alcove completion zsh)`, or a file `_alcove` in a folder of `fpath`. */
export function zshCompletion(places: readonly Place[]): string {
  const [root] = places;
  const name = root?.at ?? "";
  const deeper = places.slice(1).map(({ at }) => quoted(at));
  const valued = valuedOptions(places).map(quoted);
  return `#compdef ${name}
# Completion of ${name} for zsh: source <(${name} completion zsh)
_${name}() {
  local at=${name} word value= n=0 prev=\${words[CURRENT-1]}
  local -a found
  # Which command it is, and how many arguments of it stand before the cursor.
  for word in "\${(@)words[2,CURRENT-1]}"; do
    if [[ -n $value ]]; then value=; continue; fi
    case "$at $word" in
    ${deeper.join(" | ")}) at="$at $word" n=0 ;;
    ${valued.join(" | ")}) value=1 ;;
    *" -"*) ;;
    *) n=$((n + 1)) ;;
    esac
  done
  if [[ $words[CURRENT] == --*=* ]]; then prev=\${words[CURRENT]%%=*}; compset -P 1 '*='; fi
  case "$at $prev" in
${places.flatMap(valueCases).join("\n")}
  esac
  if [[ $words[CURRENT] == -* ]]; then
    case "$at" in
${places.map(flagsCase).join("\n")}
    esac
    return
  fi
  case "$at $n" in
${places.flatMap(argumentCases).join("\n")}
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

function flagsCase({ at, options }: Place): string {
  const flags = options.map(({ long, description }) => ({ name: long, description }));
  return `    ${quoted(at)}) found=(${described(flags)}); _describe option found ;;`;
}

function argumentCases({ at, arguments: expected }: Place): string[] {
  return expected.map(({ position, repeated, words, sandbox, file }) => {
    const offers = [
      ...(words.length > 0 ? [`found=(${described(words)}); _describe word found`] : []),
      ...(sandbox ? ['found=($("$words[1]" ls --words 2>/dev/null)); compadd -- $found'] : []),
      ...(file ? ["_files"] : []),
    ];
    const where = repeated ? `${quoted(`${at} `)}*` : quoted(`${at} ${position}`);
    return `  ${where}) ${offers.join("; ")} ;;`;
  });
}

function described(entries: readonly CompletedWord[]): string {
  return entries
    .map(({ name, description }) => quoted(`${name.replaceAll(":", String.raw`\:`)}:${description}`))
    .join(" ");
}
