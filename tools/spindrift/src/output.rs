//! Standard output and standard error. What cannot be written to standard output is an error of the command,
//! since its result is lost; what cannot be written to standard error is dropped, since nobody is left to tell.

use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};

/// Exit status when the reader of standard output has gone: what shells report of a program that a broken pipe
/// ended, 128 and the signal's number.
pub(crate) const BROKEN_PIPE_STATUS: u8 = 141;

/// The first error of standard output. From then on nothing more is written there.
static LOST: OnceLock<Failure> = OnceLock::new();

#[derive(Clone, Debug)]
struct Failure {
    kind: ErrorKind,
    text: String,
}

/// Standard output takes nothing more.
#[derive(Clone, Debug)]
pub(crate) struct Lost(Failure);

impl Lost {
    /// Whether the reader has gone, which is no fault: `spindrift .. | head -1`.
    pub(crate) fn reader_has_gone(&self) -> bool {
        self.0.kind == ErrorKind::BrokenPipe
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot write to standard output: {}; the results are not complete", self.0.text)
    }
}

impl std::error::Error for Lost {}

/// Prints a line at once, so that a pipe sees it too. [`check`] tells whether it could be written.
pub(crate) fn print_line(line: &str) {
    if LOST.get().is_none() {
        record_stdout_error(writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush()));
    }
}

/// Remembers what writing to standard output gave.
pub(crate) fn record_stdout_error(result: io::Result<()>) {
    if let Err(error) = result {
        // A later error is a consequence of the first.
        let _ = LOST.set(Failure { kind: error.kind(), text: error.to_string() });
    }
}

/// An error once something could not be written.
pub(crate) fn check() -> Result<(), Lost> {
    LOST.get().map_or(Ok(()), |lost| Err(Lost(lost.clone())))
}

/// Prints a line on standard error.
pub(crate) fn eprint_line(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes a file of a folder.
pub(crate) fn write_file(
    folder: &Path,
    name: &str,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let path = folder.join(name);
    let written = File::create(&path).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// An error with its causes, outermost first. One that tells its cause itself does not make it be told twice.
pub(crate) fn error_chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_printed_once() {
        let plain = anyhow!("no such device").context("cannot open eth7").context("plane 1");
        assert_eq!(error_chain(&plain), "plane 1: cannot open eth7: no such device");
        let tells = anyhow!("no such device").context("cannot open eth7: no such device").context("plane 1");
        assert_eq!(error_chain(&tells), "plane 1: cannot open eth7: no such device");
        assert_eq!(error_chain(&anyhow!("alone")), "alone");
    }
}
