//! The `spindrift` command.
fn main() {}
