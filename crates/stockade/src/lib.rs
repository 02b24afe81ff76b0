//! The command line of Stockade: parses arguments, calls the engine, and shows
//! what came of it to people and, as JSON, to programs.

pub mod cli;
mod commands;
pub mod exit;
mod show;
