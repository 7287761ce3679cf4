#!/usr/bin/env bash
# Prepares a machine for Spindrift: checks the Rust toolchain and installs the system packages that are
# missing. Asks nothing. Does nothing on a machine that has everything.
#
#   tools/setup.sh           what building and running needs: a Rust toolchain and a C linker
#   tools/setup.sh --af-xdp  also what compiles the AF_XDP port, which links a C library
#   tools/setup.sh --dpdk    also what compiles the DPDK port, and DPDK's drivers
#   tools/setup.sh --tests   also what the tests use, which is all of that and more
#   tools/setup.sh --checks  also what tools/check-all.sh uses; with SPINDRIFT_MUTANTS also cargo-mutants, compiled from source
#   tools/setup.sh --vm      what --af-xdp and --dpdk install, and what tools/vm.sh uses: QEMU, and what makes the machine's disk
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage='usage: tools/setup.sh [--af-xdp|--dpdk|--tests|--checks|--vm]'
for_tests=false
for_af_xdp=false
for_dpdk=false
for_vm=false
for_checks=false
case "${1-}" in
    '') ;;
    --af-xdp) for_af_xdp=true ;;
    --dpdk) for_dpdk=true ;;
    --tests) for_tests=true for_af_xdp=true for_dpdk=true ;;
    --checks) for_checks=true for_tests=true for_af_xdp=true for_dpdk=true ;;
    --vm) for_vm=true for_af_xdp=true for_dpdk=true ;;
    -h | --help) echo "$usage"; exit 0 ;;
    *) echo "$usage" >&2; exit 2 ;;
esac

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# Tools of the administrator are not on every user's PATH; rustup installs below the home directory.
path_of_user=$PATH
PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
rust_needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root, without ever asking for a password.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n -- "$@"
    fi
}

can_be_root() { [ "$(id -u)" -eq 0 ] || { have sudo && sudo -n true 2>/dev/null; }; }

# install_packages PURPOSE PACKAGE..
install_packages() {
    local purpose=$1
    shift
    have apt-get || die "$purpose: this is not a Debian-like machine (no apt-get)." \
        "Install what Debian calls: $*" "and run this again."
    can_be_root || die "$purpose: packages are missing, and this user can become root neither directly nor by sudo without a password." \
        "Run as root:  apt-get update && apt-get install -y --no-install-recommends $*" "and then this again."
    say "$purpose: installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null ||
        die "apt-get update failed (see above): is the network reachable?"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" </dev/null ||
        die "apt-get could not install: $*"
}

# version_at_least HAVE WANTED
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

rust_found() { cargo --version 2>/dev/null | awk 'NR == 1 { print $2 }' || true; }

rust_is_new_enough() {
    local found
    found=$(rust_found)
    [ -n "$found" ] && version_at_least "${found%%-*}" "$rust_needed"
}

no_rust() {
    local found
    found=$(rust_found)
    die "Rust $rust_needed or newer is needed; found: ${found:-no cargo on PATH}." \
        "Install it with rustup, as the README tells under \"The Rust toolchain\"; then open a new shell" \
        "(or run:  . \"\$HOME/.cargo/env\") and run this again."
}

# A distribution's rustc may be older than what is needed, its rustup never is. The toolchain is chosen
# for this folder only, so nobody's default changes.
setup_rust() {
    if ! rust_is_new_enough && ! have rustup && have apt-cache && can_be_root; then
        if [ -z "$(apt-cache search --names-only '^rustup$' 2>/dev/null)" ]; then
            as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null || true
        fi
        if [ -n "$(apt-cache search --names-only '^rustup$' 2>/dev/null)" ]; then
            install_packages 'Rust toolchain' rustup
        fi
    fi
    if ! rust_is_new_enough; then
        have rustup || no_rust
        say "Rust $rust_needed or newer is needed, found ${1:-none}: installing rustup's stable toolchain for this folder"
        rustup toolchain install stable --profile minimal --component clippy,rustfmt </dev/null || no_rust
        rustup override set stable || no_rust
        rust_is_new_enough || no_rust
    fi
}

