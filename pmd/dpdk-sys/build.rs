//! Finds DPDK, compiles the functions in front of it, and makes their declarations.

use std::env;
use std::path::PathBuf;
use std::process::exit;

/// Libraries of DPDK that are linked. Its drivers are loaded when the EAL starts: one that is linked as well would be there twice.
/// The log has a library of its own from DPDK 23.11 on.
const LIBRARIES: [&str; 9] = [
    "rte_eal",
    "rte_ethdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_kvargs",
    "rte_net",
    "rte_telemetry",
    "rte_log",
];
/// Oldest version of DPDK.
const OLDEST: &str = "22.11";

/// Ends the build with a message.
fn fail(message: &str) -> ! {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    exit(1)
}

fn main() {
    for file in ["src/shim.h", "src/shim.c", "build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    let dpdk = pkg_config::Config::new().atleast_version(OLDEST).cargo_metadata(false).probe("libdpdk");
    let dpdk = dpdk.unwrap_or_else(|error| {
        fail(&format!(
            "DPDK {OLDEST} or newer was not found by pkg-config.\n\
             Run `tools/setup.sh --dpdk`, which installs it (Debian: libdpdk-dev, dpdk, pkg-config, libclang-dev).\n\
             pkg-config says: {}",
            error.to_string().split('\n').map(str::trim).collect::<Vec<_>>().join(" ")
        ))
    });
    // The instructions that DPDK's inline functions are written for, and its settings, which each of its headers expects.
    let flags = ["-include", "rte_config.h"];
    let machine =
        env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64").then_some("-march=corei7");
    let mut shim = cc::Build::new();
    shim.file("src/shim.c").includes(&dpdk.include_paths).std("gnu11");
    for flag in flags.into_iter().chain(machine) {
        shim.flag(flag);
    }
    // DPDK's own headers warn.
    shim.warnings(false).define("ALLOW_EXPERIMENTAL_API", None);
    if let Err(error) = shim.try_compile("spindrift_dpdk_shim") {
        fail(&format!(
            "src/shim.c does not compile; `tools/setup.sh --dpdk` installs what it needs.\n{error}"
        ));
    }
    for path in &dpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES.into_iter().filter(|library| dpdk.libs.iter().any(|known| known == library)) {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    let bindings = bindgen::Builder::default()
        .header("src/shim.h")
        .allowlist_function("(rte|spindrift)_.*")
        .allowlist_type("spindrift_.*")
        .allowlist_var("SPINDRIFT_.*")
        .opaque_type("rte_.*")
        .opaque_type("_IO_FILE")
        .use_core()
        .layout_tests(false)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .generate()
        .unwrap_or_else(|error| {
            fail(&format!(
                "bindgen cannot read src/shim.h; `tools/setup.sh --dpdk` installs libclang.\n{error}"
            ))
        });
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("bindings.rs");
    if let Err(error) = bindings.write_to_file(&out) {
        fail(&format!("cannot write {}: {error}", out.display()));
    }
}
