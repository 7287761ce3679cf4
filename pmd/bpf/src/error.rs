use std::io;

use crate::AsmError;

/// Why something could not be done with a BPF program, map or interface.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is none.
    #[error("program {name}: {source}")]
    Assembly {
        /// The program.
        name: String,
        /// What is wrong with it.
        source: AsmError,
    },
    /// The kernel does not take the program.
    #[error("the kernel refuses program {name}: {source}\n{log}")]
    Verifier {
        /// The program.
        name: String,
        /// The end of what the verifier says.
        log: String,
        /// The system's error.
        source: io::Error,
    },
    /// The process may not do it.
    #[error("no permission to {what}: it needs {capability}, which root has")]
    Permission {
        /// What was to be done.
        what: String,
        /// The capability that is missing.
        capability: &'static str,
    },
    /// An interface has a program already.
    #[error("interface {interface} has an XDP program already{}; `ip link set dev NAME xdp off` takes it off",
        .program.map_or_else(String::new, |id| format!(" (program {id})")))]
    Busy {
        /// The number of the interface.
        interface: u32,
        /// The number of the program, where it can be told.
        program: Option<u32>,
    },
    /// Anything else.
    #[error("cannot {what}: {source}{}", .reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})")))]
    System {
        /// What was to be done.
        what: String,
        /// The system's error.
        source: io::Error,
        /// What the kernel says beside it.
        reason: Option<String>,
    },
    /// A value or a place that a map does not have.
    #[error("map {name}: {what}")]
    Map {
        /// The map.
        name: String,
        /// What does not fit.
        what: String,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, source: io::Error, capability: &'static str) -> Self {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Permission { what, capability },
            _ => Self::System { what, source, reason: None },
        }
    }
}
