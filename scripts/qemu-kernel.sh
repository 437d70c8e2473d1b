#!/bin/sh
# Fetches Debian's cloud kernel for tests under QEMU into a folder, unless it is there, and prints the path of its image. Its
# modules are below lib/modules in the same folder.
# usage: qemu-kernel.sh FOLDER
set -eu
cache=$1
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
kernel=$(ls "$cache"/boot/vmlinuz-* 2>/dev/null | head -n 1 || true)
if [ -z "$kernel" ]; then
  package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ { print $2; exit }')
  echo "qemu-kernel.sh: fetching $package" >&2
  (cd "$cache" && apt-get -q download "$package" >&2 && dpkg-deb -x "$package"_*.deb . && rm -f "$package"_*.deb)
  kernel=$(ls "$cache"/boot/vmlinuz-* | head -n 1)
fi
echo "$kernel"
