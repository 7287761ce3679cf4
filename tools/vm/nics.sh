# What the scripts of tools/vm share. They run in the machine, in the folder that the host shares.
# shellcheck disable=SC1091,SC2034
. ./settings
# A copy, so that the shared folder is not read while it runs.
[ ! -f spindrift ] || install -m 755 spindrift /usr/bin/spindrift

fail() {
    echo "$*"
    exit 1
}

# The last PCI device on the way to an interface; virtio has devices of its own behind it.
pci_of() { realpath "$1/device" | grep -o '[0-9a-f]*:[0-9a-f]*:[0-9a-f]*\.[0-9a-f]' | tail -n 1; }

# Two NICs that are joined to each other: `nic_a` and `nic_b` are their interfaces, `pci_a` and `pci_b` their places on the bus.
find_nics() {
    local found
    for found in /sys/class/net/*; do
        case $(cat "$found/address") in
            02:00:00:00:00:01) nic_a=${found##*/} pci_a=$(pci_of "$found") ;;
            02:00:00:00:00:02) nic_b=${found##*/} pci_b=$(pci_of "$found") ;;
        esac
    done
    [ -n "${nic_a:-}" ] && [ -n "${nic_b:-}" ] || fail "no driver has taken the two NICs of the model $NIC"
}

load_driver() {
    case $NIC in
        virtio-net-pci) modprobe virtio_net ;;
        *) modprobe "$NIC" ;;
    esac || fail "no driver for $NIC"
    for _ in $(seq 50); do
        set -- /sys/class/net/*
        [ $# -ge 3 ] && break
        sleep 0.1
    done
    find_nics
}

# Asks the host to pull the cable of a NIC, or to put it back: nic0 is the first, and `link nic0 off` pulls it.
link() {
    echo "$*" >link.new
    mv link.new link
    while [ -e link ]; do sleep 0.05; done
}
