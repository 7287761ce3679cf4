#!/usr/bin/env bash
# Sets a machine up and tests Spindrift: format, lints, documentation, tests. Takes 8 to 14 minutes on two cores. Non-interactive;
# exits with a failure when any step fails. tools/check-all.sh runs what takes longer.
#
# Settings, all optional:
#   SPINDRIFT_SEEDS=N       how many fixed seeds each property run tries
#   SPINDRIFT_FRESH=SEED    also try a quarter as many seeds from this one on
#   SPINDRIFT_SEED=SEED     replay: property runs try this one seed only
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# Lints and documentation have the profile of the tests, so that build scripts and macros are compiled once.
everything=(--locked --workspace --features spindrift-cli/af_xdp,spindrift-cli/dpdk,spindrift-cli/top)
step 'setup' ./tools/setup.sh --tests
step 'format' cargo fmt --all --check
step 'lints' cargo clippy "${everything[@]}" --profile test --all-targets -- -D warnings
step 'build of the tests' cargo test "${everything[@]}" --no-run
# The tests wait for links and timers at times.
beside 'documentation' env RUSTDOCFLAGS=-Dwarnings cargo doc --locked --profile test --workspace --no-deps
step 'tests, fuzz replay and doc tests' cargo test "${everything[@]}" --no-fail-fast
joined
printf '\n==> [%4ds] all steps passed\n' "$SECONDS"
