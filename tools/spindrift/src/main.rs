//! The `spindrift` command. All of it is in the library, which compiles while its dependencies still do.

use std::process::ExitCode;

fn main() -> ExitCode {
    spindrift_cli::main()
}
