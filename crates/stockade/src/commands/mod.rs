//! One module a subcommand.

pub mod apply;
pub mod approvals;
pub mod cache;
pub mod diff;
pub mod doctor;
pub mod egress;
pub mod explain;
pub mod flatten;
pub mod generate;
mod holds;
pub mod image;
pub mod init;
pub mod learn;
pub mod log;
mod names;
pub mod network;
pub mod options;
pub mod project;
pub mod reload;
pub mod review;
pub mod run;
pub mod secret;
pub mod shell;
pub mod snapshot;
pub mod test;
pub mod trust;
pub mod untrust;
