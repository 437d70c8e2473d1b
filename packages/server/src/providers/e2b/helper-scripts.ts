/** Variable that every command of ours and all it starts have: how what it left running is found. */
export const marker = "ALCOVE_EXEC_ID";

/**
 * Kills everything that has the mark `$1`, whatever session and parent it has now, stopping it first so that nothing is
 * started meanwhile. Ends with 0 when nothing is left.
 */
export const sweepScript = `
round=0
while [ $round -lt 100 ]; do
  found=
  for e in $(grep -lF "$1" /proc/[0-9]*/environ 2>/dev/null); do p=\${e#/proc/}; found="$found \${p%/environ}"; done
  [ -z "$found" ] && exit 0
  [ $round -eq 0 ] && kill -STOP $found 2>/dev/null
  kill -KILL $found 2>/dev/null
  round=$((round+1))
done
exit 1`;

/** Sends signal `$2` to what has the mark `$1` and the process group of process `$3`. Ends with 3 when that is gone. */
export const signalScript = `
group() { s=$(cat /proc/$1/stat 2>/dev/null) || return 1; s=\${s##*) }; set -- $s; echo $3; }
g=$(group $3) || exit 3
for e in $(grep -lF "$1" /proc/[0-9]*/environ 2>/dev/null); do
  p=\${e#/proc/}; p=\${p%/environ}
  [ "$(group $p)" = "$g" ] && kill -$2 $p 2>/dev/null
done
exit 0`;

/** Why program `$1` did not start: 1 there is none, 2 it cannot be executed, 0 it can. */
export const findProgramScript = `
f=$(command -v -- "$1" 2>/dev/null) || { [ -e "$1" ] && exit 2; exit 1; }
case "$f" in /*) [ -d "$f" ] || [ ! -x "$f" ] && exit 2;; esac
exit 0`;

/**
 * Processor time in milliseconds of all processes and those that they have waited for, their memory in bytes, their number;
 * then all memory of the machine that is the sandbox, 0 where it is not told.
 */
export const statsScript = `
page=$(getconf PAGESIZE 2>/dev/null || echo 4096)
cat /proc/[0-9]*/stat 2>/dev/null | awk -v page="$page" '
  { sub(/^.*[)] /, ""); ticks += $12 + $13 + $14 + $15; pages += $22; count++ }
  END { printf "%.0f %.0f %d\\n", ticks * 10, pages * page, count }'
awk '$1 == "MemTotal:" { printf "%.0f\\n", $2 * 1024 }' /proc/meminfo 2>/dev/null`;

/** How helpers for files say what is wrong. */
export const fileProblems = {
  noTar: 22,
  outside: 23,
  missing: 44,
  directory: 21,
  full: 39,
  notDirectory: 20,
} as const;

/** Puts the finished upload `$1` in the place of `$2`, with mode `$3`, and describes it. */
export const placeScript = `
p=$2
[ -L "$p" ] && { t=$(readlink -f -- "$p") && p=$t; }
[ -d "$p" ] && exit 21
[ -e "$p" ] && [ ! -f "$p" ] && exit 20
chmod "$3" "$1" && mv -f "$1" "$p" || exit 1
stat -c '%s %u %g %Y' "$p"`;

/** Gives mode `$2` to `$1`. */
export const chmodScript = `
[ -e "$1" ] || exit 44
chmod "$2" "$1"`;

/** Removes `$1` if it is no directory that has something in it. */
export const removeScript = `
[ -e "$1" ] || [ -L "$1" ] || exit 44
if [ -d "$1" ] && [ ! -L "$1" ]; then
  [ -z "$(ls -A -- "$1" | head -c 1)" ] || exit 39
  rmdir "$1"
else rm -f "$1"; fi`;

/** Every path below `$1`, at most `$2` levels deep, each ended by a NUL. */
export const findScript = `
[ -e "$1" ] || exit 0
if [ -n "$2" ]; then find "$1" -maxdepth "$2" -print0; else find "$1" -print0; fi`;

/** `$3` bytes of `$1` from byte `$2` on, which counts from 1. */
export const partScript = `tail -c "+$2" "$1" | head -c "$3"`;

/** A tar of what is below `$1`, or of that file. */
export const archiveScript = `
if [ -d "$1" ]; then cd "$1" && exec tar -cf - .; fi
cd "$(dirname "$1")" && exec tar -cf - "./$(basename "$1")"`;

/**
 * Unpacks the tar `$1` below `$2`, if all of it lies there, and prints how many entries it has. Some tars list names with what
 * leads outside cut off, and say so.
 */
export const unpackScript = `
names=$(LC_ALL=C tar -tf "$1" 2>&1) || exit 22
printf '%s\\n' "$names" | grep -qE '^/|(^|/)[.][.](/|$)|^tar: [Rr]emoving leading' && exit 23
tar -xopf "$1" -C "$2" >/dev/null 2>&1 || exit 1
printf '%s\\n' "$names" | grep -c .
exit 0`;
