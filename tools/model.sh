#!/usr/bin/env bash
# Lets a model checker (loom) try every order in which lanes and the application can meet in the memory space:
# src/memory/model.rs. docs/testing.md tells more.
#
#   tools/model.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"

case "${1-}" in
    '') ;;
    -h | --help)
        echo 'usage: tools/model.sh'
        exit 0
        ;;
    *)
        printf "model: it takes no arguments, not '%s'\n" "$1" >&2
        exit 2
        ;;
esac

# With the checker's types in place, only its own tests can run.
export RUSTFLAGS="--cfg spindrift_loom ${RUSTFLAGS-}"
export CARGO_TARGET_DIR=$PWD/target/model CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false
# Compiled once and run once.
cargo test --locked --quiet --profile dev -p spindrift --lib -- memory::model
