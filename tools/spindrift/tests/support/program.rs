//! Programs under `spindrift run`.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Running, end_of, spindrift};

/// How long a program may take, on a machine with other work.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);

/// `spindrift run` with these options before the program.
pub(crate) fn run_of(options: &[&str], program: &[impl AsRef<OsStr>]) -> Command {
    let mut command = spindrift();
    command.arg("run").args(options).arg("--").args(program);
    command.env("SPINDRIFT_CONTROL_DIR", "none");
    for name in ["SPINDRIFT_PLANES", "SPINDRIFT_NICS", "SPINDRIFT_FAULT", "SPINDRIFT_SEED"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn end(command: &mut Command) -> Output {
    end_of(Running::start(command), PATIENCE, &format!("{command:?}"))
}

/// A TCP port that nobody uses now, for what programs tell each other at first. It is below those that the system gives to connections,
/// of which one would be in use again before a program listens there.
pub(crate) fn free_port() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 97 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (number % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port.to_string();
        }
    }
}
