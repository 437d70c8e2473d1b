#!/bin/sh
# Builds vhost-device-vsock, which gives a guest of QEMU the vsock of a microVM, unless it is there, and prints its path. It is
# kept outside of the clone, where another clone finds it: /var/cache/alcove-tests for root, else ~/.cache/alcove-tests.
# usage: vsock-device.sh            builds it, or waits for whoever does
#        vsock-device.sh --found    only waits; exit code 1 when it is not there
set -eu
version=0.3.0
name=vhost-device-vsock

PATH="$PATH:${HOME:-/root}/.cargo/bin"
if [ "$(id -u)" = 0 ]; then cache=/var/cache/alcove-tests; else cache=$HOME/.cache/alcove-tests; fi
for folder in /var/cache/alcove-tests "$cache"; do
  program=$folder/$name-$version/bin/$name
  [ ! -x "$program" ] || { echo "$program"; exit 0; }
done
mkdir -p "$cache"
exec 9>"$cache/$name.lock"
flock 9
[ ! -x "$program" ] || { echo "$program"; exit 0; }
[ "${1:-}" != --found ] || { echo "$name $version is not built: scripts/vsock-device.sh builds it" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "vsock-device.sh: building $name $version" >&2
# In a folder of its own: what a clone says of targets and flags is not for it.
(cd "$work" && cargo install --quiet --locked --root "$work/made" --target-dir "$work/target" --version "=$version" "$name") >&2
rm -rf "$cache/$name-$version"
mv "$work/made" "$cache/$name-$version"
echo "$program"
