#!/bin/sh
# Raw pump and udp port over a veth pair between two namespaces that are made for it and removed. Needs root.
#   cargo build --release -p spindrift-pmd --example udp_throughput
#   sh pmd/examples/udp_throughput.sh target/release/examples/udp_throughput [SECONDS]
set -eu
bin=$1
seconds=${2:-2}
a=sdpump-a-$$ b=sdpump-b-$$
trap 'ip netns del $a; ip netns del $b' EXIT
ip netns add "$a"
ip netns add "$b"
# Distinct interface indexes: with equal ones link events take long.
ip link add sdva index 171 netns "$a" mtu 9000 type veth peer name sdvb index 172 netns "$b" mtu 9000
ip -n "$a" address add 10.99.0.1/24 dev sdva
ip -n "$b" address add 10.99.0.2/24 dev sdvb
ip -n "$a" address add fd99::1/64 dev sdva nodad
ip -n "$b" address add fd99::2/64 dev sdvb nodad
ip -n "$a" link set sdva up
ip -n "$b" link set sdvb up
for net in 10.99.0. fd99::; do
    for kind in pump port; do
        for offload in "" off; do
            echo "== $kind, $net*, offloads ${offload:-on}"
            # The receiver starts its clock at the first packet and ends when none follow.
            ip netns exec "$b" "$bin" $kind-receive ${net}2 ${net}1 "$seconds" $offload &
            until ip netns exec "$b" ss -Hulnp sport = :4971 | grep -q .; do :; done
            ip netns exec "$a" "$bin" $kind-send ${net}1 ${net}2 "$seconds" $offload >/dev/null
            wait
        done
    done
done
