//! One module a subcommand.

pub mod approvals;
pub mod doctor;
pub mod egress;
pub mod explain;
pub mod generate;
pub mod init;
pub mod learn;
pub mod log;
pub mod network;
pub mod options;
pub mod reload;
pub mod run;
pub mod secret;
pub mod shell;
pub mod test;
pub mod trust;
pub mod untrust;
