#!/usr/bin/env bash
# Every check that takes longer than those of tools/test.sh, which runs first: slow tests, many seeds, the default build, sanitizers, a
# model checker. Takes 17 to 28 minutes on two cores, tools/test.sh included. Non-interactive.
#
# Settings, all optional:
#   SPINDRIFT_SEEDS=N       how many fixed seeds each property run tries
#   SPINDRIFT_FRESH=SEED    where the fresh seeds start; drawn at random and printed when not given
#   SPINDRIFT_MUTANTS=SEED  also a sample of small bugs planted in the core, to see that the tests notice: 7 minutes more
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

fresh=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
fresh=${SPINDRIFT_FRESH:-$fresh}

# As tools/test.sh has built them.
everything=(--locked --workspace --features spindrift-cli/af_xdp,spindrift-cli/dpdk,spindrift-cli/top)
step 'setup' ./tools/setup.sh --checks
printf '\nFresh seeds start at SPINDRIFT_FRESH=%s; a failing seed replays with SPINDRIFT_SEED=<seed> cargo test --workspace\n' "$fresh"
step 'many seeds: two endpoints' env SPINDRIFT_FRESH="$fresh" SPINDRIFT_SEEDS="${SPINDRIFT_SEEDS:-3000}" \
    cargo test "${everything[@]}" --test property
step 'many seeds: fallback' env SPINDRIFT_FRESH="$fresh" cargo test "${everything[@]}" --test shift -- seeds_hold
step 'many seeds: fabrics' env SPINDRIFT_FRESH="$fresh" SPINDRIFT_SEEDS="${SPINDRIFT_SEEDS:-3000}" \
    cargo test "${everything[@]}" --test swarm -- seeds_hold
step 'lints of the default build' cargo clippy --locked --profile test -p spindrift-cli --all-targets -- -D warnings
# They wait for links, faults and timers most of the time.
beside 'slow tests' cargo test "${everything[@]}" --no-fail-fast -- --ignored --skip the_page_of_experiments_is_true
step 'sanitizers' ./tools/sanitize.sh
step 'model of the memory space' ./tools/model.sh
# The release build, which simulates ten times as fast. Its largest crates are compiled on one core each.
step 'the page of experiments' cargo test --locked --release -p spindrift-cli --test sim -- --ignored
step 'the default build, without features' cargo test --locked --release -p spindrift-cli --test af_xdp --test dpdk --test top
joined
if [ -n "${SPINDRIFT_MUTANTS-}" ]; then
    step 'mutants' ./tools/mutants.sh sample "$SPINDRIFT_MUTANTS"
fi
printf '\n==> [%4ds] all checks passed\n' "$SECONDS"
