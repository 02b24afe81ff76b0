//! One module a subcommand.

pub mod doctor;
pub mod egress;
pub mod explain;
pub mod generate;
pub mod init;
pub mod log;
pub mod options;
pub mod run;
pub mod shell;
pub mod test;
pub mod trust;
pub mod untrust;
