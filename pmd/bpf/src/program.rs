use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{Assembler, Error, sys};

/// Lines of the verifier's log that an error tells.
const LOG_LINES: usize = 12;

/// An XDP program in the kernel. It stays there as long as this value or an interface has it.
#[derive(Debug)]
pub struct Program {
    name: String,
    fd: OwnedFd,
}

/// What a program did with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// What it returned.
    pub verdict: i32,
    /// The packet as it left it.
    pub packet: Vec<u8>,
}

impl Program {
    /// Loads a program, which must bear with packets in several buffers: it finds the first one between
    /// [`DATA`](crate::context::DATA) and [`DATA_END`](crate::context::DATA_END). The kernel knows it by the first 15 letters of
    /// `name`, of which some are letters, digits, `_` and `.`.
    ///
    /// To the kernel it is licensed under MIT or GPL, because some helpers are for such programs alone.
    ///
    /// # Errors
    /// If a label has no place, or the kernel refuses; what the verifier says is in the error.
    pub fn load(name: &str, text: Assembler<'_>) -> Result<Self, Error> {
        let name = name.to_owned();
        let insns = match text.finish() {
            Ok(insns) => insns,
            Err(source) => return Err(Error::Assembly { name, source }),
        };
        match sys::program_load(&name, &insns) {
            Ok(fd) => Ok(Self { name, fd }),
            Err((source, _)) if source.raw_os_error() == Some(libc::EPERM) => {
                Err(Error::system(format!("load the program {name}"), source, "CAP_BPF and CAP_NET_ADMIN"))
            }
            Err((source, log)) => {
                let lines: Vec<_> = log.lines().collect();
                let log = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n");
                Err(Error::Verifier { name, log, source })
            }
        }
    }

    /// Runs the program on a packet, which comes from nowhere: a test.
    ///
    /// # Errors
    /// If the packet is shorter than an Ethernet header or longer than a page, or the kernel refuses.
    pub fn run(&self, packet: &[u8]) -> Result<Ran, Error> {
        let ran = sys::program_run(&self.fd, packet);
        let (verdict, packet) = ran.map_err(|error| {
            Error::system(format!("run the program {}", self.name), error, "CAP_BPF and CAP_NET_ADMIN")
        })?;
        Ok(Ran { verdict, packet })
    }

    /// Its number in the kernel.
    pub fn id(&self) -> Result<u32, Error> {
        let what = || format!("ask for the program {}", self.name);
        sys::program_id(&self.fd).map_err(|error| Error::system(what(), error, "CAP_BPF"))
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
