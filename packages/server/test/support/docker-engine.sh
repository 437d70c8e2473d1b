#!/bin/sh
# Runs a private engine below DIR, by the script DIR/start, until nobody holds the FIFO DIR/lifeline open for writing, so that it ends
# with the test run however that ends. Then it unmounts and removes DIR.
# usage: docker-engine.sh DIR
set -u
dir=$1
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

sh "$dir/start" "$dir" >"$dir/dockerd.log" 2>&1 </dev/null &
engine=$!

finish() {
  trap '' INT TERM HUP
  kill -TERM "$engine" 2>/dev/null
  # An engine that does not end within ten seconds is killed; its containers' shims with it.
  ( sleep 10; kill -KILL "$engine" 2>/dev/null ) &
  guard=$!
  wait "$engine" 2>/dev/null
  kill "$guard" 2>/dev/null
  [ -f "$dir/exec/containerd/containerd.pid" ] && kill -KILL "$(cat "$dir/exec/containerd/containerd.pid")" 2>/dev/null
  # Deepest mounts first.
  awk -v prefix="$dir/" 'index($2, prefix) == 1 { print $2 }' /proc/mounts | sort -r |
    while read -r mounted; do umount -l "$mounted" 2>/dev/null; done
  rm -rf "$dir"
  exit 0
}
trap finish INT TERM HUP

# Reading ends when the last writer is gone. The read is a background job because a shell runs a trap only between
# commands, but interrupts `wait`.
cat "$dir/lifeline" >/dev/null &
wait $!
finish
