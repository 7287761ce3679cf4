//! Programs under `spindrift run`.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
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

/// A TCP port that nobody uses now, for what programs tell each other at first.
pub(crate) fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}
