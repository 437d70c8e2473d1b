#!/bin/sh
# A strict stand-in for the program `jailer`: it makes the jail's folder and becomes Firecracker in it, as the service's user,
# because the fake's guests need rights. The fake refuses names outside of its folder then, and files that its user may not have.
fail() { echo "Jailer error: $1" >&2; exit 1; }
[ "${1:-}" != --version ] || { echo "Jailer v1.17.0-dev"; exit 0; }
id='' exec_file='' uid='' gid='' base='' cgroups=1
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break ;;
    --id) id=$2 ;;
    --exec-file) exec_file=$2 ;;
    --uid) uid=$2 ;;
    --gid) gid=$2 ;;
    --chroot-base-dir) base=$2 ;;
    --cgroup-version) cgroups=$2 ;;
    *) fail "argument $1 is unknown" ;;
  esac
  shift 2
done
[ "$cgroups" = 2 ] || fail "control groups of version $cgroups would be made in the machine's own"
[ -f "$exec_file" ] && [ -d "$base" ] || fail "no file $exec_file or no folder $base"
case $uid$gid in '' | *[!0-9]*) fail "uid $uid and gid $gid are no numbers" ;; esac
case $id in '' | *[!A-Za-z0-9-]*) fail "id $id" ;; esac
name=$(basename "$(realpath "$exec_file")")
root=$(realpath "$base")/$name/$id/root
mkdir -p "$root" && cp "$exec_file" "$root/$name" && chown "$uid:$gid" "$root" && cd "$root" || fail "no jail $root"
exec env -i PATH="$PATH" FAKE_JAIL_UID="$uid" "$exec_file" "--id=$id" --start-time-us=1 --start-time-cpu-us=1 "$@"
