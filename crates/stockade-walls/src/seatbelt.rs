//! The Seatbelt wall of macOS: how sandbox-exec(1) is started under a plan.
//!
//! It applies the profile and becomes the command in one step. Between the two
//! a shell of the system stands, already confined: it closes what the caller
//! left open, sets the limits, and is replaced by the command. Nothing here is
//! of macOS alone, so all of it is tested elsewhere too, with another program in
//! the place of sandbox-exec.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Action, Plan, Resource, ResourceLimit};
use stockade_policy::seatbelt::{PROXY_PARAMETER, TEMPORARY, TEMPORARY_PARAMETER, resolved};

/// Where macOS has it. Never looked up in a PATH.
pub const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// The shell: with `-p` it takes neither files nor functions from the
/// environment, which the policy may have set.
const SHELL: [&str; 3] = ["/bin/bash", "-p", "-c"];

/// Descriptors from here on are closed.
const DESCRIPTOR_FIRST: u32 = 3;
/// And up to here, which is the default limit of open files on macOS.
const DESCRIPTOR_LAST: u32 = 255;

/// Bytes in the unit in which `ulimit -f` of bash counts.
const FILE_BLOCK_BYTES: u64 = 1024;

/// Shortest token, in bytes, as the egress process wants it.
const TOKEN_BYTES_MIN: usize = 32;

/// What is known only when a command is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// [`SANDBOX_EXEC`], but for tests.
    pub sandbox_exec: &'a Path,
    /// Where the profile is written; nothing inside can write there.
    pub profile: &'a Path,
    /// A new directory of mode 0700 in `/private/tmp`.
    pub temporary: &'a AbsolutePath,
    /// The way out; there where the plan has a network.
    pub proxy: Option<Proxy<'a>>,
}

/// The explicit proxy of the egress process.
#[derive(Clone, Copy)]
pub struct Proxy<'a> {
    /// Of 127.0.0.1.
    pub port: u16,
    /// Letters and digits, at least 32.
    pub token: &'a str,
}

impl std::fmt::Debug for Proxy<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Proxy({})", self.port)
    }
}

/// Why a command cannot be started below Seatbelt.
#[derive(Debug, thiserror::Error)]
pub enum SeatbeltError {
    #[error("the plan was not made for the wall seatbelt")]
    OtherPlan,
    #[error("the temporary directory {0} does not lie directly in {TEMPORARY}")]
    Temporary(AbsolutePath),
    #[error("the plan has a network and there is no proxy, or the other way round")]
    Proxy,
    #[error("the token of the proxy is too short, or not of letters and digits")]
    Token,
    #[error("the profile cannot be written: {0}")]
    Profile(#[source] io::Error),
}

/// Writes the profile, and gives what starts the command: with the plan's
/// environment and nothing of the caller's, in its directory, in a process group
/// of its own. Standard streams are the caller's to choose.
pub fn command(plan: &Plan, start: &Start<'_>) -> Result<Command, SeatbeltError> {
    let profile = plan.steps.iter().find_map(|step| match &step.action {
        Action::Seatbelt { profile } => Some(profile),
        _ => None,
    });
    let profile = profile.ok_or(SeatbeltError::OtherPlan)?;
    let temporary = resolved(start.temporary);
    if temporary.parent().as_ref().map(AbsolutePath::as_bytes) != Some(TEMPORARY.as_bytes()) {
        return Err(SeatbeltError::Temporary(temporary));
    }
    if plan.network.is_some() != start.proxy.is_some() {
        return Err(SeatbeltError::Proxy);
    }
    let mut command = Command::new(start.sandbox_exec);
    command.arg("-f").arg(start.profile);
    define(&mut command, TEMPORARY_PARAMETER, temporary.as_bytes());
    command.env_clear();
    for (name, value) in &plan.command.environment {
        command.env(text(name), text(value));
    }
    command.env("TMPDIR", text(temporary.as_bytes()));
    if let Some(proxy) = start.proxy {
        let place = format!("localhost:{}", proxy.port);
        define(&mut command, PROXY_PARAMETER, place.as_bytes());
        name_proxy(&mut command, proxy)?;
    }
    command.args(SHELL).arg(script(plan)).arg("stockade");
    command.args(plan.command.argv.iter().map(|word| text(word)));
    command.current_dir(plan.command.directory.as_path());
    command.process_group(0);
    write(start.profile, profile).map_err(SeatbeltError::Profile)?;
    Ok(command)
}

/// A file that was not there: nobody else has it open, and no link leads away.
fn write(place: &Path, profile: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(place)?;
    file.write_all(profile.as_bytes())
}

fn define(command: &mut Command, name: &str, value: &[u8]) {
    let definition = [name.as_bytes(), b"=", value].concat();
    command.arg("-D").arg(text(&definition));
}

/// The variables by which programs find a proxy. Without SOCKS: clients would
/// have no place for the token.
fn name_proxy(command: &mut Command, proxy: Proxy<'_>) -> Result<(), SeatbeltError> {
    let plain = proxy.token.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !plain || proxy.token.len() < TOKEN_BYTES_MIN {
        return Err(SeatbeltError::Token);
    }
    let url = format!("http://stockade:{}@127.0.0.1:{}", proxy.token, proxy.port);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env(name, &url);
        command.env(name.to_ascii_lowercase(), &url);
    }
    for name in ["NO_PROXY", "no_proxy"] {
        command.env(name, "localhost,127.0.0.1,::1");
    }
    Ok(())
}

/// What the shell does; numbers are all that is put into it.
fn script(plan: &Plan) -> String {
    let mut script = format!(
        "set -e; n={DESCRIPTOR_FIRST}; while [ $n -le {DESCRIPTOR_LAST} ]; do eval \"exec $n>&-\"; \
         n=$((n+1)); done; umask {:o}",
        plan.umask
    );
    let limits = plan.steps.iter().filter_map(|step| match &step.action {
        Action::ResourceLimits { limits } => Some(limits),
        _ => None,
    });
    for limit in limits.flatten() {
        let (flag, value) = flag(limit);
        write!(script, "; ulimit -{flag} {value}").expect("writing to a string cannot fail");
    }
    script.push_str("; exec \"$@\"");
    script
}

/// The letter of `ulimit`, and the limit in its unit, rounded down.
fn flag(limit: &ResourceLimit) -> (char, u64) {
    match limit.resource {
        Resource::Core => ('c', limit.hard / FILE_BLOCK_BYTES),
        Resource::Cpu => ('t', limit.hard),
        Resource::Data => ('d', limit.hard / FILE_BLOCK_BYTES),
        Resource::FileSize => ('f', limit.hard / FILE_BLOCK_BYTES),
        Resource::OpenFiles => ('n', limit.hard),
        Resource::Processes => ('u', limit.hard),
    }
}

fn text(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
