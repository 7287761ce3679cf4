#!/bin/sh
# Half a round trip over kernel sockets, beside that of sockperf over TCP and UDP: the same two cores, the same sizes, in turn.
# Every round runs each of them once, so that what disturbs the machine meets all alike; the figures are medians over the
# rounds of each run's median, and each ratio is taken within its round. Needs sockperf and python3; uses loopback addresses.
set -eu
name=latency.sh
. "$(dirname "$0")/common/checks.sh"

usage() {
    cat <<'EOF'
usage: benches/latency.sh [--rounds N] [--seconds N] [--iters N] [--sizes "64 4096"] [-- OPTIONS]

  --rounds N     rounds [default: 5]
  --seconds N    seconds for each run of sockperf [default: 2]
  --iters N      round trips for each run of write-lat [default: 50000]
  --sizes LIST   bytes of a message [default: "64 4096"]
  --             what follows goes to write-lat on both ends, such as --no-icrc
EOF
}

rounds=5 seconds=2 iters=50000 sizes="64 4096"
read_options 'rounds seconds iters sizes' '' "$@"
shift $taken
need_counts "$rounds" "$seconds" "$iters" $sizes
need_tools 'apt-get install sockperf python3 util-linux installs it' sockperf python3 taskset
need_spindrift

results=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$results"
}
trap finish EXIT
trap 'exit 130' INT TERM

# An address and ports that nobody else is likely to use. A connection of sockperf that is interrupted holds its port for a
# minute, so every run has another.
ip=127.77.0.1 port=18619 sockperf_port=$((18620 + $$ % 1000))

failed() {
    echo "latency.sh: $1 failed:" >&2
    cat "$results/server" "$results/client" >&2
    exit 1
}

sockperf_run() {
    taskset -c 0 sockperf server --ip $ip -p $sockperf_port --nonblocked $2 >"$results/server" 2>&1 &
    server=$!
    sleep 0.5
    taskset -c 1 sockperf ping-pong -i $ip -p $sockperf_port --nonblocked $2 -m "$3" -t "$seconds" --full-rtt >"$results/client" 2>&1 ||
        failed "sockperf"
    kill $server 2>/dev/null || true
    wait $server 2>/dev/null || true
    server=
    sed -n 's/.*percentile 50\.000 = *//p' "$results/client" >"$results/$1"
    [ -s "$results/$1" ] || failed "sockperf"
}

write_lat() {
    out=$1 size=$2
    shift 2
    taskset -c 0 "$spindrift" write-lat -p $port -s "$size" "$@" >"$results/server" 2>&1 &
    server=$!
    sleep 0.5
    taskset -c 1 "$spindrift" write-lat 127.0.0.1 -p $port -s "$size" -n "$iters" --json "$@" >"$results/$out" 2>"$results/client" ||
        failed "write-lat"
    wait $server || failed "write-lat"
    server=
}

round=1
while [ "$round" -le "$rounds" ]; do
    for size in $sizes; do
        write_lat "$round-$size-ours" "$size" "$@"
        sockperf_run "$round-$size-tcp" --tcp "$size"
        sockperf_run "$round-$size-udp" "" "$size"
    done
    round=$((round + 1))
done

python3 - "$results" "$rounds" $sizes <<'EOF'
import json, statistics, sys

folder, rounds, sizes = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


def spread(values):
    return f"{statistics.median(values):6.2f} [{min(values):.2f} to {max(values):.2f}]"


print(f"{'bytes':>8}  {'write-lat us':<25}{'sockperf TCP us':<25}{'sockperf UDP us':<25}{'ratio to TCP':<25}ratio to UDP")
for size in sizes:
    ours, tcp, udp = [], [], []
    for n in range(1, rounds + 1):
        ours.append(json.load(open(f"{folder}/{n}-{size}-ours"))["rows"][0]["typical_us"])
        # sockperf was asked for the whole round trip.
        for name, halves in (("tcp", tcp), ("udp", udp)):
            halves.append(float(open(f"{folder}/{n}-{size}-{name}").read()) / 2)
    columns = [ours, tcp, udp, [a / b for a, b in zip(ours, tcp)], [a / b for a, b in zip(ours, udp)]]
    print(f"{size:>8}  " + "".join(f"{spread(column):<25}" for column in columns).rstrip())
EOF
