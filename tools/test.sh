#!/usr/bin/env bash
# Sets a machine up and runs every check of Spindrift. Needs no terminal and no standard input; exits with
# a failure when any check fails.
#
# Settings, all optional:
#   SPINDRIFT_SEEDS=N       how many fixed seeds each property run tries
#   SPINDRIFT_FRESH=SEED    where the fresh seeds start; drawn at random and printed when not given
#   SPINDRIFT_SEED=SEED     replay: property runs try this one seed only
set -euo pipefail
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
export PATH

export CARGO_INCREMENTAL=0
export RUST_BACKTRACE=1
# setup installs tshark: the tests that need it must not pass without.
export SPINDRIFT_REQUIRE_TSHARK=1
fresh=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
export SPINDRIFT_FRESH="${SPINDRIFT_FRESH:-$fresh}"

# The title tells the seconds since the start; the tests come last, so that their summary is the end of
# the output.
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

step 'setup' ./tools/setup.sh --tests
step 'format' cargo fmt --all --check
step 'lints' cargo clippy --locked --workspace --all-targets --features spindrift-cli/af_xdp -- -D warnings
step 'lints of the default build' cargo clippy --locked -p spindrift-cli --all-targets -- -D warnings
step 'documentation' env RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps
printf '\nFresh seeds start at SPINDRIFT_FRESH=%s; a failing seed replays with SPINDRIFT_SEED=<seed> %s\n' \
    "$SPINDRIFT_FRESH" 'cargo test --workspace'
# A sample of small bugs planted in the core, to see that the tests notice.
if cargo mutants --version >/dev/null 2>&1; then
    step 'mutants' ./tools/mutants.sh sample
else
    printf '\n==> [%4ds] SKIPPED: mutants (cargo-mutants is missing, see the setup above)\n' "$SECONDS" >&2
fi
step 'sanitizers' ./tools/sanitize.sh
step 'model of the memory space' ./tools/model.sh
step 'the default build, without C' cargo test --locked -p spindrift-cli --test af_xdp
step 'tests, fuzz replay and doc tests' cargo test --locked --workspace --features spindrift-cli/af_xdp --no-fail-fast
