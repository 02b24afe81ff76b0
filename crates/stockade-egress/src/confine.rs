//! The process gives up what it does not need, before it serves a byte.
//!
//! It reads what the sandbox sends, so a mistake in it is met with a process
//! that can open connections (which it could anyway) and little else: no
//! capability, no new program, no file but the roots of certificates, no
//! memory that others may read. The rules are in `data/seccomp.rules`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use stockade_policy::facts::Architecture;
use stockade_policy::landlock::{FS_RESOLVE_UNIX, NET_BIND_TCP, Object, handled, read_rights};
use stockade_policy::seccomp::assemble::assemble;
use stockade_policy::seccomp::numbers;
use stockade_policy::seccomp::rules::{NestedSandbox, RuleLine, parse};
use stockade_sys::landlock::{self, Handled, Ruleset};
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stockade_sys::{privilege, process, seccomp};

const RULES: &str = include_str!("../data/seccomp.rules");

/// A tunnel has two sockets and four ends of pipes.
const DESCRIPTORS_MAX: u64 = 16 * 1024;

/// Where systems keep what names and certificates are checked by.
const READABLE: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/lib/ssl",
    "/usr/share/ca-certificates",
    "/usr/share/pki",
    "/usr/local/share/ca-certificates",
    "/var/lib/ca-certificates",
];

/// What the rules need beside what every machine has.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files and directories to read.
    pub readable: Vec<PathBuf>,
    /// Unix sockets to connect to.
    pub sockets: Vec<PathBuf>,
}

/// First of all: nobody reads this memory, nothing is dumped, nothing is
/// gained, and no descriptor but `control` is open.
pub fn harden(control: BorrowedFd<'_>) -> io::Result<()> {
    process::close_descriptors_but(&[], control)?;
    privilege::set_not_dumpable()?;
    privilege::set_no_new_privileges()?;
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)?;
    let descriptors = getrlimit(Resource::Nofile);
    let most = descriptors.maximum.unwrap_or(u64::MAX);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(most.min(DESCRIPTORS_MAX)),
            maximum: descriptors.maximum,
        },
    )?;
    Ok(())
}

/// Before serving: no capability, Landlock, seccomp. Gives what was applied,
/// for the evidence. The process must have one thread.
pub fn confine(needs: &Needs) -> io::Result<Vec<(String, String)>> {
    privilege::drop_all_capabilities()?;
    let landlock = restrict_files(needs)?;
    install_filter()?;
    Ok(vec![
        (
            "process".to_owned(),
            "not dumpable, no core, no new privileges, no capability".to_owned(),
        ),
        ("files".to_owned(), landlock),
        (
            "system calls".to_owned(),
            format!("{} rules, filter in force", rules().len()),
        ),
    ])
}

fn restrict_files(needs: &Needs) -> io::Result<String> {
    let abi = landlock::abi();
    if abi == 0 {
        return Ok("no Landlock on this kernel".to_owned());
    }
    let rights = handled(abi);
    let ruleset = Ruleset::new(Handled {
        filesystem: rights.fs,
        network: if abi >= 4 { NET_BIND_TCP } else { 0 },
        scoped: rights.scoped,
    })?;
    let fixed = READABLE.iter().map(Path::new);
    let mut granted = 0;
    for path in fixed.chain(needs.readable.iter().map(PathBuf::as_path)) {
        granted += usize::from(allow(&ruleset, path, abi, Access::Read)?);
    }
    if rights.fs & FS_RESOLVE_UNIX != 0 {
        for path in &needs.sockets {
            granted += usize::from(allow(&ruleset, path, abi, Access::Connect)?);
        }
    }
    ruleset.restrict_self()?;
    Ok(format!(
        "Landlock ABI {abi}, {granted} paths, none to write"
    ))
}

#[derive(Clone, Copy)]
enum Access {
    Read,
    Connect,
}

/// Whether the path exists; one that does not is not allowed either.
fn allow(ruleset: &Ruleset, path: &Path, abi: u32, access: Access) -> io::Result<bool> {
    use stockade_sys::rustix::io::Errno;
    let opened = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let opened = match opened {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let kind = stockade_sys::rustix::fs::fstat(&opened)?.st_mode;
    let is_directory = stockade_sys::rustix::fs::FileType::from_raw_mode(kind)
        == stockade_sys::rustix::fs::FileType::Directory;
    let object = match is_directory {
        true => Object::Directory,
        false => Object::File,
    };
    let rights = match access {
        Access::Read => read_rights(abi, object) & !stockade_policy::landlock::FS_EXECUTE,
        Access::Connect => FS_RESOLVE_UNIX,
    };
    ruleset.allow(opened.as_fd(), rights)?;
    Ok(true)
}

fn install_filter() -> io::Result<()> {
    let architecture = architecture();
    let numbers = numbers(architecture);
    let program = assemble(&rules(), NestedSandbox::Denied, architecture, &numbers);
    let program: Vec<seccomp::Instruction> = program
        .iter()
        .map(|instruction| seccomp::Instruction {
            code: instruction.code,
            jump_true: instruction.jump_true,
            jump_false: instruction.jump_false,
            operand: instruction.operand,
        })
        .collect();
    seccomp::install(&program)?;
    match seccomp::is_filtered() {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn rules() -> Vec<RuleLine> {
    parse(RULES).expect("the embedded rules parse: a test reads them")
}

fn architecture() -> Architecture {
    if cfg!(target_arch = "aarch64") {
        Architecture::Aarch64
    } else {
        Architecture::X86_64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_parse_and_name_known_calls() {
        let known: Vec<&str> = numbers(Architecture::X86_64)
            .into_iter()
            .chain(numbers(Architecture::Aarch64))
            .map(|(name, _)| name)
            .collect();
        for rule in rules() {
            assert!(known.contains(&rule.name.as_str()), "{}", rule.name);
        }
    }

    #[test]
    fn nothing_is_executed_forked_written_or_traced() {
        let names: Vec<String> = rules()
            .into_iter()
            .filter(|rule| rule.action == stockade_policy::seccomp::rules::Action::Allow)
            .map(|rule| rule.name)
            .collect();
        for forbidden in [
            "execve",
            "execveat",
            "fork",
            "vfork",
            "clone",
            "clone3",
            "ptrace",
            "listen",
            "process_vm_readv",
            "pidfd_open",
            "unlink",
            "rename",
            "mount",
            "unshare",
            "setns",
            "bpf",
            "keyctl",
            "kill",
            "io_uring_setup",
            "openat2",
            "creat",
            "userfaultfd",
        ] {
            assert!(!names.iter().any(|name| name == forbidden), "{forbidden}");
        }
    }
}
