function quoted(text){return`'${text.replaceAll(`'`,String.raw`'\''`)}'`}function quotedForFish(text){return`'${text.replaceAll(/['\\]/g,String.raw`\$&`)}'`}function bashCompletion(places){let[root]=places,name=root?.at??``;return`# Completion of ${name} for bash: source <(${name} completion bash)
_${name}() {
  local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD - 1]} at=${name} words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at \${COMP_WORDS[i]}" in
    ${places.slice(1).map(({at})=>quoted(at)).join(` | `)}) at="$at \${COMP_WORDS[i]}" ;;
    esac
  done
  case "$at $prev" in
${places.flatMap(valueCases$1).join(`
`)}
  esac
  case "$at" in
${places.map(wordsCase).join(`
`)}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _${name} ${name}
`}function valueCases$1({at,options}){let after=of=>of.flatMap(({long,short})=>short===void 0?[long]:[long,short]).map(flag=>quoted(`${at} ${flag}`)).join(` | `),chosen=options.filter(({value})=>Array.isArray(value)),files=options.filter(({value})=>value===`file`),texts=options.filter(({value})=>value===`text`),lines=chosen.map(option=>`  ${after([option])}) COMPREPLY=($(compgen -W ${quoted(option.value.join(` `))} -- "$cur")); return ;;`);return files.length>0&&lines.push(`  ${after(files)}) return ;;`),texts.length>0&&lines.push(`  ${after(texts)}) compopt +o default 2>/dev/null; return ;;`),lines}function wordsCase({at,words,options,takesSandboxes}){let flags=options.map(({long})=>long).join(` `),named=quoted(words.map(({name})=>name).join(` `)),others=takesSandboxes?`words="$("$COMP_WORDS" ls --words 2>/dev/null)"`:`words=${named}`;return`  ${quoted(at)}) case $cur in -*) words=${quoted(flags)} ;; *) ${others} ;; esac ;;`}const sandboxArguments=/* @__PURE__ */ new Set([`id`,`ids`,`target`]),fileArguments=/* @__PURE__ */ new Set([`source`,`target`,`folder`]),fileOption=/<(?:file|dir)>$/;function placesOf(command,at=command.name()){let helper=command.createHelp(),names=command.registeredArguments.map(argument=>argument.name()),commands=helper.visibleCommands(command).map(child=>({name:child.name(),description:child.description()})),choices=command.registeredArguments.flatMap(({argChoices=[],description})=>argChoices.map(name=>({name,description}))),options=helper.visibleOptions(command).flatMap(({long,short,description,flags,...option})=>long==null?[]:[{long,short:short??void 0,description,value:option.required?option.argChoices??(fileOption.test(flags)?`file`:`text`):void 0}]);return[{at,words:[...commands,...choices],options,takesSandboxes:names.some(name=>sandboxArguments.has(name)),takesFiles:names.some(name=>fileArguments.has(name))},...command.commands.flatMap(child=>[child.name(),...child.aliases()].flatMap(name=>placesOf(child,`${at} ${name}`)))]}function fishCompletion(places){let[root]=places,name=root?.at??``,deeper=places.slice(1).map(({at})=>quotedForFish(at)),lines=places.flatMap(place=>linesOf(name,place));return`# Completion of ${name} for fish: ${name} completion fish | source
function __${name}_at
  set -l at ${name}
  for word in (commandline -opc)[2..]
    switch "$at $word"
      case ${deeper.join(` `)}
        set at "$at $word"
    end
  end
  test "$at" = "$argv[1]"
end
complete -c ${name} -f
${lines.join(`
`)}
`}function linesOf(name,{at,words,options,takesSandboxes,takesFiles}){let here=`complete -c ${name} -n ${quotedForFish(`__${name}_at ${quotedForFish(at)}`)}`;return[...words.map(({name,description})=>`${here} -a ${quotedForFish(name)} -d ${quotedForFish(description)}`),...options.map(option=>`${here} ${flagsOf(option)} -d ${quotedForFish(option.description)}`),...takesSandboxes?[`${here} -a '(command ${name} ls --words 2>/dev/null)'`]:[],...takesFiles?[`${here} -F`]:[]]}function flagsOf({long,short,value}){let flags=`-l ${quotedForFish(long.slice(2))}${short===void 0?``:` -s ${quotedForFish(short.slice(1))}`}`;return value===void 0?flags:value===`file`?`${flags} -r -F`:value===`text`?`${flags} -x`:`${flags} -x -a ${quotedForFish(value.join(` `))}`}function zshCompletion(places){let[root]=places,name=root?.at??``;return`#compdef ${name}
# Completion of ${name} for zsh: source <(${name} completion zsh)
_${name}() {
  local at=${name} word
  local -a found
  for word in "\${(@)words[2,CURRENT-1]}"; do
    case "$at $word" in
    ${places.slice(1).map(({at})=>quoted(at)).join(` | `)}) at="$at $word" ;;
    esac
  done
  case "$at \${words[CURRENT-1]}" in
${places.flatMap(valueCases).join(`
`)}
  esac
  case "$at" in
${places.map(placeCase).join(`
`)}
  esac
}
if (( \${+functions[compdef]} )); then compdef _${name} ${name}; fi
if [[ \${funcstack[1]-} == _${name} ]]; then _${name} "$@"; fi
`}function valueCases({at,options}){return options.flatMap(option=>option.value===void 0?[]:[`  ${[option.long,...option.short===void 0?[]:[option.short]].map(flag=>quoted(`${at} ${flag}`)).join(` | `)}) ${completionOf(option)}; return ;;`])}function completionOf({value,description}){return value===`file`?`_files`:value===`text`||value===void 0?`_message ${quoted(description)}`:`compadd -- ${value.map(quoted).join(` `)}`}function placeCase({at,words,options,takesSandboxes,takesFiles}){let described=entries=>entries.map(({name,description})=>quoted(`${name.replaceAll(`:`,String.raw`\:`)}:${description}`)).join(` `),flags=described(options.map(({long,description})=>({name:long,description}))),others=[...words.length>0?[`found=(${described(words)}); _describe word found`]:[],...takesSandboxes?[`found=($("$words[1]" ls --words 2>/dev/null)); compadd -- $found`]:[],...takesFiles?[`_files`]:[]];return[`  ${quoted(at)})`,`    if [[ $words[CURRENT] == -* ]]; then found=(${flags}); _describe option found`,...others.length>0?[`    else ${others.join(`; `)}`]:[],`    fi ;;`].join(`
`)}const scripts={bash:bashCompletion,zsh:zshCompletion,fish:fishCompletion};function completion(shell,program){process.stdout.write(scripts[shell](placesOf(program)))}exports.completion=completion;