# What the scripts here check before they run. Each sets `name`, its own, for the messages.

fail() {
    echo "$name: $2" >&2
    exit "$1"
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

# Goes to the top of the repository, and sets `spindrift`.
need_spindrift() {
    cd "$(dirname "$0")/.."
    spindrift=${SPINDRIFT:-target/release/spindrift}
    [ -x "$spindrift" ] || fail 1 "$spindrift is missing; cargo build --release -p spindrift-cli builds it"
}
