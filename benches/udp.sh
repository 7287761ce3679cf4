#!/bin/sh
# Bandwidth over kernel sockets beside their limit: `write-bw` with and without the iCRC, the raw pump, the pump with CRC and
# copy, and iperf3 over TCP, in turn over one veth pair, each side pinned to a core. Every round runs each of them once, so
# that what disturbs the machine meets all alike; the figures are medians over the rounds, and each ratio is taken within its
# round. Needs root, ip, iperf3 and python3; both namespaces are made here and removed at the end.
set -eu
name=udp.sh
. "$(dirname "$0")/common/checks.sh"
. "$(dirname "$0")/common/veth.sh"

usage() {
    cat <<'EOF'
usage: benches/udp.sh [--rounds N] [--seconds N] [--size SIZE] [-- OPTIONS]

  --rounds N     rounds [default: 5]
  --seconds N    seconds for each run [default: 2]
  --size SIZE    bytes of a message, as write-bw takes them [default: 1M]
  --             what follows goes to write-bw on both ends, such as --cc none [default: -t 2]
EOF
}

rounds=5 seconds=2 size=1M
read_options 'rounds seconds size' '' "$@"
shift $taken
[ $# -gt 0 ] || set -- -t 2
need_counts "$rounds" "$seconds"
need_tools 'apt-get install iproute2 iperf3 python3 util-linux installs it' ip iperf3 python3 taskset
need_root
need_spindrift
join_namespaces

write_bw() {
    out=$1
    shift
    both_sides "$out" "write-bw -s $size $*" "--local $there" --json --local "$here" -D "$seconds" 10.77.0.2
}

# What came counts: packets that the receiver's socket had no room for were sent for nothing.
pump() {
    both_sides "$results/sent" "pump udp --json -D $seconds $2" '--local 10.77.0.2' --local 10.77.0.1 10.77.0.2
    cp "$results/server" "$1"
}

tcp() {
    ip netns exec "$b" iperf3 --server --one-off --affinity 1 >"$results/server" 2>&1 &
    server=$!
    sleep 0.5
    ip netns exec "$a" iperf3 --client 10.77.0.2 --time "$seconds" --affinity 0 --json >"$1" || fail 1 "iperf3 failed"
    wait "$server" || true
    server=
}

round=1
while [ "$round" -le "$rounds" ]; do
    write_bw "$results/$round-icrc" "$@"
    write_bw "$results/$round-none" "$@" --no-icrc
    pump "$results/$round-pump" ''
    pump "$results/$round-crc" --crc-copy
    tcp "$results/$round-tcp"
    round=$((round + 1))
done

python3 - "$results" "$rounds" <<'EOF'
import json, statistics, sys

folder, rounds = sys.argv[1], int(sys.argv[2])


def read(name, rate):
    return [rate(json.load(open(f"{folder}/{n}-{name}"))) for n in range(1, rounds + 1)]


written = lambda run: run["rows"][0]["bandwidth_gbps"]
pumped = lambda run: run["received"]["bandwidth_gbps"]
rates = {
    "write-bw": read("icrc", written),
    "write-bw --no-icrc": read("none", written),
    "pump udp": read("pump", pumped),
    "pump udp --crc-copy": read("crc", pumped),
    "iperf3, TCP": read("tcp", lambda run: run["end"]["sum_received"]["bits_per_second"] / 1e9),
}


def spread(values):
    return f"{statistics.median(values):6.2f} [{min(values):.2f} to {max(values):.2f}]"


yardsticks = list(rates)[2:]
print(f"{'':<22}{'Gb/s':<26}" + "".join(f"{'to ' + name:<26}" for name in yardsticks).rstrip())
for name, values in rates.items():
    ratios = ([a / b for a, b in zip(values, rates[other])] for other in yardsticks)
    print(f"{name:<22}" + "".join(f"{spread(column):<26}" for column in [values, *ratios]).rstrip())
EOF
