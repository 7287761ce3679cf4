#!/bin/sh
# What a side that sleeps costs and saves over AF_XDP: `write-bw` and `write-lat` with `--wait spin` and `--wait poll`, with and
# without the kernel's own threads for the interfaces (threaded NAPI), in turn between the same two interfaces, each side and
# its interface's thread pinned to a core. Every round runs each of them once, so that what disturbs the machine meets all
# alike; the figures are medians over the rounds. Needs root, ip, ethtool and python3; what is made here is removed at the end.
set -eu
name=wait.sh
. "$(dirname "$0")/common/checks.sh"
. "$(dirname "$0")/common/veth.sh"

usage() {
    cat <<'EOT'
usage: benches/wait.sh [--rounds N] [--seconds N] [--iters N] [--slow RATE] [--napi "0 1"] [-- OPTIONS]

  --rounds N       rounds [default: 5]
  --seconds N      seconds for each run of write-bw [default: 1]
  --iters N        round trips for each run of write-lat [default: 20000]
  --slow RATE      bits per second of the run that shows what is left for others [default: 100M]
  --napi "A B"     cores of the threads that serve the client's and the server's interface; the client has core 0, the
                   server core 1 [default: "0 1"]
  --               what follows goes to both commands on both ends, such as --cc none
EOT
}

rounds=5 seconds=1 iters=20000 slow=100M napi="0 1"
read_options 'rounds seconds iters slow napi' '' "$@"
shift $taken
need_counts "$rounds" "$seconds" "$iters"
need_tools 'apt-get install ethtool iproute2 procps python3 util-linux installs it' ethtool ip pgrep python3 taskset
need_root
need_spindrift
need_af_xdp
join_namespaces
here=fd77::1 there=fd77::2
ip -n "$a" addr add $here/64 dev veth-a nodad
ip -n "$b" addr add $there/64 dev veth-b nodad
for side in a b; do
    eval "namespace=\$$side"
    # As in af_xdp.sh.
    tc -n "$namespace" qdisc add dev veth-$side root pfifo
    # So that the interface has a NAPI while no port is open.
    ip netns exec "$namespace" ethtool -K veth-$side gro on
done

# Whether the kernel's threads serve the interfaces: 0 or 1.
threaded() {
    ip netns exec "$a" sh -c "echo $1 >/sys/class/net/veth-a/threaded"
    ip netns exec "$b" sh -c "echo $1 >/sys/class/net/veth-b/threaded"
    for thread in $(pgrep 'napi/veth-a'); do taskset -cp "${napi% *}" "$thread" >/dev/null; done
    for thread in $(pgrep 'napi/veth-b'); do taskset -cp "${napi#* }" "$thread" >/dev/null; done
}

# $1 is where the results go; what both sides say, $2; what the client says besides, $3.
run() {
    both_sides "$results/$1-client" "$2 --json --port af_xdp" "--local $there" --local $here $3 $there
    cp "$results/server" "$results/$1-server"
}

round=1
while [ "$round" -le "$rounds" ]; do
    for threads in 0 1; do
        threaded $threads
        for wait in spin poll; do
            each=$round-$threads-$wait
            run "$each-small" "write-bw --wait $wait $*" "-s 64 -D $seconds"
            run "$each-large" "write-bw --wait $wait $*" "-s 64K -D $seconds"
            run "$each-slow" "write-bw --wait $wait $*" "-s 64K -D $seconds --link-rate $slow"
            run "$each-half" "write-lat --wait $wait $*" "-s 2 -n $iters"
        done
    done
    round=$((round + 1))
done

python3 - "$results" "$rounds" "$slow" <<'EOF'
import json, statistics, sys

folder, rounds, slow = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def row(run, side):
    lines = open(f"{folder}/{run}-{side}").read().splitlines()
    return json.loads(lines[-1])["rows"][0]


def spread(values, digits):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} to {high:.{digits}f}]"


columns = {
    "64 B, Mpps": lambda each: (row(f"{each}-small", "client")["message_rate_mpps"], 3),
    "64 KiB, Gb/s": lambda each: (row(f"{each}-large", "client")["bandwidth_gbps"], 1),
    f"CPU at {slow}, s: client": lambda each: (row(f"{each}-slow", "client")["cpu_s"], 2),
    "server": lambda each: (row(f"{each}-slow", "server")["cpu_s"], 2),
    "half a round trip, us": lambda each: (row(f"{each}-half", "client")["typical_us"], 1),
}
print(f"{'NAPI':<10}{'--wait':<8}" + "".join(f"{name:<28}" for name in columns).rstrip())
for napi, kind in ("0", "usual"), ("1", "threaded"):
    for wait in "spin", "poll":
        line = f"{kind:<10}{wait:<8}"
        for value in columns.values():
            got = [value(f"{n}-{napi}-{wait}") for n in range(1, rounds + 1)]
            line += f"{spread([v for v, _ in got], got[0][1]):<28}"
        print(line.rstrip())
EOF
