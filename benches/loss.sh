#!/bin/sh
# Goodput under real loss: two network namespaces joined by a veth pair, and nft in the receiver's dropping packets at
# random. Every round runs each loss rate once, so that what disturbs the machine meets all of them alike; the figures
# are medians over the rounds, and each ratio is taken within its round. Needs root, ip, nft and python3, and nothing
# of the network: both namespaces are made here and removed at the end.
set -eu

usage() {
    cat <<'EOF'
usage: benches/loss.sh [--rounds N] [--seconds N] [--size SIZE] [--loss "0.1 1 5"] [-- WRITE-BW OPTIONS]

  --rounds N     rounds, each with every loss rate once [default: 5]
  --seconds N    seconds for each run [default: 2]
  --size SIZE    bytes of a message, as write-bw takes them [default: 64K]
  --loss LIST    loss rates in percent, beside 0 [default: "0.1 1 5"]
  --             what follows goes to both ends' write-bw, such as --no-gso
EOF
}

rounds=5 seconds=2 size=64K rates="0.1 1 5"
while [ $# -gt 0 ]; do
    case $1 in
    --rounds | --seconds | --size | --loss)
        [ $# -ge 2 ] || { echo "loss.sh: $1 needs a value" >&2; exit 2; }
        case $1 in
        --rounds) rounds=$2 ;;
        --seconds) seconds=$2 ;;
        --size) size=$2 ;;
        --loss) rates=$2 ;;
        esac
        shift 2
        ;;
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    *) echo "loss.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
    esac
done
for number in "$rounds" "$seconds"; do
    case $number in
    '' | *[!0-9]* | 0) echo "loss.sh: '$number' is no count from 1" >&2; exit 2 ;;
    esac
done
for tool in ip nft python3; do
    command -v "$tool" >/dev/null || { echo "loss.sh: $tool is missing; tools/setup.sh --tests installs it" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "loss.sh: namespaces need root; run it with sudo" >&2; exit 1; }

cd "$(dirname "$0")/.."
spindrift=${SPINDRIFT:-target/release/spindrift}
[ -x "$spindrift" ] || { echo "loss.sh: $spindrift is missing; cargo build --release -p spindrift-cli builds it" >&2; exit 1; }

a=spin-loss-a-$$ b=spin-loss-b-$$
results=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    [ -n "$keep" ] || rm -rf "$results"
}
keep=${KEEP:-}; [ -z "$keep" ] || results=$keep
trap finish EXIT
trap 'exit 130' INT TERM

ip netns add "$a"
ip netns add "$b"
# Chosen interface indices: a veth made with the default ones can clash with those of its peer's namespace.
ip link add veth-a index 771 netns "$a" mtu 9000 type veth peer name veth-b index 772 netns "$b" mtu 9000
for p in 0 1 2 3; do
    ip -n "$a" addr add 10.77.$p.1/24 dev veth-a
    ip -n "$b" addr add 10.77.$p.2/24 dev veth-b
done
ip -n "$a" link set veth-a up
ip -n "$b" link set veth-b up
here=10.77.0.1,10.77.1.1,10.77.2.1,10.77.3.1
there=10.77.0.2,10.77.1.2,10.77.2.2,10.77.3.2

# Drops this many in a thousand of the UDP packets that come in, on both sides: answers are lost too.
drop() {
    for ns in "$a" "$b"; do
        ip netns exec "$ns" nft flush ruleset
        [ "$1" = 0 ] && continue
        ip netns exec "$ns" nft -f - <<EOF
table inet loss {
    chain in {
        type filter hook input priority 0;
        meta l4proto udp numgen random mod 1000 < $1 counter drop
    }
}
EOF
    done
}

run() {
    drop "$1"
    shift
    out=$1
    shift
    ip netns exec "$b" taskset -c 1 "$spindrift" write-bw --local $there -s "$size" -D "$seconds" "$@" >"$results/server" 2>&1 &
    server=$!
    sleep 0.5
    ip netns exec "$a" taskset -c 0 "$spindrift" write-bw --json --local $here -s "$size" -D "$seconds" "$@" 10.77.0.2 >"$out" || {
        echo "loss.sh: the run failed; the server said:" >&2
        cat "$results/server" >&2
        exit 1
    }
    wait "$server" || { echo "loss.sh: the server failed:" >&2; cat "$results/server" >&2; server=; exit 1; }
    server=
}

round=1
while [ "$round" -le "$rounds" ]; do
    for rate in 0 $rates; do
        mille=$(python3 -c 'import sys; print(round(float(sys.argv[1]) * 10))' "$rate")
        run "$mille" "$results/$round-$rate" "$@"
    done
    round=$((round + 1))
done

python3 - "$results" "$rounds" 0 $rates <<'EOF'
import json, statistics, sys

folder, rounds, rates = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
runs = {rate: [json.load(open(f"{folder}/{n}-{rate}")) for n in range(1, rounds + 1)] for rate in rates}
gbps = {rate: [run["rows"][0]["bandwidth_gbps"] for run in runs[rate]] for rate in rates}
print(f"{'loss %':>7} {'Gb/s':>6} {'ratio':>6} {'least':>6} {'most':>6}  {'resent':>7} {'needless':>8} {'pause ms':>8}")
for rate in rates:
    ratios = [lossy / clean for lossy, clean in zip(gbps[rate], gbps["0"])]
    def share(name):
        counts = [run["counters"]["transport"] for run in runs[rate]]
        return statistics.median(100 * count.get(name, 0) / count["tx_data"] for count in counts)
    pause = statistics.median(run["rows"][0]["longest_pause_ms"] for run in runs[rate])
    print(f"{rate:>7} {statistics.median(gbps[rate]):6.2f} {statistics.median(ratios):6.2f} {min(ratios):6.2f} {max(ratios):6.2f}"
          f"  {share('tx_retransmits'):6.2f}% {share('spurious_retransmits'):7.2f}% {pause:8.1f}")
EOF
