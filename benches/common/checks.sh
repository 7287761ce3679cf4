# What the scripts here check before they run. Each sets `name`, its own, for the messages.

fail() {
    echo "$name: $2" >&2
    exit "$1"
}

# Reads the options of a script, up to the end or `--`, into variables of their names: $1 lists those with a value, $2 those
# without, which become `yes`; the others are the script's arguments. Sets `taken`, how many of them to shift away.
read_options() {
    valued=" $1 " flags=" $2 " taken=0
    shift 2
    while [ $# -gt 0 ]; do
        case $1 in
        --) taken=$((taken + 1)); return ;;
        -h | --help) usage; exit 0 ;;
        esac
        option=${1#--}
        # A name, so that `eval` sees nothing else.
        case $1 in
        --*[!a-z]* | [!-]* | -[!-]*) option= ;;
        esac
        case ${option:+$valued} in
        *" $option "*)
            [ $# -ge 2 ] || fail 2 "$1 needs a value"
            eval "$option=\$2"
            taken=$((taken + 2))
            shift 2
            continue
            ;;
        esac
        case ${option:+$flags} in
        *" $option "*)
            eval "$option=yes"
            taken=$((taken + 1))
            shift
            continue
            ;;
        esac
        echo "$name: unknown argument '$1'" >&2
        usage >&2
        exit 2
    done
}

# Every argument is a whole number from 1.
need_counts() {
    for number; do
        case $number in
        '' | *[!0-9]* | 0) fail 2 "'$number' is no count from 1" ;;
        esac
    done
}

# Every argument but the first is a program; the first says what installs it.
need_tools() {
    how=$1
    shift
    for tool; do
        command -v "$tool" >/dev/null || fail 1 "$tool is missing; $how"
    done
}

# After `need_spindrift`.
need_af_xdp() {
    ! "$spindrift" pump af_xdp --local 0.0.0.0 --size 0 2>&1 | grep -q 'no such ports' ||
        fail 1 "$spindrift has no AF_XDP ports; cargo build --profile dist -p spindrift-cli --features af_xdp builds it with them"
}

# After `need_spindrift`.
need_dpdk() {
    ! "$spindrift" pump dpdk --local net_null0 --device-address fd00::1 --size 0 2>&1 | grep -q 'no such ports' ||
        fail 1 "$spindrift has no DPDK ports; cargo build --profile dist -p spindrift-cli --features dpdk builds it with them"
}

# Goes to the top of the repository, and sets `spindrift`.
need_spindrift() {
    cd "$(dirname "$0")/.."
    spindrift=${SPINDRIFT:-target/dist/spindrift}
    [ -x "$spindrift" ] || fail 1 "$spindrift is missing; cargo build --profile dist -p spindrift-cli builds it"
}
