#!/bin/sh
# Goodput or latency under real loss: two network namespaces joined by a veth pair, and nft in the receiver's dropping packets at
# random. Every round runs each loss rate once, so that what disturbs the machine meets all of them alike; the figures
# are medians over the rounds, and each ratio is taken within its round. Needs root, ip, nft and python3, and nothing
# of the network: the namespaces are made here and removed at the end. With --ports, kinds of ports take turns over one plane.
# Ports of af_xdp and dpdk (`net_af_packet`) see packets before nft does, so a switch drops what comes in, for all of them.
set -eu
name=loss.sh
. "$(dirname "$0")/common/checks.sh"
. "$(dirname "$0")/common/veth.sh"

usage() {
    cat <<'EOF'
usage: benches/loss.sh [--latency] [--ports "udp af_xdp dpdk"] [--rounds N] [--seconds N | --iters N] [--size SIZE] [--loss "0.1 1 5"] [-- OPTIONS]

  --latency      write-lat in place of write-bw: percentiles of the time of one message
  --ports LIST   kinds of ports by turns, over one plane with a switch; udp without segmentation offload [default: kernel
                 sockets, four planes, no switch]
  --rounds N     rounds, each with every loss rate once [default: 5]
  --seconds N    seconds for each run of write-bw [default: 2]
  --iters N      round trips for each run of write-lat [default: 20000]
  --size SIZE    bytes of a message, as the commands take them [default: 64K]
  --loss LIST    loss rates in percent, beside 0 [default: "0.1 1 5"]
  --             what follows goes to the command on both ends, such as --no-gso
EOF
}

latency= ports= rounds=5 seconds=2 iters=20000 size=64K loss="0.1 1 5"
read_options 'ports rounds seconds iters size loss' latency "$@"
shift $taken
need_counts "$rounds" "$seconds" "$iters"
need_tools 'tools/setup.sh --tests installs it' ip nft python3
need_root

if [ -z "$latency" ]; then command=write-bw amount="-D $seconds"; else command=write-lat amount="-n $iters"; fi

need_spindrift
for kind in $ports; do
    case $kind in
    udp) ;;
    af_xdp) need_af_xdp ;;
    dpdk) need_dpdk ;;
    *) fail 2 "--ports: '$kind' is none of udp, af_xdp and dpdk" ;;
    esac
done

if [ -n "$ports" ]; then join_by_switch; else join_namespaces; fi

# Sets the ports of both sides: those of kind $1, or the sockets of four planes.
choose_ports() {
    device=blocksz=65536,framesz=16384,framecnt=256,qpairs=1
    case $1 in
    udp) server_port="--local 10.77.0.2 --no-gso" client_port="--local 10.77.0.1 --no-gso" ;;
    af_xdp) server_port="--port af_xdp --local 10.77.0.2" client_port="--port af_xdp --local 10.77.0.1" ;;
    dpdk)
        server_port="--port dpdk:net_af_packet0,iface=veth-b,$device --device-addresses fd77::2"
        client_port="--port dpdk:net_af_packet0,iface=veth-a,$device --device-addresses fd77::1"
        ;;
    *) server_port="--local $there" client_port="--local $here" ;;
    esac
}

# Drops UDP packets in namespace $1, in table $2, at hook $3: those whose random number, of a thousand, is as $4 says.
rule() {
    ip netns exec "$1" nft -f - <<EOF
table $2 {
    chain losing {
        type filter hook $3 priority 0;
        meta l4proto udp numgen random mod 1000 $4 counter drop
    }
}
EOF
}

# Drops this many in a thousand of the UDP packets that come in, on both sides: answers are lost too. The rule is there
# without loss as well, since looking at each packet takes time.
drop() {
    match="< $1"
    [ "$1" != 0 ] || match='> 999'

    if [ -n "$ports" ]; then
        ip netns exec "$between" nft flush ruleset
        for port in port-a port-b; do
            rule "$between" "netdev $port" "ingress device $port" "$match"
        done
        return
    fi
    for ns in "$a" "$b"; do
        ip netns exec "$ns" nft flush ruleset
        rule "$ns" 'inet loss' input "$match"
    done
}

run() {
    drop "$1"
    shift
    out=$1
    shift
    samples=
    [ -n "$latency" ] || samples="--samples $out.samples"
    both_sides "$out" "$command -s $size $*" "$server_port" --json $client_port $amount $samples 10.77.0.2
}

round=1
while [ "$round" -le "$rounds" ]; do
    for rate in 0 $loss; do
        mille=$(python3 -c 'import sys; print(round(float(sys.argv[1]) * 10))' "$rate")
        for kind in ${ports:-sockets}; do
            choose_ports "$kind"
            run "$mille" "$results/$round-$rate-$kind" "$@"
        done
    done
    round=$((round + 1))
done

python3 - "$results" "$rounds" "$command" "${ports:-sockets}" 0 $loss <<'EOF'
import json, statistics, sys

folder, rounds, command, kinds, rates = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4].split(), sys.argv[5:]
every = range(1, rounds + 1)
runs = {(kind, rate): [json.load(open(f"{folder}/{n}-{rate}-{kind}")) for n in every] for kind in kinds for rate in rates}


def rows(kind, rate, name):
    return [run["rows"][0][name] for run in runs[kind, rate]]


def ratios(kind, rate, name):
    pairs = [lossy / clean for lossy, clean in zip(rows(kind, rate, name), rows(kind, "0", name))]
    return f"{statistics.median(pairs):6.2f} {min(pairs):6.2f} {max(pairs):6.2f}"


def share(kind, rate, name):
    counts = [run["counters"]["transport"] for run in runs[kind, rate]]
    return f"{statistics.median(100 * count.get(name, 0) / count['tx_data'] for count in counts):7.2f}%"


# Medians of the samples, and of the rounds. The window is null without congestion control.
def sampled(kind, rate, name, unit):
    def values(n):
        lines = map(json.loads, open(f"{folder}/{n}-{rate}-{kind}.samples"))
        return [line[name] for line in lines if line["type"] == "sample" and line[name] is not None]

    medians = [statistics.median(found) / unit for found in map(values, every) if found]
    return f"{statistics.median(medians):9.0f}" if medians else f"{'-':>9}"


# The ratio is that of the column before it, to the run without loss of the same round.
figures = {"write-bw": ["bandwidth_gbps"], "write-lat": ["typical_us", "p999_us", "p99_us"]}[command]
titles = {"bandwidth_gbps": "Gb/s", "typical_us": "typical us", "p999_us": "99.9 % us", "p99_us": "99 % us"}
more = {"write-bw": [("window KB", "cwnd_bytes", 1000), ("RTT us", "rtt_ns", 1000)], "write-lat": []}[command]
heads = "".join(f"{titles[name]:>11}" for name in figures)
tails = "".join(f" {title:>9}" for title, *_ in more)
print(f"{'ports':>7} {'loss %':>7}{heads} {'ratio':>6} {'least':>6} {'most':>6} {'resent':>8} {'needless':>8}{tails}")
for kind in kinds:
    for rate in rates:
        values = "".join(f"{statistics.median(rows(kind, rate, name)):11.2f}" for name in figures)
        counts = f"{share(kind, rate, 'tx_retransmits')} {share(kind, rate, 'spurious_retransmits')}"
        ends = "".join(f" {sampled(kind, rate, name, unit)}" for _, name, unit in more)
        print(f"{kind:>7} {rate:>7}{values} {ratios(kind, rate, figures[-1])} {counts}{ends}")
EOF
