#!/usr/bin/env bash
# tools/vm/build.sh FOLDER: makes a machine for tools/vm.sh of Debian's packages: the disk, the kernel and its initial RAM disk,
# and a QEMU where the system's is too old. Changes nothing outside the folder.
set -euo pipefail
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mirror=${MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# The binary that is tested comes from the host, so its libraries, and DPDK, are of the same release.
# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
# The first with zero-copy for igb is 6.14.
kernel_suite=trixie-backports
qemu_suite=bookworm-backports
packages=busybox-static,kmod,iproute2,ethtool,pciutils,procps,dpdk,librte-meta-net,librte-meta-bus,librte-meta-mempool

die() {
    printf 'vm: %s\n' "$@" >&2
    exit 1
}

[ $# -eq 1 ] || die 'usage: tools/vm/build.sh FOLDER'
[ "$(id -u)" -eq 0 ] || die 'making the machine needs root, as it unpacks the files of a system; run it with sudo'
[ "$release" = bookworm ] || die "this host is not Debian 12 (bookworm) but '${release:-unknown}': its programs would not find their libraries"
for tool in debootstrap mke2fs cpio zstd apt-get qemu-system-x86_64; do
    command -v "$tool" >/dev/null || die "$tool is missing; tools/setup.sh --vm installs what this needs"
done
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$folder"

# Packages of later suites, without making them known to the system's apt.
mkdir -p apt/lists/partial apt/cache/archives/partial debs
for suite in "$qemu_suite" "$kernel_suite"; do
    echo "deb [signed-by=$keyring] $mirror $suite main"
done >apt/sources
cat >apt/conf <<EOT
Dir::Etc::sourcelist "$folder/apt/sources";
Dir::Etc::sourceparts "-";
Dir::State "$folder/apt";
Dir::State::status "/dev/null";
Dir::Cache "$folder/apt/cache";
APT::Sandbox::User "root";
EOT
apt_of() {
    local suite=$1 command=$2
    shift 2
    env APT_CONFIG="$folder/apt/conf" "$command" -q -o APT::Default-Release="$suite" "$@"
}

# unpack SUITE FOLDER PACKAGE..
unpack() {
    local suite=$1 to=$2 package
    shift 2
    (cd debs && apt_of "$suite" apt-get download "$@" >>../log 2>&1) || die "cannot download $*; $folder/log has more"
    for package; do dpkg -x debs/"$package"_*.deb "$to"; done
}

apt_of "$kernel_suite" apt-get update >log 2>&1 || die "cannot read the lists of $mirror; $folder/log has more"
if ! qemu-system-x86_64 -device help | grep -q '"igb"'; then
    unpack "$qemu_suite" qemu qemu-system-x86 qemu-system-data seabios
fi

if [ ! -e root/ready ]; then
    rm -rf root
    debootstrap --variant=minbase --include="$packages" "$release" root "$mirror" >>log 2>&1 ||
        die "debootstrap failed; $folder/log has more"
    touch root/ready
fi
rm -rf root/var/cache/apt root/var/lib/apt/lists root/usr/share/{doc,locale,man}
image=$(apt_of "$kernel_suite" apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
version=${image#linux-image-}
rm -rf kernel
# Newer kernels have their files in several packages, named like the image.
mapfile -t parts < <(apt_of "$kernel_suite" apt-cache depends "$image" | sed -n "s/.*Depends: \(linux-[a-z]*-$version\)\$/\1/p")
unpack "$kernel_suite" kernel "$image" "${parts[@]}"
modules=$(find kernel -type d -path "*/modules/*$version" | head -n 1)
cp "$(find kernel -name 'vmlinuz*' -type f | head -n 1)" vmlinuz
rm -rf "$modules"/{build,source} "$modules"/kernel/{sound,drivers/{gpu,media,net/wireless,scsi,staging,isdn,infiniband,usb,input,hid,md,ata},fs/{xfs,btrfs,ocfs2,ceph,nfs,nfsd,gfs2,smb,f2fs,bcachefs}}
rm -rf root/lib/modules
mkdir -p root/lib/modules root/share
cp -a "$modules" "root/lib/modules/$version"
chroot root depmod "$version"
install -m 755 "$tools/init" root/init.vm

# The initial RAM disk has the modules that reach the disk, and nothing else.
rm -rf ramdisk
mkdir -p ramdisk/{bin,mod,new}
cp root/bin/busybox ramdisk/bin/
for module in virtio_pci virtio_blk ext4; do
    chroot root modprobe -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r file; do
    plain=$(basename "$file" | sed 's/\.[xz]z$//; s/\.zst$//')
    case $file in
        *.xz) xz -dc "root$file" >"ramdisk/mod/$plain" ;;
        *.zst) zstd -dcq "root$file" >"ramdisk/mod/$plain" ;;
        *) cp "root$file" ramdisk/mod/ ;;
    esac
    echo "$plain" >>ramdisk/mod/list
done
install -m 755 "$tools/init-ramdisk" ramdisk/init
(cd ramdisk && find . | cpio -o -H newc --quiet | gzip -1) >initrd
rm -f disk.new
mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1 -d root disk.new 1500M >>log 2>&1 ||
    die "cannot make the disk; $folder/log has more"
rm -rf ramdisk kernel root debs apt
mv disk.new disk.img
echo "vm: ready: Debian $release with Linux $version" >&2
