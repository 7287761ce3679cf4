//! Usage errors: input that cannot work on any machine or network.

use anyhow::Error;

/// Exit status for wrong usage, the one of the option parser.
pub(crate) const USAGE_STATUS: u8 = 2;

/// What was given is wrong; the text names it and the fix.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error that ends the command with [`USAGE_STATUS`].
pub(crate) fn usage(text: impl Into<String>) -> Error {
    Usage(text.into()).into()
}
