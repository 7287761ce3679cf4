//! Programs of MRC's own interface, as they are: those of OCP's Multipath Reliable Connection, and NCCL's plugin for MRC.
//!
//! Their sources are not part of this repository. `SPINDRIFT_MRC_SOURCES` names a checkout of the first, `SPINDRIFT_MRC_PLUGIN` one of
//! the second (`microsoft/mrc-nccl-plugin`). Without them the tests are skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::program::{PATIENCE, end, free_port, run_of};
use support::{Running, end_of, stderr, stdout, temp};

/// NICs of one plane and of four.
const PLANES: [&str; 2] = ["127.0.0.1", "127.0.1.1,127.0.1.2,127.0.1.3,127.0.1.4"];

/// The folder that a variable names.
fn sources(variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    if named.is_none() {
        eprintln!("SKIPPED: {variable} names no checkout");
    }
    named
}

/// A folder for what a test builds, with the library under the name that programs of MRC link.
fn folder(name: &str) -> (PathBuf, PathBuf) {
    let folder = temp(name);
    fs::create_dir_all(&folder).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_spindrift")).with_file_name("libspindrift_ibverbs.so");
    let library = folder.join("libnv_mrc.so");
    let _ = fs::remove_file(&library);
    std::os::unix::fs::symlink(built, &library).unwrap();
    (folder, library)
}

fn compile(arguments: &[&dyn AsRef<OsStr>]) {
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-std=gnu11"]).args(arguments.iter().map(AsRef::as_ref));
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{compiler:?}: {}", stderr(&output));
}

/// The benchmark of OCP's examples: a server, and a client that writes to it. The server compares every byte.
#[test]
fn the_benchmark_of_ocps_examples() {
    let Some(sources) = sources("SPINDRIFT_MRC_SOURCES") else { return };
    let (folder, library) = folder("mrc-example");
    let example = folder.join("mrc_example");
    let from = sources.join("examples/benchmark");
    let include = format!("-I{}", sources.display());
    let files = [from.join("mrc_example.c"), from.join("utils.c")];
    compile(&[&"-o", &example, &include, &files[0], &files[1], &library, &"-libverbs", &"-lm"]);
    let losses =
        PLANES.into_iter().flat_map(|planes| [[planes, "--fault", "loss=0"], [planes, "--fault", "loss=1%"]]);
    // And as it would run with a NIC as its peer: each side knows of the other what this program tells it.
    let peers = ["--static-peers", "127.5.1.1,127.5.1.2;127.5.2.1,127.5.2.2"];
    let foreign = ["127.5.1.1,127.5.1.2", "127.5.2.1,127.5.2.2"].map(|planes| [planes, peers[0], peers[1]]);
    for [here, there] in losses.map(|options| [options; 2]).chain([foreign]) {
        let port = free_port();
        let [here, there] = [here, there].map(|options| [&["--planes"][..], &options[..]].concat());
        let arguments: [&dyn AsRef<OsStr>; 9] =
            [&example, &"-d", &"spindrift0", &"-p", &port, &"-n", &"70", &"-s", &"1048576"];
        let server = Running::start(&mut run_of(&here, &arguments));
        let mut tries = 0;
        let client = loop {
            let mut with_host = arguments.to_vec();
            with_host.push(&"127.0.0.1");
            let client = end(&mut run_of(&there, &with_host));
            tries += 1;
            // It tries once: the server has to listen.
            if client.status.success() || tries == 200 {
                break client;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(client.status.success(), "{there:?}: {}", stderr(&client));
        let rows = stdout(&client).lines().filter(|line| line.starts_with(' ')).count();
        assert_eq!(rows, 1 + 21, "sizes from 1 to 2^20: {}", stdout(&client));
        let server = end_of(server, PATIENCE, "the server");
        let said = stdout(&server) + &stderr(&server);
        assert!(server.status.success() && said.contains("completed successfully"), "{said}");
        assert!(!said.contains("ERROR"), "it found other bytes: {said}");
        assert!(stderr(&server).contains("queue pairs 1 connected, 0 failed"), "{said}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Those programs of OCP's that call no function of the interface, or few.
#[test]
fn the_other_programs_of_ocp() {
    let Some(sources) = sources("SPINDRIFT_MRC_SOURCES") else { return };
    let (folder, library) = folder("mrc-others");
    let include = format!("-I{}", sources.display());
    let test = folder.join("mrc_test");
    compile(&[&"-o", &test, &include, &sources.join("test/mrc_test.c"), &library, &"-libverbs"]);
    let ended =
        end(&mut run_of(&["--planes", PLANES[0]], &[test.as_os_str(), "-d".as_ref(), "spindrift0".as_ref()]));
    assert!(ended.status.success() && stdout(&ended).contains("Hello MRC!"), "{}", stderr(&ended));
    let expansion = folder.join("ev_expansion");
    compile(&[&"-o", &expansion, &include, &sources.join("examples/ev_expansion/ev_expansion.c")]);
    assert!(end(&mut run_of(&["--planes", PLANES[0]], &[&expansion])).status.success());
    fs::remove_dir_all(folder).unwrap();
}

/// NCCL's plugin between two processes with host memory, by the calls that NCCL makes. NCCL itself needs a GPU.
#[test]
fn the_plugin_of_nccl() {
    let Some(sources) = sources("SPINDRIFT_MRC_SOURCES") else { return };
    let Some(plugin) = self::sources("SPINDRIFT_MRC_PLUGIN") else { return };
    let (folder, library) = folder("mrc-plugin");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/nccl");
    let includes =
        [plugin.join("include"), own.clone(), sources].map(|folder| format!("-I{}", folder.display()));
    let (built, driver) = (folder.join("libnccl-net-mrc.so"), folder.join("net"));
    let files = ["net_mrc_plugin", "p2p_plugin", "param", "utils", "socket", "ibvwrap"]
        .map(|name| plugin.join(format!("src/{name}.c")));
    let mut arguments: Vec<&dyn AsRef<OsStr>> = vec![
        &"-shared",
        &"-fPIC",
        // DOCA's header calls the struct otherwise, and the header of Debian 12 lacks a flag.
        &"-Dmrc_attr=mrc_device_attr",
        &"-DMLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT=1",
        &"-o",
        &built,
    ];
    arguments.extend(includes.iter().map(|include| include as &dyn AsRef<OsStr>));
    arguments.extend(files.iter().map(|file| file as &dyn AsRef<OsStr>));
    arguments.extend([&library as &dyn AsRef<OsStr>, &"-libverbs", &"-lmlx5"]);
    compile(&arguments);
    compile(&[&"-o", &driver, &includes[0], &includes[1], &own.join("net.c"), &"-ldl"]);
    for (planes, fault, variables) in [
        (PLANES[0], "loss=0.1%", &[] as &[(&str, &str)]),
        (PLANES[1], "loss=1%,reorder=2%:50us", &[]),
        (
            PLANES[1],
            "blackhole,port=2",
            &[("NCCL_IB_QPS_PER_CONNECTION", "4"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")],
        ),
    ] {
        let mut command = run_of(&["--planes", planes, "--fault", fault], &[&driver, &built]);
        let ended = end(command.envs(variables.iter().copied()));
        assert!(ended.status.success(), "{planes} {fault}: {}", stderr(&ended));
        assert_eq!(stdout(&ended).trim(), "120 messages each way over spindrift0");
    }
    fs::remove_dir_all(folder).unwrap();
}
