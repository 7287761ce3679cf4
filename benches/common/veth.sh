# Two network namespaces joined by a veth pair, with four addresses on each side, one for each plane. For scripts that have
# sourced checks.sh; whatever is made here goes when the script ends, and so do `server`, a process id, and `results`, a folder.

need_root() {
    [ "$(id -u)" = 0 ] || fail 1 "namespaces need root; run it with sudo"
}

finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    if [ -n "$lab" ]; then
        "$spindrift" lab down --name "$lab" >/dev/null || true
    else
        ip netns del "$a" 2>/dev/null || true
        ip netns del "$b" 2>/dev/null || true
        [ -z "$between" ] || ip netns del "$between" 2>/dev/null || true
    fi
    [ -n "$keep" ] || rm -rf "$results"
}

# Makes a folder for results, and sees to it that everything goes when the script ends.
prepare() {
    server= lab= between=
    results=$(mktemp -d)
    keep=${KEEP:-}
    [ -z "$keep" ] || results=$keep
    trap finish EXIT
    trap 'exit 130' INT TERM
}

# Two hosts of a lab, $3 and $4, in place of a veth pair: $1 is its topology file, $2 the kind of its switches.
join_lab() {
    prepare
    lab=bench$$
    a=sdlab-$lab-$3 b=sdlab-$lab-$4
    "$spindrift" lab up "$1" --name "$lab" --switch "$2" >/dev/null || fail 1 "the lab of $1 did not come up"
}

# Sets `a` and `b`, the namespaces, and `here` and `there`, their addresses.
join_namespaces() {
    a=spin-$$-a b=spin-$$-b
    prepare
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
}

# The same with a switch between them, in a namespace of its own, `between`. Its ports are port-a and port-b.
join_by_switch() {
    join_namespaces
    between=spin-$$-switch
    ip netns add "$between"
    ip -n "$a" link del veth-a
    ip -n "$between" link add br0 type bridge
    for side in a b; do
        if [ "$side" = a ]; then ns=$a index=771 last=1; else ns=$b index=772 last=2; fi
        ip link add "veth-$side" index "$index" netns "$ns" mtu 9000 type veth peer name "port-$side" index "${index}0" netns "$between" mtu 9000
        ip -n "$between" link set "port-$side" master br0 up
        for p in 0 1 2 3; do
            ip -n "$ns" addr add "10.77.$p.$last/24" dev "veth-$side"
        done
        ip -n "$ns" link set "veth-$side" up
    done
    ip -n "$between" link set br0 mtu 9000 up
}

# Runs a command of spindrift on both sides: on the server's with the words of $3 besides, on the client's with what follows.
# $1 is the file for the client's output, $2 the words for both.
both_sides() {
    out=$1 shared=$2 serving=$3
    shift 3
    ip netns exec "$b" taskset -c 1 "$spindrift" $shared $serving >"$results/server" 2>&1 &
    server=$!
    sleep 0.5
    ip netns exec "$a" taskset -c 0 "$spindrift" $shared "$@" >"$out" || {
        echo "$name: $shared failed; the server said:" >&2
        cat "$results/server" >&2
        exit 1
    }
    wait "$server" || { echo "$name: the server of $shared failed:" >&2; cat "$results/server" >&2; server=; exit 1; }
    server=
}
