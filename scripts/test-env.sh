#!/bin/sh
# Prepares a Debian or Ubuntu machine for every test: `sudo scripts/test-env.sh`. Installs what is missing and nothing
# else, so that running it again does nothing. Starts no service; the tests start their own engine and registry.
set -eu

say() { printf 'test-env: %s\n' "$*"; }
fail() { printf 'test-env: %s\n' "$*" >&2; exit 1; }

# Packages the tests cannot do without. A C compiler links the agent.
wanted="ca-certificates curl git e2fsprogs gcc g++ libc6-dev util-linux iproute2 slirp4netns procps xz-utils kmod strace bubblewrap python3 python3-venv
  docker.io podman rootlesskit openssl runc containerd iptables proot busybox-static uidmap skopeo umoci docker-registry debootstrap prometheus chromium zsh fish"
# Packages that only some distributions have, or that only some tests use; their absence is said aloud.
optional="nginx-light caddy runsc xfsprogs btrfs-progs"

[ "$(id -u)" = 0 ] || fail "root is needed to install packages: sudo $0"
command -v apt-get >/dev/null 2>&1 || fail "this machine has no apt-get; install by hand, under these or its own names, and rust:" $wanted $optional
export DEBIAN_FRONTEND=noninteractive

# The emulator and what boots in it, where the processor is one they are made for.
case "$(dpkg --print-architecture)" in
  amd64) optional="$optional qemu-system-x86 cpio" ;;
  *) say "qemu tests are for amd64 only" ;;
esac

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
has_candidate() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; }

missing=""
for package in $wanted $optional; do installed "$package" || missing="$missing $package"; done

# The agent is built by cargo: rustup's, or a distribution's current one. Debian 12's plain cargo is too old.
oldest_cargo=1.85
PATH="$PATH:${HOME:-/root}/.cargo/bin"
cargo_is_new_enough() {
  command -v cargo >/dev/null 2>&1 || return 1
  have=$(cargo --version | awk '{ print $2 }')
  [ "$(printf '%s\n%s\n' "$oldest_cargo" "$have" | sort -V | head -n 1)" = "$oldest_cargo" ]
}
cargo_is_new_enough || missing="$missing cargo"

# Guests of QEMU get their vsock from a program that no package has. It takes a minute or two to build, once; tests that need it
# wait for it.
build_vsock_device() {
  [ "$(dpkg --print-architecture)" = amd64 ] || return 0
  here=$(cd "$(dirname "$0")" && pwd)
  mkdir -p /var/cache/alcove-tests
  say "vhost-device-vsock is built beside this unless it is there: /var/cache/alcove-tests/vhost-device-vsock.log"
  setsid nohup "$here/vsock-device.sh" </dev/null >/var/cache/alcove-tests/vhost-device-vsock.log 2>&1 &
}

if [ -z "$missing" ]; then
  build_vsock_device
  say "everything is installed"
  exit 0
fi

say "reading package lists"
apt-get update -qq

to_install=""
for package in $missing; do
  case " $optional " in
    *" $package "*) has_candidate "$package" || { say "no package $package here: its tests cannot run"; continue; } ;;
  esac
  if [ "$package" = cargo ]; then
    # Newest first; a version suffix such as cargo-1.85 is Ubuntu's way.
    for candidate in cargo-web cargo-1.89 cargo-1.88 cargo-1.87 cargo-1.86 cargo-1.85 cargo; do
      has_candidate "$candidate" && { package=$candidate; break; }
    done
  fi
  to_install="$to_install $package"
done

if [ -n "$to_install" ]; then
  say "installing:$to_install"
  # Packages must not start services: the tests run daemons of their own.
  policy=/usr/sbin/policy-rc.d
  made_policy=""
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    made_policy=yes
  fi
  trap '[ -z "$made_policy" ] || rm -f "$policy"' EXIT
  # shellcheck disable=SC2086 # a list of words
  apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 $to_install
fi

for versioned in /usr/bin/cargo-1.[0-9]*; do
  [ -x "$versioned" ] || continue
  command -v cargo >/dev/null 2>&1 || {
    ln -s "$versioned" /usr/local/bin/cargo
    ln -s "/usr/bin/rustc-${versioned##*cargo-}" /usr/local/bin/rustc
  }
done
cargo_is_new_enough || fail "cargo $oldest_cargo or newer is needed and no package has it: see https://rustup.rs"
build_vsock_device
say "ready"
