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
    taskset -c 1 timeout 100 spindrift write-bw --json --port "dpdk:$pci_b" --device-addresses fd96::2/64 $2 >results/"$1".server 2>results/"$1".errors &
    for _ in $(seq 200); do
        grep -q waiting results/"$1".errors && break
        sleep 0.1
    done
    taskset -c 0 timeout 100 spindrift write-bw --json --port "dpdk:$pci_a" --device-addresses fd96::1/64 $2 ${3:-} 127.0.0.1 >results/"$1" 2>results/"$1".notes || {
        cat results/"$1"*
        fail "failed: $1"
    }
    wait $! || { cat results/"$1".server results/"$1".errors; fail "the server failed: $1"; }
}

run plain '--verify every' '-s 64K -n 1000'
run loss '--verify every --fault loss=1%' '-s 64K -n 1000'
(
    sleep 6
    link nic0 off
    sleep 2
    link nic0 on
) &
cable=$!
run cable '--verify every' '-s 64K -D 12'
wait $cable
[ -z "${MTU_LONG:-}" ] || run long "--verify every --device-mtu $MTU_LONG" '-s 64K -n 1000'
python3 - <<'EOT'
import glob, json, os, sys

for name in "plain", "loss", "cable":
    run = json.load(open(f"results/{name}"))
    row = run["rows"][0]
    print(name, row, {side: run["counters"].get(side) for side in ("writer", "target")})
    print(open(f"results/{name}.notes").read())
print(run["settings"]["ports"])
EOT
