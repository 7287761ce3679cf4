//! Programs of distributions, with this library under the names that they look for.

#![allow(dead_code, reason = "each test uses a part")]

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a program may take, on a machine with other work.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A folder with the library under the names that programs look for.
pub(crate) struct Library(PathBuf);

impl Library {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("spindrift-capi-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let built = std::env::current_exe().unwrap();
        let built = built.parent().unwrap().join("libspindrift_ibverbs.so");
        assert!(built.exists(), "{} is not built", built.display());
        for name in
            ["libibverbs.so", "libibverbs.so.1", "librdmacm.so.1", "lib_mrc.so", "libnv_mrc.so", "libmrc.so"]
        {
            symlink(&built, folder.join(name)).unwrap();
        }
        Self(folder)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A program with planes on these addresses. `None`: the machine does not have it.
    pub(crate) fn program(&self, name: &str, planes: &str, args: &str) -> Option<Command> {
        let path = ["/usr/bin", "/usr/local/bin"].map(|folder| Path::new(folder).join(name));
        let Some(path) = path.iter().find(|path| path.exists()) else {
            let required = std::env::var_os("SPINDRIFT_REQUIRE_PERFTEST").is_some();
            assert!(!required, "there is no {name}; ./tools/setup.sh --tests installs it");
            eprintln!(
                "SKIPPED: there is no {name} (packages ibverbs-utils, perftest, rdmacm-utils and libfabric-bin)"
            );
            return None;
        };
        Some(self.command(path, planes, args))
    }

    pub(crate) fn command(&self, path: &Path, planes: &str, args: &str) -> Command {
        let mut command = Command::new(path);
        command.env("LD_LIBRARY_PATH", &self.0).env("SPINDRIFT_PLANES", planes);
        command.env("SPINDRIFT_CONTROL_DIR", "none");
        command.args(args.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that runs. It is killed if the test ends before.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn is_running(&self) -> bool {
        let pid = self.0.id();
        // A child that has ended stays as a zombie until somebody waits for it.
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z'))
    }

    /// Waits for its end: the exit code, and all that it has written.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > PATIENCE {
                self.0.kill().unwrap();
                break self.0.wait().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status.code(), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A TCP port that nobody uses now, for what programs tell each other at first. It is below those that the system gives to connections,
/// of which one would be in use again before a program listens there.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 97 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (number % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
