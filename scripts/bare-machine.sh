# Sourced by the scripts that prove something on a machine that has nothing: a root file system in namespaces of its own.
# Reads `ca`, `copies` and `names`, the options of those scripts. Bash.

# What this host needs to reach its package sources.
hand_in() {
  local root=$1 copy
  cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
  for copy in ${copies[@]+"${copies[@]}"}; do
    mkdir -p "$root$(dirname "${copy#*:}")"
    cp --dereference "${copy%%:*}" "$root${copy#*:}"
    chmod a+r "$root${copy#*:}"
  done
  if [ -n "$ca" ]; then
    mkdir -p "$root/usr/local/share/ca-certificates" "$root/etc/ssl/certs"
    cp "$ca" "$root/usr/local/share/ca-certificates/handed-in.crt"
    cat "$ca" >>"$root/etc/ssl/certs/ca-certificates.crt"
  fi
}

# The two below run in the machine's namespaces, in its root, before that is the root.
make_dev() {
  mount -t tmpfs -o mode=755,nosuid dev dev
  mkdir -p dev/pts dev/shm
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
  mount -t tmpfs -o mode=1777,nosuid,nodev shm dev/shm
  for node in null zero full random urandom tty; do
    touch "dev/$node"
    mount --bind "/dev/$node" "dev/$node"
  done
  ln -s pts/ptmx dev/ptmx
  ln -s /proc/self/fd dev/fd
  ln -s fd/0 dev/stdin
  ln -s fd/1 dev/stdout
  ln -s fd/2 dev/stderr
}
leave_host() {
  pivot_root . .host
  cd /
  umount -l /.host
  rmdir /.host
}

# Runs a program in the machine: namespaces of its own, its own root by pivot_root (a chroot would refuse user
# namespaces), /dev and /proc made new, /sys with the host's cgroups. When this script dies, the machine does.
enter() {
  local root=$1 name
  shift
  local settings=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
  for name in ${names[@]+"${names[@]}"}; do
    if [ -n "${!name-}" ]; then settings+=("$name=${!name}"); fi
  done
  if [ -n "$ca" ]; then settings+=(NODE_EXTRA_CA_CERTS=/usr/local/share/ca-certificates/handed-in.crt); fi
  unshare --mount --pid --fork --kill-child --uts --ipc --propagation private -- /bin/bash -c "$(declare -f make_dev leave_host)"'
    set -euo pipefail
    root=$1
    shift
    mount --bind "$root" "$root"
    cd "$root"
    mkdir -p .host proc sys dev tmp
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --make-rslave sys
    make_dev
    hostname fresh-machine
    leave_host
    exec /usr/bin/env -i "$@"
  ' machine "$root" "${settings[@]}" "$@"
}

# Where control groups of version 2 are mounted, or nothing.
cgroup2_mount() { awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts; }

# Boots the systemd of a root file system in namespaces of its own, network and control groups included, and sets
# `booted` to its pid. Nothing of the host is in reach but the kernel.
boot() {
  local root=$1 group
  group=$(cgroup2_mount)/alcove-machine-$$
  mkdir -p "$group"
  # shellcheck disable=SC2016 # expanded inside
  (
    echo 0 >"$group/cgroup.procs"
    exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup --propagation private -- /bin/bash -c "$(declare -f make_dev leave_host)"'
      set -euo pipefail
      root=$1
      mount --bind "$root" "$root"
      cd "$root"
      mkdir -p .host proc sys dev run tmp
      mount -t proc proc proc
      mount -t sysfs sysfs sys
      mount -t cgroup2 cgroup2 sys/fs/cgroup
      mount -t tmpfs -o mode=755 run run
      make_dev
      touch dev/console
      hostname bare-machine
      leave_host
      exec /usr/bin/env -i container=bare-machine PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --log-target=console
    ' machine "$root"
  ) >/dev/null 2>&1 </dev/null &
  local starter=$! tries=0
  booted=
  while [ -z "$booted" ] && [ "$tries" -lt 400 ] && kill -0 "$starter" 2>/dev/null; do
    booted=$(cat "/proc/$starter/task/$starter/children" 2>/dev/null | tr -d ' ') || true
    tries=$((tries + 1))
    sleep 0.05
  done
  if [ -z "$booted" ]; then
    # Nothing comes up behind the back of who has given up.
    kill -KILL "$starter" 2>/dev/null || true
    return 1
  fi
  for tries in $(seq 300); do
    case $(inside systemctl is-system-running 2>/dev/null) in running | degraded) return 0 ;; esac
    sleep 0.1
  done
  return 1
}

# Runs a command in the machine that `boot` started, as its own root.
inside() {
  nsenter --target "$booted" --all -- /usr/bin/env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# Ends it with all that runs in it.
power_off() {
  local group
  group=$(cgroup2_mount)/alcove-machine-$$
  if [ -n "${booted-}" ]; then
    kill -KILL "$booted" 2>/dev/null || true
    while kill -0 "$booted" 2>/dev/null; do sleep 0.05; done
    booted=
  fi
  for _ in $(seq 50); do
    [ -d "$group" ] || return 0
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    sleep 0.1
  done
}
