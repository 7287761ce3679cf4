//! The versions of the symbols, which the linker takes from a file, and the private symbols, of which there are some hundred in each of
//! several versions.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// The versions of the public functions, each with the one before it.
const PUBLIC: [&str; 12] =
    ["1.0", "1.1", "1.5", "1.6", "1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "1.14"];

/// The same of the functions of `librdmacm.so.1`.
const CONNECTIONS: [&str; 6] = ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5"];

/// Those of the private functions, which libraries of NIC vendors link: of rdma-core 28 (2020) and later.
const PRIVATE: [&str; 7] = ["25", "33", "34", "57", "59", "64", "65"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/private_names.txt");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let map = out.join("ibverbs.map");
    let mut nodes = String::new();
    for (name, versions) in [("IBVERBS", &PUBLIC[..]), ("RDMACM", &CONNECTIONS)] {
        let mut before = String::new();
        for version in versions {
            writeln!(nodes, "{name}_{version} {{ }}{before};")?;
            before = format!(" {name}_{version}");
        }
    }
    for version in PRIVATE {
        writeln!(nodes, "IBVERBS_PRIVATE_{version} {{ }};")?;
    }
    fs::write(&map, nodes)?;
    // The nodes are empty: `.symver` puts the symbols into them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    // Programs link the functions of MRC's interface without a version. A file cannot mix such functions with versions.
    let plain = out.join("mrc.map");
    fs::write(&plain, "{ global: mrc_*; };\n")?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", plain.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Its threads run on when a program unloads it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    fs::write(out.join("private.rs"), private_symbols()?)?;
    Ok(())
}

/// One function under many names and versions, and a number that is 0.
fn private_symbols() -> Result<String, Box<dyn std::error::Error>> {
    let names = fs::read_to_string("src/private_names.txt")?;
    let mut asm = String::new();
    for version in PRIVATE {
        let driver = format!("verbs_register_driver_{version}");
        let refused = names.lines().map(|name| (name, "refuse"));
        for (name, function) in refused.chain([(&*driver, "nothing"), ("ibv_query_gid_type", "gid_type")]) {
            let own = format!("spindrift.private{version}.{name}");
            writeln!(asm, "    \".text\", \".globl {own}\", \".type {own}, %function\", \"{own}:\",")?;
            writeln!(asm, "    jump!({function}), \".symver {own}, {name}@IBVERBS_PRIVATE_{version}\",")?;
        }
        let (name, own) = ("verbs_allow_disassociate_destroy", format!("spindrift.private{version}.flag"));
        writeln!(asm, "    \".bss\", \".globl {own}\", \".type {own}, %object\", \".size {own}, 1\",")?;
        writeln!(
            asm,
            "    \"{own}: .zero 1\", \".symver {own}, {name}@IBVERBS_PRIVATE_{version}\", \".text\","
        )?;
    }
    let functions = "refuse = sym crate::device::not_supported, nothing = sym crate::device::nothing, \
                     gid_type = sym crate::context::ibv_query_gid_type";
    Ok(format!("core::arch::global_asm!(\n{asm}    {functions},\n);\n"))
}
