# Two NICs in two network namespaces: `write-bw` and the raw pump over AF_XDP in turn, with the driver's XDP and with the network
# stack's. Fails where the driver does not grant zero-copy, or where a run fails.
# shellcheck disable=SC1091,SC2086,SC2154
. ./nics.sh
load_driver
ip netns add a
ip netns add b
ip link set "$nic_a" netns a
ip link set "$nic_b" netns b
for side in a b; do
    [ "$side" = a ] && nic=$nic_a number=1 || nic=$nic_b number=2
    ip netns exec $side ethtool -L "$nic" combined 1 2>/dev/null || true
    # The longest frame that igb takes with an XDP program.
    ip -n $side link set "$nic" mtu "${MTU:-2300}" || fail "$nic: no MTU of ${MTU:-2300}"
    ip -n $side address add 10.9.0.$number/24 dev "$nic"
    # Attaching a program takes the link down for a while, in which no neighbour answers.
    ip -n $side neighbour add 10.9.0.$((3 - number)) lladdr 02:00:00:00:00:0$((3 - number)) dev "$nic"
    ip -n $side link set lo up
    ip -n $side link set "$nic" up
done
for _ in $(seq 100); do
    [ "$(ip netns exec a cat /sys/class/net/"$nic_a"/carrier 2>/dev/null)" = 1 ] && break
    sleep 0.1
done
mkdir -p results

# both NAME WORDS [WORDS]: runs a command on both sides; the last words are for the client alone.
both() {
    ip netns exec b taskset -c 1 timeout 60 spindrift $2 --local 10.9.0.2 >results/"$1".server 2>&1 &
    for _ in $(seq 200); do
        grep -q waiting results/"$1".server && break
        ip -n b link show dev "$nic_b" | grep -q xdp && break
        sleep 0.1
    done
    ip netns exec a taskset -c 0 timeout 60 spindrift $2 --local 10.9.0.1 ${3:-} 10.9.0.2 >results/"$1" 2>results/"$1".notes || {
        cat results/"$1" results/"$1".notes results/"$1".server
        fail "failed: spindrift $2"
    }
    wait %% || { cat results/"$1".server; fail "the server failed: spindrift $2"; }
}

# So few packets in flight that the rings of the emulated NICs have room for them; rates and round trips vary too much here for congestion
# control.
few='-t 4 --cc none'
uname -r
# First without figures: what the ports say of themselves.
for mode in native generic; do
    both $mode.words "write-bw --port af_xdp --xdp-mode $mode" '-s 64K -D 1'
    sed "s/^/$mode: /" results/$mode.words
done
for round in $(seq "$ROUNDS"); do
    for mode in native generic; do
        for size in $MTUS; do
            each=$mode.$size.$round
            both $each.write "write-bw --json --port af_xdp --xdp-mode $mode -m $size $few" "-s 64K -D $SECONDS_EACH"
            both $each.pump "pump af_xdp --json --xdp-mode $mode -s $size -D $SECONDS_EACH"
            both $each.plain "write-bw --json --port af_xdp --xdp-mode $mode -m $size --no-icrc $few" "-s 64K -D $SECONDS_EACH"
            both $each.crc "pump af_xdp --json --xdp-mode $mode -s $size -D $SECONDS_EACH --crc-copy"
        done
    done
done
python3 - "$ROUNDS" "$MTUS" <<'EOT'
import json, statistics, sys

rounds = range(1, int(sys.argv[1]) + 1)


def rate(name, kind):
    if kind in ("write", "plain"):
        return json.load(open(f"results/{name}.{kind}"))["rows"][0]["bandwidth_gbps"]
    return json.load(open(f"results/{name}.{kind}.server"))["received"]["bandwidth_gbps"]


print(f"{'XDP':<9}{'MTU':<6}{'Gb/s: write-bw':<16}{'--no-icrc':<11}{'pump':<8}{'--crc-copy':<12}{'write-bw/pump':<16}{'no-icrc/pump':<14}{'write-bw/crc-copy'}")
for mode in "native", "generic":
    for size in sys.argv[2].split():
        got = [{kind: rate(f"{mode}.{size}.{n}", kind) for kind in ("write", "plain", "pump", "crc")} for n in rounds]
        middle = lambda value: statistics.median(value(run) for run in got)
        print(
            f"{mode:<9}{size:<6}{middle(lambda r: r['write']):<16.3f}{middle(lambda r: r['plain']):<11.3f}"
            f"{middle(lambda r: r['pump']):<8.3f}{middle(lambda r: r['crc']):<12.3f}"
            f"{middle(lambda r: r['write'] / r['pump']):<16.2f}{middle(lambda r: r['plain'] / r['pump']):<14.2f}"
            f"{middle(lambda r: r['write'] / r['crc']):.2f}"
        )
EOT
grep -q zero-copy results/native.words || fail 'the driver did not grant zero-copy'
