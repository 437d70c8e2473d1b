#!/bin/sh
# Boots Debian 12's cloud kernel (6.1, cgroup v2), or one that is laid out in CACHE, in QEMU without acceleration and runs guest-check there.
# usage: run.sh LAUNCHER AGENT GUEST_CHECK [CACHE]   prints the guest's lines; exit code 0 when every check was ok.
set -eu
launcher=$1 agent=$2 check=$3 cache=${4:-${TMPDIR:-/tmp}/alcove-qemu}
here=$(cd "$(dirname "$0")" && pwd)
busybox=$(command -v busybox)
kernel=$("$here/../../../../scripts/qemu-kernel.sh" "$cache")
modules=$cache/lib/modules/$(basename "$kernel" | sed 's/^vmlinuz-//')/kernel

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root initramfs=$work/initramfs
mkdir -p "$root"/bin "$root"/proc "$root"/sys "$root"/dev "$root"/etc "$root"/tmp "$root"/usr \
  "$root"/rootfs/bin "$root"/rootfs/root "$root"/rootfs/etc "$initramfs"/bin "$initramfs"/modules
cp "$busybox" "$root/bin/busybox"
cp "$launcher" "$root/bin/alcove-launch"
cp "$agent" "$root/bin/alcove-agent"
cp "$check" "$root/bin/guest-check"
cp "$here/second" "$root/second"
cp "$busybox" "$root/rootfs/bin/busybox"
for name in $("$busybox" --list); do
  [ "$name" = busybox ] || ln -s busybox "$root/rootfs/bin/$name"
done
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/rootfs/etc/passwd"
chmod -R go+rX "$root"
chmod 755 "$root"/bin/* "$root/second" "$root/rootfs/bin/busybox"
mkfs=$(command -v mkfs.ext4 || echo /sbin/mkfs.ext4)
"$mkfs" -q -F -E root_owner=0:0 -d "$root" "$initramfs/root.img" 96M
cp "$busybox" "$initramfs/bin/busybox"
cp "$here/init" "$initramfs/init"
chmod 755 "$initramfs/init"
# Some kernels have them built in.
for module in drivers/block/loop fs/overlayfs/overlay; do
  [ ! -f "$modules/$module.ko" ] || cp "$modules/$module.ko" "$initramfs/modules/"
done
(cd "$initramfs" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initramfs.gz"

timeout "${QEMU_SECONDS:-150}" qemu-system-x86_64 -M microvm,acpi=off -accel tcg -m 1024 -smp 1 -nodefaults -no-user-config \
  -display none -serial stdio -no-reboot -kernel "$kernel" -initrd "$work/initramfs.gz" \
  -append "console=ttyS0 quiet panic=-1 rdinit=/init reboot=t" </dev/null | tr -d '\r' | tee "$work/console"
grep -q '^guest: done' "$work/console" || { echo "run.sh: the guest did not finish" >&2; exit 1; }
! grep -q '^FAIL' "$work/console"
