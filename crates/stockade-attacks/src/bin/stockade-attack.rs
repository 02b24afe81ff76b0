//! The hidden subcommand as a program of its own, for the tests of the corpus.

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(stockade_attacks::inside(&arguments));
}
