//! `cargo xtask`: everything that a contributor or CI runs, without other tools than cargo.
//!
//! One module per verb. The product itself never depends on this crate.

mod bench;
mod conformance;
mod firecracker;
mod fuzz;
mod kernel_package;
mod libtest;
mod packages;
mod shell;
mod test;
mod tidy;
mod user;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Builds, tests and measures Stockade.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Test(test::Options),
    Tidy(tidy::Options),
    Fuzz(fuzz::Options),
    Bench(bench::Options),
    Conformance(conformance::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Test(options) => test::run(&options),
        Verb::Tidy(options) => tidy::run(&options),
        Verb::Fuzz(options) => fuzz::run(&options),
        Verb::Bench(options) => bench::run(&options),
        Verb::Conformance(options) => conformance::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
