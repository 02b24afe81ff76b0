//! Entry point of the `stockade` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    stockade::cli::main()
}
