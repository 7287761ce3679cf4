#!/usr/bin/env bash
# Plants small bugs in the transport core, one at a time, and reports those that no test notices. Needs
# cargo-mutants. Works on a copy of the sources; docs/testing.md tells what was found.
#
#   tools/mutants.sh all [MODULE..]     every mutant of these modules (default: all of the core)
#   tools/mutants.sh sample [SEED]      2 mutants of all of them, chosen by SEED (default 1)
#
# The report is in target/mutants.out: missed.txt, caught.txt, timeout.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"

core=(congestion endpoint path peer qp requester responder wire)
sample_size=2
packages=(--package spindrift --package spindrift-wire)

# folder MODULE: where its files are.
folder() {
    case "$1" in
        wire) echo pmd/wire/src ;;
        *) echo "src/$1" ;;
    esac
}

usage='usage: tools/mutants.sh all [MODULE..] | sample [SEED]'
die() {
    printf 'mutants: %s\n' "$@" >&2
    exit 2
}

cargo mutants --version >/dev/null 2>&1 ||
    die 'cargo-mutants is missing. Install it with:  cargo install --locked cargo-mutants'

selection=()
mode=${1-}
[ $# -eq 0 ] || shift
case "$mode" in
    all)
        modules=("$@")
        [ $# -gt 0 ] || modules=("${core[@]}")
        for module in "${modules[@]}"; do
            [ -d "$(folder "$module")" ] || die "there is no module $module; choose from: ${core[*]}"
            selection+=(--file "$(folder "$module")/**")
        done
        ;;
    sample)
        [ $# -le 1 ] || die "$usage"
        seed=${1:-1}
        [[ $seed =~ ^[0-9]{1,18}$ ]] || die "the seed must be a decimal number, not '$seed'"
        for module in "${core[@]}"; do
            selection+=(--file "$(folder "$module")/**")
        done
        total=$(cargo mutants --config tests/mutants.toml --list "${packages[@]}" "${selection[@]}" | wc -l)
        shards=$((total / sample_size))
        [ "$shards" -gt 0 ] || die 'cargo-mutants found no mutants'
        # Every shard has mutants of all files. 10# keeps a leading zero from meaning octal.
        selection+=(--sharding round-robin --shard "$((10#$seed % shards))/$shards")
        ;;
    -h | --help)
        echo "$usage"
        exit 0
        ;;
    *) die "$usage" ;;
esac

# Incremental compilation makes a mutant cost 15 seconds and not 100; the property run is cut short, since the
# mutants that it alone finds are found by its first seeds.
export CARGO_INCREMENTAL=1
export CARGO_TARGET_DIR=$PWD/target/mutants
export SPINDRIFT_SEEDS=${SPINDRIFT_SEEDS:-100}
unset SPINDRIFT_FRESH SPINDRIFT_SEED SPINDRIFT_JUDGE
targets=(--lib)
for test in adversary every_verb feedback property recovery reports routes smoke; do
    targets+=("--test=$test")
done
# Before any mutant, cargo-mutants runs the tests of those packages alone that have mutants. A test that is named and is in
# none of them is an error.
tested=spindrift
chosen=$(cargo mutants --config tests/mutants.toml --list "${packages[@]}" "${selection[@]}")
if grep -q '^pmd/wire/' <<<"$chosen"; then
    tested+=,spindrift-wire
    for test in layout outer properties stack vectors; do
        targets+=("--test=$test")
    done
fi
# Long, and what they test is tested by shorter ones too.
skipped=(forged_updates_hardly_slow one_forged_update_without ten_thousand_queue_pairs)

# What counts as a hang goes by how long the tests take on this machine without a mutant: a minute on a slow one. A sample does
# without that run: the tests have passed before, and one hang costs less.
patience=(--timeout-multiplier 2 --minimum-test-timeout 60)
if [ "$mode" = sample ] || ! grep -qv '^pmd/wire/' <<<"$chosen"; then
    patience=(--baseline skip --timeout 120)
fi

status=0
cargo mutants --config tests/mutants.toml --output target "${packages[@]}" --test-package "$tested" "${patience[@]}" --no-times \
    "${selection[@]}" "${targets[@]/#/--cargo-arg=}" -- --locked -- "${skipped[@]/#/--skip=}" || status=$?
case $status in
    # 3: a mutant hung, which the tests notice too.
    0 | 3) ;;
    2) printf 'mutants: no test noticed those in target/mutants.out/missed.txt. Add a test, simplify the code, or\n' >&2
       printf '         list it in tests/mutants.toml with the reason why it changes nothing\n' >&2
       exit 1 ;;
    *) exit "$status" ;;
esac