setup_rust_for_tests() {
    local missing=()
    cargo clippy --version >/dev/null 2>&1 || missing+=(clippy)
    cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt)
    [ ${#missing[@]} -eq 0 ] && return
    have rustup || die "this Rust toolchain lacks: ${missing[*]}. Install them from where cargo came from."
    rustup component add "${missing[@]}" </dev/null || die "rustup could not add: ${missing[*]}"
}

# Only what is missing is installed, so that an equipped machine needs no network and no root.
missing_packages() {
    local pair
    for pair in "$@"; do
        have "${pair%%=*}" || printf '%s\n' "${pair#*=}"
    done | sort -u
}

# The same for what is no command: PATTERN=PACKAGE, where the pattern is that of a file.
missing_files() {
    local pair
    for pair in "$@"; do
        compgen -G "${pair%%=*}" >/dev/null || printf '%s\n' "${pair#*=}"
    done | sort -u
}

build_tools=(cc=gcc cc=libc6-dev)
c_tools=(make=make pkg-config=pkg-config clang=clang m4=m4)
c_files=('/usr/include/libelf.h=libelf-dev' '/usr/include/zlib.h=zlib1g-dev' '/usr/lib/llvm-*/lib/libclang.so=libclang-dev')
dpdk_oldest=22.11
dpdk_tools=(pkg-config=pkg-config dpdk-devbind.py=dpdk)
dpdk_files=('/usr/lib/*/pkgconfig/libdpdk.pc=libdpdk-dev' '/usr/lib/*/dpdk/pmds-*/librte_net_memif.so=librte-meta-allpmds' '/usr/lib/llvm-*/lib/libclang.so=libclang-dev')
vm_tools=(qemu-system-x86_64=qemu-system-x86 debootstrap=debootstrap mke2fs=e2fsprogs cpio=cpio xz=xz-utils zstd=zstd)
test_tools=(ip=iproute2 sysctl=procps tshark=tshark valgrind=valgrind iperf3=iperf3 nft=nftables ethtool=ethtool ping=iputils-ping dpdk-testpmd=dpdk-dev redis-check-rdb=redis-tools ibv_devinfo=ibverbs-utils ib_write_bw=perftest rping=rdmacm-utils fi_pingpong=libfabric-bin ucx_perftest=ucx-utils mpirun=openmpi-bin mpicc=libopenmpi-dev chromium=chromium)
test_files=('/usr/include/infiniband/verbs.h=libibverbs-dev' '/usr/include/rdma/rdma_cma.h=librdmacm-dev')

setup_rust "$(rust_found)"
mapfile -t packages < <(missing_packages "${build_tools[@]}")
if [ ${#packages[@]} -gt 0 ]; then
    install_packages 'C linker' "${packages[@]}" ca-certificates
fi

if $for_af_xdp; then
    mapfile -t packages < <(missing_packages "${c_tools[@]}"; missing_files "${c_files[@]}")
    if [ ${#packages[@]} -gt 0 ]; then
        install_packages 'AF_XDP' "${packages[@]}"
    fi
fi

# A DPDK that pkg-config finds will do, wherever it comes from; its inline functions need no clang, but bindgen needs libclang.
if $for_dpdk; then
    have_dpdk() { have pkg-config && pkg-config --atleast-version="$dpdk_oldest" libdpdk; }
    if have_dpdk; then
        mapfile -t packages < <(missing_files "${dpdk_files[2]}")
    else
        mapfile -t packages < <(missing_packages "${dpdk_tools[@]}"; missing_files "${dpdk_files[@]}")
    fi
    if [ ${#packages[@]} -gt 0 ]; then
        install_packages 'DPDK' "${packages[@]}"
    fi
    have_dpdk || die "DPDK $dpdk_oldest or newer is needed; found: $(pkg-config --modversion libdpdk 2>/dev/null || echo none)." \
        "Install a newer one, and set PKG_CONFIG_PATH to the folder of its libdpdk.pc."
fi

if $for_vm; then
    mapfile -t packages < <(missing_packages "${vm_tools[@]}")
    if [ ${#packages[@]} -gt 0 ]; then
        install_packages 'virtual machine' "${packages[@]}"
    fi
fi

if $for_tests; then
    setup_rust_for_tests
    mapfile -t packages < <(missing_packages "${test_tools[@]}"; missing_files "${test_files[@]}")
    if [ ${#packages[@]} -gt 0 ]; then
        install_packages 'tests' "${packages[@]}"
    fi
fi

if $for_checks && [ -n "${SPINDRIFT_MUTANTS-}" ]; then
    # Compiled from source, as distributions do not have it.
    if ! cargo mutants --version >/dev/null 2>&1; then
        say "checks: installing cargo-mutants (takes a few minutes)"
        cargo install --quiet --locked --version '^27.1' cargo-mutants </dev/null ||
            die "checks: cargo-mutants could not be installed (see above)"
    fi
fi
if ! PATH=$path_of_user command -v cargo >/dev/null 2>&1 && ! $for_tests; then
    die "cargo is installed ($(command -v cargo)) but not on PATH. Run:  . \"\$HOME/.cargo/env\"" "and then this again."
fi
say "ready: $(rustc --version)"
