# Read by tools/test.sh and tools/check-all.sh: their surroundings, `step`, and `beside`. Standard input is closed, so nothing can ask.
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
export PATH

export CARGO_INCREMENTAL=0
export RUST_BACKTRACE=1
# setup installs what these name: the tests that need it must not pass without.
export SPINDRIFT_REQUIRE_TSHARK=1 SPINDRIFT_REQUIRE_PERFTEST=1 SPINDRIFT_REQUIRE_VERBS_H=1 SPINDRIFT_REQUIRE_UCX=1 SPINDRIFT_REQUIRE_CHROMIUM=1

# step TITLE COMMAND..: runs it. The title has the seconds since the start. A failure ends the script.
step() {
    local title=$1
    shift
    printf '\n==> [%4ds] %s: %s\n' "$SECONDS" "$title" "$*"
    local began=$SECONDS status=0
    "$@" || status=$?
    if [ "$status" -ne 0 ]; then
        printf '==> [%4ds] FAILED: %s (exit status %d, after %d s)\n' \
            "$SECONDS" "$title" "$status" "$((SECONDS - began))" >&2
        exit "$status"
    fi
}

# beside TITLE COMMAND..: starts it beside the steps that follow. `joined` waits for it and prints what it wrote; a failure ends the script.
# A script that ends before waits too, so that nothing is left behind.
beside_title= beside_pid= beside_log=
beside() {
    beside_title=$1
    shift
    beside_log=$(mktemp)
    printf '\n==> [%4ds] beside what follows: %s: %s\n' "$SECONDS" "$beside_title" "$*"
    "$@" >"$beside_log" 2>&1 &
    beside_pid=$!
    trap 'joined || true' EXIT
}

joined() {
    [ -n "$beside_pid" ] || return 0
    local status=0
    wait "$beside_pid" || status=$?
    trap - EXIT
    beside_pid=
    printf '\n==> [%4ds] %s, in the meantime:\n' "$SECONDS" "$beside_title"
    cat "$beside_log"
    rm -f "$beside_log"
    if [ "$status" -ne 0 ]; then
        printf '==> [%4ds] FAILED: %s (exit status %d)\n' "$SECONDS" "$beside_title" "$status" >&2
        exit "$status"
    fi
}
