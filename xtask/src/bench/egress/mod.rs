//! `cargo xtask bench egress`: the way out of a sandbox against the proxies that people run and
//! against the network of another sandbox.
//!
//! It needs root to make two network namespaces that a cable joins: the machine on which all
//! proxies run, and the origin. The contenders themselves run as the ordinary user.

mod arena;
mod rows;

use super::report;
use crate::packages::{self, Escalation, Purpose};
use crate::{shell, user};
use anyhow::{Result, bail};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Measure the egress proxy against squid, tinyproxy, mitmproxy and srt.
///
/// Installs the peers, builds the release binary and the two ends of the load, and runs all
/// contenders interleaved in random order against one origin in a network namespace of its own. Needs
/// root. Takes about 6 minutes; with --quick about 2. Fails when a bar is missed, unless --quick.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: report::Common,
}

/// Set where this process already is in the namespaces of the benchmark.
const INSIDE: &str = "STOCKADE_BENCH_NAMESPACES";

pub fn run(options: &Options) -> Result<()> {
    if !user::is_root() {
        bail!("the egress benchmark makes network namespaces: run it as root");
    }
    if std::env::var_os(INSIDE).is_none() {
        shell::phase("prepare", || {
            packages::ensure(Purpose::EgressBenchmark, Escalation::Refuse)?;
            arena::build()
        })?;
        return enter_namespaces();
    }
    let machine = report::machine();
    println!("{machine}");
    let arena = shell::phase("start the peers", arena::Arena::new)?;
    let wanted = |name: &str| options.common.wants(name);
    let rows = rows::measure(&arena, options.common.quick, &wanted)?;
    report::conclude(&rows, &machine, &options.common)
}

/// Runs this program again with mounts and a network of its own; never returns on success.
fn enter_namespaces() -> Result<()> {
    let mut again = Command::new("unshare");
    again.args(["--net", "--mount", "--propagation", "private", "--"]);
    again
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1));
    Err(again.env(INSIDE, "1").exec().into())
}
