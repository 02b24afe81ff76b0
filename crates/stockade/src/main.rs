//! Entry point of the `stockade` command.

#![no_main]

stockade_sys::entry!(stockade::cli::main);
