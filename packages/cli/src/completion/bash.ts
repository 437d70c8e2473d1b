import { type CompletedOption, type Place, valuedOptions } from "./command-tree.ts";
import { quoted } from "./quote.ts";

/** For `source <(alcove completion bash)`. */
export function bashCompletion(places: readonly Place[]): string {
  const [root] = places;
  const name = root?.at ?? "";
  const deeper = places.slice(1).map(({ at }) => quoted(at));
  const valued = valuedOptions(places).map(quoted);
  return `# Completion of ${name} for bash: source <(${name} completion bash)
_${name}() {
  local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD - 1]} at=${name} words= value= n=0 i
  # Which command it is, and how many arguments of it stand before the cursor. What is behind a "=" or ":" is a word of its own.
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ \${COMP_WORDS[i]} == [=:]* ]]; then value=1; continue
    elif [[ $value ]]; then value=; continue
    fi
    case "$at \${COMP_WORDS[i]}" in
    ${deeper.join(" | ")}) at="$at \${COMP_WORDS[i]}" n=0 ;;
    ${valued.join(" | ")}) value=1 ;;
    *" -"*) ;;
    *) n=$((n + 1)) ;;
    esac
  done
  # What is behind "--option=" is a word of its own, and the "=" another one.
  if [[ $cur == = && $prev == --* ]]; then cur=
  elif [[ $prev == = && \${COMP_WORDS[COMP_CWORD - 2]} == --* ]]; then prev=\${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $value && $prev == [=:]* ]]; then return
  fi
  case "$at $prev" in
${places.flatMap(valueCases).join("\n")}
  esac
  case $cur in
  -*)
    case "$at" in
${places.map(flagsCase).join("\n")}
    esac ;;
  *)
    case "$at $n" in
${places.flatMap(argumentCases).join("\n")}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _${name} ${name}
`;
}

/** What comes behind options that take a value. */
function valueCases({ at, options }: Place): string[] {
  const after = (of: readonly CompletedOption[]) =>
    of
      .flatMap(({ long, short }) => (short === undefined ? [long] : [long, short]))
      .map((flag) => quoted(`${at} ${flag}`))
      .join(" | ");
  const chosen = options.filter(({ value }) => Array.isArray(value));
  const files = options.filter(({ value }) => value === "file");
  const texts = options.filter(({ value }) => value === "text");
  const lines = chosen.map(
    (option) =>
      `  ${after([option])}) COMPREPLY=($(compgen -W ${quoted((option.value as readonly string[]).join(" "))} -- "$cur")); return ;;`,
  );
  if (files.length > 0) lines.push(`  ${after(files)}) return ;;`);
  if (texts.length > 0) lines.push(`  ${after(texts)}) compopt +o default 2>/dev/null; return ;;`);
  return lines;
}

function flagsCase({ at, options }: Place): string {
  return `    ${quoted(at)}) words=${quoted(options.map(({ long }) => long).join(" "))} ;;`;
}

function argumentCases({ at, arguments: expected }: Place): string[] {
  return expected.map(({ position, repeated, words, sandbox }) => {
    const named = quoted(words.map(({ name }) => name).join(" "));
    const sandboxes = '"$("$COMP_WORDS" ls --words 2>/dev/null)"';
    const where = repeated ? `${quoted(`${at} `)}*` : quoted(`${at} ${position}`);
    return `    ${where}) words=${sandbox ? sandboxes : named} ;;`;
  });
}
