# The file calls of the backend, run inside the sandbox so that no path leads out of it.
# Exit codes say what went wrong: 40 for status 400, 44 for 404, 49 for 409.
describe() { find "$1" -maxdepth 0 -printf '%y\0%s\0%m\0%U\0%G\0%T@\0%l\0%p\0'; }
there() { test -e "$1" -o -L "$1" || exit 44; }
followed() { realpath -e -- "$1" 2>/dev/null || exit 44; }
call=$1
shift
case $call in
stat) # path, whether to follow
  there "$1"
  if test -n "$2"; then describe "$(followed "$1")"; else describe "$1"; fi ;;
list) # path, path with % and \ escaped, depth
  target=$(followed "$1") || exit 44
  cd -- "$target" 2>/dev/null || exit 40
  find . -mindepth 1 ${3:+-maxdepth $3} -printf '%y\0%s\0%m\0%U\0%G\0%T@\0%l\0'"$2"'/%P\0' ;;
read) # path, first byte from 1, length
  target=$(followed "$1") || exit 44
  test -f "$target" || exit 40
  tail -c +"$2" -- "$target" | head -c "$3" ;;
write) # path, mode, name of the part
  target=$(realpath -m -- "$1")
  test -e "$target" -a ! -f "$target" && exit 40
  part=$(dirname "$target")/$3
  mkdir -p "$(dirname "$target")" || exit 40
  cat >"$part" || exit 1
  chmod "${2:-$(stat -c %a "$target" 2>/dev/null || echo 644)}" "$part"
  mv -fT "$part" "$target" && describe "$target" ;;
clean) # path, name of the part
  rm -f "$(dirname "$(realpath -m -- "$1")")/$2" ;;
remove) # path, whether to go deep
  there "$1"
  if test -n "$2"; then rm -rf -- "$1"
  elif test -d "$1" -a ! -L "$1"; then rmdir -- "$1" || exit 49
  else rm -f -- "$1"; fi ;;
move) # from, to
  there "$1"
  mkdir -p "$(dirname "$2")" || exit 40
  test -d "$2" -a ! -d "$1" && exit 49
  mv -fT -- "$1" "$2" || exit 49 ;;
chmod) # path, mode
  test -e "$1" || exit 44
  chmod "$2" -- "$1" ;;
mkdir) # path, whether to make parents, mode
  if test -n "$2"; then mkdir -p -- "$1" || exit 40
  else
    test -e "$1" && exit 49
    test -d "$(dirname "$1")" || exit 44
    mkdir -- "$1" || exit 40
  fi
  test -z "$3" || chmod "$3" -- "$1"
  describe "$1" ;;
esac
