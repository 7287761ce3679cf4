# Read by tools/test.sh and tools/check-all.sh: their surroundings, and `step`. Standard input is closed, so nothing can ask.
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
export PATH

export CARGO_INCREMENTAL=0
export RUST_BACKTRACE=1
# setup installs tshark: the tests that need it must not pass without.
export SPINDRIFT_REQUIRE_TSHARK=1

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
