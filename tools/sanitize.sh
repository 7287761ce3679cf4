#!/usr/bin/env bash
# Runs the tests of shared memory and of the rings under AddressSanitizer and ThreadSanitizer, and those of the C interface under the
# former. Needs a nightly toolchain with their runtimes; says so and ends well where there is none. docs/testing.md tells more.
#
#   tools/sanitize.sh [address|thread]..      default: both
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"

sanitizers=("$@")
[ $# -gt 0 ] || sanitizers=(address thread)
for sanitizer in "${sanitizers[@]}"; do
    case "$sanitizer" in
        address | thread) ;;
        -h | --help)
            echo 'usage: tools/sanitize.sh [address|thread]..'
            exit 0
            ;;
        *)
            printf "sanitize: there is no sanitizer '%s' here; choose from: address thread\n" "$sanitizer" >&2
            exit 2
            ;;
    esac
done

host=$(rustc -vV | sed -n 's/^host: //p')
libraries=$(rustc +nightly --print target-libdir 2>/dev/null) || libraries=
for sanitizer in "${sanitizers[@]}"; do
    name=asan
    [ "$sanitizer" = address ] || name=tsan
    if [ -z "$libraries" ] || ! ls "$libraries"/librustc-nightly_rt."$name".* >/dev/null 2>&1; then
        echo "sanitize: skipped $sanitizer: no nightly toolchain with its runtime for $host"
        continue
    fi
    # Copies in assembly are invisible to sanitizers, hence the cfg. The standard library is not instrumented.
    export RUSTFLAGS="--cfg spindrift_instrumented -Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer"
    # Suppressions name functions that are inlined: only debug information tells of them.
    export CARGO_TARGET_DIR=$PWD/target/sanitize CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_DEBUG=line-tables-only
    export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp ${TSAN_OPTIONS:-}"
    echo "sanitize: $sanitizer"
    cargo +nightly test --locked --quiet --target "$host" -p spindrift-memory --lib
    cargo +nightly test --locked --quiet --target "$host" -p spindrift-pmd --lib -- loopback
    # Locks of the standard library, which is not instrumented, look like races.
    if [ "$sanitizer" = address ]; then
        cargo +nightly test --locked --quiet --target "$host" -p spindrift-capi --lib
    fi
done
