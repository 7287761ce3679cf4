#!/bin/sh
# Bandwidth and packet rate over AF_XDP beside their limit: `write-bw` with and without the iCRC, and the raw pump with and
# without CRC and copy, in turn between the same two interfaces, each side pinned to a core. Every round runs each of them
# once, so that what disturbs the machine meets all alike; the figures are medians over the rounds, and each ratio is taken
# within its round. Needs root, ip and python3; what is made here is removed at the end.
set -eu
name=af_xdp.sh
. "$(dirname "$0")/common/checks.sh"
. "$(dirname "$0")/common/veth.sh"

usage() {
    cat <<'EOT'
usage: benches/af_xdp.sh [--rounds N] [--seconds N] [--size SIZE] [--through none|kernel|xdp] [-- OPTIONS]

  --rounds N       rounds [default: 5]
  --seconds N      seconds for each run [default: 2]
  --size SIZE      bytes of a long message, as write-bw takes them [default: 1M]
  --through KIND   none: a veth pair; kernel, xdp: three switches of that kind, source-routed, one plane [default: none]
  --               what follows goes to write-bw on both ends, such as --cc none
EOT
}

rounds=5 seconds=2 size=1M through=none
read_options 'rounds seconds size through' '' "$@"
shift $taken
need_counts "$rounds" "$seconds"
need_tools 'apt-get install iproute2 python3 util-linux installs it' ip python3 taskset
need_root
need_spindrift
need_af_xdp

topology=configs/lab/two-plane.toml
case $through in
none)
    join_namespaces
    here=fd77::1 there=fd77::2 pumped= routed=
    ip -n "$a" addr add $here/64 dev veth-a nodad
    ip -n "$b" addr add $there/64 dev veth-b nodad
    # Without a queueing discipline, frames that the other end has no room for are lost in silence.
    tc -n "$a" qdisc add dev veth-a root pfifo
    tc -n "$b" qdisc add dev veth-b root pfifo
    ;;
kernel | xdp)
    join_lab $topology "$through" h1 h3
    here=fd5d:7072::1 there=fd5d:7072:0:1::1
    carrier=$("$spindrift" path --topology $topology --from h1 --to h3 --plane 0 --ev 0 --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["paths"][0]["hops"][0]["destination"])')
    pumped="--carrier $carrier" routed="--topology $topology"
    ;;
*) fail 2 "--through $through: none, kernel or xdp" ;;
esac

write_bw() {
    out=$1
    shift
    both_sides "$out" "write-bw --json --port af_xdp $routed $*" "--local $there" --local $here -D "$seconds" $there
}

# What came counts.
pump() {
    both_sides "$results/sent" "pump af_xdp --json -D $seconds $2" "--local $there" --local $here $there $pumped
    cp "$results/server" "$1"
}

round=1
while [ "$round" -le "$rounds" ]; do
    write_bw "$results/$round-icrc" -s "$size" "$@"
    pump "$results/$round-pump" ''
    write_bw "$results/$round-none" -s "$size" --no-icrc "$@"
    pump "$results/$round-crc" --crc-copy
    write_bw "$results/$round-small" -s 64 "$@"
    pump "$results/$round-smallpump" '-s 64'
    round=$((round + 1))
done

python3 - "$results" "$rounds" "$size" <<'EOF'
import json, statistics, sys

folder, rounds, size = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def read(name, rate):
    return [rate(json.load(open(f"{folder}/{n}-{name}"))) for n in range(1, rounds + 1)]


def spread(values):
    return f"{statistics.median(values):7.3f} [{min(values):.3f} to {max(values):.3f}]"


def table(unit, rates, yardsticks):
    print(f"{'':<26}{unit:<28}" + "".join(f"{'to ' + name:<28}" for name in yardsticks).rstrip())
    for name, values in rates.items():
        ratios = ([a / b for a, b in zip(values, rates[other])] for other in yardsticks)
        print(f"{name:<26}" + "".join(f"{spread(column):<28}" for column in [values, *ratios]).rstrip())


written = lambda run: run["rows"][0]["bandwidth_gbps"]
pumped = lambda run: run["received"]["bandwidth_gbps"]
table(
    "Gb/s",
    {
        f"write-bw -s {size}": read("icrc", written),
        f"write-bw -s {size} --no-icrc": read("none", written),
        "pump": read("pump", pumped),
        "pump --crc-copy": read("crc", pumped),
    },
    ["pump", "pump --crc-copy"],
)
print()
table(
    "Mpps",
    {
        "write-bw -s 64": read("small", lambda run: run["rows"][0]["message_rate_mpps"]),
        "pump -s 64": read("smallpump", lambda run: run["received"]["packet_rate_mpps"]),
    },
    ["pump -s 64"],
)
