#!/usr/bin/env bash
# Tests Spindrift in a virtual machine with what the host may lack: PCI NICs whose driver has AF_XDP zero-copy, or that DPDK
# takes over through VFIO. QEMU emulates all of it, without KVM: only speeds measured in one machine can be compared.
# docs/testing.md tells more.
#
#   tools/vm.sh af-xdp-zero-copy   write-bw and `pump af_xdp` between two NICs, with zero-copy and with the kernel's copies
#   tools/vm.sh dpdk-vfio          write-bw over DPDK between two NICs: verified, with losses, with a link that goes down and up
#   tools/vm.sh run FILE           runs FILE, a bash script, in the machine; the exit status is the script's
#   tools/vm.sh build              makes the machine: once, about 3 minutes and 2 GB. The others do it when it is missing
#
# Settings, all optional:
#   SPINDRIFT=FILE        the command that is tested [default: target/release/spindrift]
#   SPINDRIFT_VM=FOLDER   where the machine is kept [default: target/vm]
#   NIC=NAME              QEMU's model of the two NICs [default: igb]
#   ROUNDS=N SECONDS_EACH=N MTUS="N .."   of af-xdp-zero-copy: rounds, seconds of each run, MTUs of write-bw [default: 3, 2, 2048]
#   QEMU=FILE             a qemu-system-x86_64 of version 8 or newer [default: the system's, or one fetched by `build`]
#   TIMEOUT=N             seconds after which the machine is stopped [default: 600]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:/usr/sbin:/sbin"

target=${CARGO_TARGET_DIR:-target}
vm=${SPINDRIFT_VM:-$target/vm}
spindrift=${SPINDRIFT:-$target/release/spindrift}
nic=${NIC:-igb}
nic_options=
# Without this its driver has no zero-copy, and it is not behind the IOMMU.
case $nic in virtio-net*) nic_options=,disable-legacy=on,iommu_platform=on,ats=on ;; esac

die() {
    printf 'vm: %s\n' "$@" >&2
    exit 1
}

usage() { sed -n '/^#   tools/s/^# *//p' "${BASH_SOURCE[0]}"; }

need_tools() {
    local missing=() tool
    for tool in "$@"; do command -v "$tool" >/dev/null || missing+=("$tool"); done
    [ ${#missing[@]} -eq 0 ] || die "missing: ${missing[*]}; tools/setup.sh --vm installs what this needs"
}

# Sets `qemu`: the command with the options that find its firmware.
find_qemu() {
    local unpacked=$vm/qemu/usr
    if [ -n "${QEMU:-}" ]; then
        qemu=("$QEMU")
    elif [ -x "$unpacked/bin/qemu-system-x86_64" ]; then
        qemu=("$unpacked/bin/qemu-system-x86_64" -L "$unpacked/share/qemu" -L "$unpacked/share/seabios")
    else
        need_tools qemu-system-x86_64
        qemu=(qemu-system-x86_64)
    fi
    "${qemu[@]}" -device "$nic,help" >/dev/null 2>&1 ||
        die "${qemu[0]} has no NIC of the name $nic, or does not start: $("${qemu[@]}" --version 2>&1 | head -n 1)"
}

build() {
    [ ! -e "$vm/disk.img" ] || return 0
    echo "vm: making the machine in $vm (once, about 3 minutes)" >&2
    tools/vm/build.sh "$vm"
}

stop() {
    [ -z "${machine:-}" ] || kill "$machine" 2>/dev/null || true
    [ -z "${share:-}" ] || rm -rf "$share"
}

# boot SCRIPT: runs it in the machine. The machine asks for changes of a link by a file, as its NICs cannot.
boot() {
    local script=$1 status=0 began=$SECONDS asked
    share=$(mktemp -d)
    trap stop EXIT
    trap 'exit 130' INT TERM
    cp "$script" "$share/script"
    cp tools/vm/nics.sh "$share/"
    [ ! -x "$spindrift" ] || cp "$spindrift" "$share/spindrift"
    printf '%s\n' "NIC=$nic" "ROUNDS=${ROUNDS:-3}" "SECONDS_EACH=${SECONDS_EACH:-2}" "MTUS='${MTUS:-2048}'" >"$share/settings"
    mkfifo "$share/monitor"
    "${qemu[@]}" -M q35,kernel-irqchip=split -accel tcg,thread=multi -cpu max -smp 2 -m "${MEMORY:-1280}" \
        -nodefaults -no-user-config -display none -no-reboot -monitor stdio -serial "file:$share/console" \
        -kernel "$vm/vmlinuz" -initrd "$vm/initrd" \
        -append 'console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check intel_iommu=on iommu=pt net.ifnames=0' \
        -drive "file=$vm/disk.img,format=raw,if=none,id=disk,snapshot=on" -device virtio-blk-pci,drive=disk \
        -virtfs "local,path=$share,mount_tag=share,security_model=none" -device virtio-rng-pci \
        -device intel-iommu,intremap=on,caching-mode=on,device-iotlb=on \
        -device pcie-root-port,id=port0,slot=1 -device pcie-root-port,id=port1,slot=2 \
        -netdev hubport,id=hub0,hubid=0 -netdev hubport,id=hub1,hubid=0 \
        -device "$nic,id=nic0,bus=port0,netdev=hub0,mac=02:00:00:00:00:01$nic_options" \
        -device "$nic,id=nic1,bus=port1,netdev=hub1,mac=02:00:00:00:00:02$nic_options" \
        <"$share/monitor" >"$share/qemu" 2>&1 &
    machine=$!
    exec 9>"$share/monitor"
    while kill -0 "$machine" 2>/dev/null; do
        if [ $((SECONDS - began)) -ge "${TIMEOUT:-600}" ]; then
            kill "$machine"
            break
        fi
        # As in "nic0 off".
        if asked=$(cat "$share/link" 2>/dev/null) && rm -f "$share/link"; then
            echo "set_link $asked" >&9
        fi
        sleep 0.1
    done
    exec 9>&-
    wait "$machine" 2>/dev/null || true
    machine=
    cat "$share/output" 2>/dev/null || true
    if [ ! -s "$share/status" ]; then
        tail -n 5 "$share"/results/* "$share/console" "$share/qemu" >&2 2>/dev/null || true
        die "the machine ended without a result after $((SECONDS - began)) s"
    fi
    status=$(cat "$share/status")
    [ -z "${RESULTS:-}" ] || { mkdir -p "$RESULTS" && cp -r "$share/results/." "$RESULTS/" 2>/dev/null || true; }
    return "$status"
}

# scenario NAME FEATURE: runs a script of tools/vm and says how it went.
scenario() {
    [ -x "$spindrift" ] ||
        die "$spindrift is missing: cargo build --release -p spindrift-cli --features $2 builds it, or set SPINDRIFT"
    local status=0 began=$SECONDS
    boot "tools/vm/$1.sh" || status=$?
    if [ "$status" -eq 0 ]; then
        echo "PASS: $1 ($((SECONDS - began)) s)"
    else
        echo "FAIL: $1 (exit status $status, $((SECONDS - began)) s)"
    fi
    return "$status"
}

case "${1-}" in
    -h | --help) usage; exit 0 ;;
    build) build; find_qemu ;;
    run)
        [ -f "${2-}" ] || die "run needs the name of a script"
        build
        find_qemu
        boot "$2"
        ;;
    af-xdp-zero-copy) build; find_qemu; scenario "$1" af_xdp ;;
    dpdk-vfio) build; find_qemu; scenario "$1" dpdk ;;
    *) usage >&2; exit 2 ;;
esac
