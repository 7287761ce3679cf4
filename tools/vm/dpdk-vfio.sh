# Two NICs bound to vfio-pci behind an IOMMU: `write-bw` over DPDK from one to the other with every byte checked; the same with 1 % of
# the packets lost on the way; and with a cable that is pulled for a while. The set-up goes over the machine's loopback interface.
# shellcheck disable=SC1091,SC2086,SC2154
. ./nics.sh
load_driver
modprobe vfio-pci || fail 'no vfio-pci'
[ -n "$(ls /sys/kernel/iommu_groups)" ] || fail 'the machine has no IOMMU'
mkdir -p /mnt/huge results
echo "${HUGE_PAGES:-300}" >/proc/sys/vm/nr_hugepages
mount -t hugetlbfs huge /mnt/huge
dpdk-devbind.py --bind=vfio-pci --force "$pci_a" "$pci_b" || fail 'the NICs cannot be bound to vfio-pci'
uname -r
dpdk-devbind.py -s | grep drv=vfio-pci

# run NAME WORDS [WORDS]: writes from one NIC to the other; the last words are for the client alone.
run() {
    echo "$1: $2 ${3:-}"
    taskset -c 1 timeout 150 spindrift write-bw --json --port "dpdk:$pci_b" --device-addresses fd96::2/64 $2 >results/"$1".server 2>results/"$1".errors &
    for _ in $(seq 200); do
        grep -q waiting results/"$1".errors && break
        sleep 0.1
    done
    taskset -c 0 timeout 150 spindrift write-bw --json --port "dpdk:$pci_a" --device-addresses fd96::1/64 $2 ${3:-} 127.0.0.1 >results/"$1" 2>results/"$1".notes || {
        cat results/"$1"*
        fail "failed: $1"
    }
    wait $! || { cat results/"$1".server results/"$1".errors; fail "the server failed: $1"; }
}

run plain '' '-s 64K -n 400 --verify every'
# Frames of several buffers.
run loss '--fault loss=1% --device-mtu 3000' '-s 64K -n 200 --verify every'
# Opening the ports takes some seconds: the link comes up, and the addresses are looked for on it.
(
    sleep 12
    link nic0 off
    sleep 2
    link nic0 on
) &
cable=$!
run cable '' '-s 64K -D 18 --verify every'
wait $cable
python3 - <<'EOT'
import json, sys

# What each run has to show besides.
wanted = {
    "plain": lambda counters: True,
    "loss": lambda counters: counters["faults"].get("lost", 0) > 0 and counters["transport"].get("tx_retransmits", 0) > 0,
    "cable": lambda counters: counters["transport"].get("port_changes", 0) >= 2,
}
bad = []
for name, shows in wanted.items():
    run = json.load(open(f"results/{name}"))
    row, counters = run["rows"][0], run["counters"]
    transport = counters["transport"]
    print(
        f"{name:<6} {row['iterations']:>5} writes, {row['compared']} compared, verified {row['verified']}, "
        f"MTU {run['settings']['mtu']}, {counters['faults'].get('lost', 0)} lost by the fault, "
        f"{transport.get('tx_retransmits', 0)} retransmitted, {transport.get('port_changes', 0)} changes of the link"
    )
    if not row["verified"] or not shows(counters):
        bad.append(name)
port = run["settings"]["ports"][0]
print(f"{port['name']}: {'; '.join(port['notes'])}")
sys.exit(f"not as it should be: {', '.join(bad)}" if bad else 0)
EOT
