//! Facts of this machine and this caller, found by system calls.
//!
//! Only what the policy asks about is looked at. Whether user namespaces can
//! be had is not tried here: the run itself tries, and its failure is
//! diagnosed by the doctor. What is cheap and certain is.

mod answer;
pub mod firecracker;
pub mod gvisor;
pub(crate) mod kvm;
pub mod machine;
pub mod network;
mod program;
pub mod runtime;
pub(crate) mod start;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, lstat, openat2, readlink, statfs,
};
use rustix::process::{Resource, getegid, geteuid, getrlimit, umask};
use rustix::thread::{CapabilitySet, capabilities, sched_getaffinity};
use stockade_policy::compile;
use stockade_policy::credentials::component_matches;
use stockade_policy::facts::{
    Ability, Architecture, ControlGroups, Facts, ImageFacts, PathFact, PathKind,
};
use stockade_policy::path::AbsolutePath;
use stockade_policy::policy::Policy;
use stockade_sys::rustix;
use stockade_walls::process::Identity;

use crate::hide::{self, HideError};
use crate::image;

/// Controllers that the limits of a policy need.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// File system type of cgroup v2 (linux/magic.h).
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// Why the facts could not be found.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("stockade does not know this processor architecture: {0}")]
    Architecture(&'static str),
    #[error("cannot find out {what}: {error}")]
    System {
        what: &'static str,
        error: io::Error,
    },
    #[error(transparent)]
    Hide(#[from] HideError),
}

fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> ProbeError {
    move |error| ProbeError::System {
        what,
        error: error.into(),
    }
}

/// Whether a process outside can decide the calls that make names.
fn supervised_names() -> Ability {
    match stockade_sys::seccomp::can_notify() {
        true => Ability::Yes,
        false => Ability::No {
            reason: "this kernel cannot hold system calls for a supervisor without repeating \
                     them (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19)"
                .to_owned(),
            remedy: "use a newer kernel, or filesystem.workspace = \"review\"".to_owned(),
        },
    }
}

/// The caller's environment.
pub(crate) fn environment() -> BTreeMap<Vec<u8>, Vec<u8>> {
    std::env::vars_os()
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect()
}

/// Everything that compiling `policy` for a command in `directory` needs.
pub fn facts(
    policy: &Policy,
    home: &AbsolutePath,
    directory: &AbsolutePath,
    image: Option<ImageFacts>,
) -> Result<Facts, ProbeError> {
    let environment = environment();
    let uid = geteuid().as_raw();
    let mut facts = Facts {
        architecture: architecture()?,
        kernel: kernel()?,
        landlock_abi: stockade_sys::landlock::abi(),
        user_namespaces: Ability::Yes,
        supervised_names: supervised_names(),
        control_groups: control_groups(uid),
        uid,
        gid: getegid().as_raw(),
        maps_every_id: maps_every_id()?,
        home: home.clone(),
        user_name: user_name(&environment, uid),
        umask: current_umask(),
        memory_total_bytes: memory_total_bytes(),
        processors: processors()?,
        open_files_max: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
        paths: BTreeMap::new(),
        hidden: Vec::new(),
        caches: None,
        all_caches: None,
        sockets: Vec::new(),
        overlay: Ability::Yes,
        layers: Vec::new(),
        git_identity: Vec::new(),
        git_excludes: Vec::new(),
        host_name: host_name(),
        redirect: Ability::No {
            reason: "it was not looked for".to_owned(),
            remedy: String::new(),
        },
        ca_bundles: Vec::new(),
        java_stores: Vec::new(),
        gvisor: gvisor::not_looked_for(),
        machine: machine::not_looked_for(),
        runtime: runtime::not_looked_for(),
        image,
        environment,
    };
    facts.git_identity = crate::git::identity(home, &facts.environment);
    let top = facts.image.as_ref().map_or(&[][..], |image| &image.parts);
    let mut questions = compile::questions(policy, home, &facts.environment, directory, top);
    if let Some(image) = &facts.image {
        let of_image = compile::left_to_image(policy, home, &facts.environment);
        let of_image = questions.extract_if(.., |path| of_image(path));
        answer_of_image(image, of_image.collect(), &mut facts.paths)?;
    }
    answer(questions, &mut facts.paths)?;
    find_credentials(policy, &mut facts)?;
    let roots = compile::granted_roots(policy, &facts);
    let hide_roots = compile::hide_roots(policy, &facts);
    facts.hidden = hide::matches(policy, &hide_roots)?;
    crate::committed::look_up(&mut facts.hidden, &hide_roots);
    if facts
        .hidden
        .iter()
        .any(|found| found.in_repository.is_some())
    {
        facts.git_excludes = crate::git::excludes(home, &facts.environment);
    }
    let place = crate::caches::place(home);
    facts.all_caches = place.clone().filter(|place| place.as_path().exists());
    facts.caches = place
        .filter(|place| !roots.iter().any(|root| place.is_within(root)))
        .and_then(|place| crate::caches::of_workspace(&place, &policy.workspace));
    facts.sockets = crate::sockets::of_host(&roots).map_err(|error| ProbeError::System {
        what: "which unix sockets are bound",
        error,
    })?;
    Ok(facts)
}

fn host_name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// Looks for credentials where the policy could show them.
fn find_credentials(policy: &Policy, facts: &mut Facts) -> Result<(), ProbeError> {
    let credentials = compile::credential_questions(policy, facts);
    let etc = Listing::of("/etc");
    let possible = credentials
        .paths
        .into_iter()
        .filter(|path| etc.may_hold(path))
        .collect();
    answer(possible, &mut facts.paths)?;
    for (base, pattern) in credentials.patterns {
        expand(&base, pattern, &mut facts.paths);
    }
    Ok(())
}

/// The names in a directory, to tell without a call that a path below is
/// missing; most of a hundred credential places below /etc are.
struct Listing {
    directory: AbsolutePath,
    /// `None` when the directory cannot be listed: then anything may exist.
    names: Option<HashSet<Vec<u8>>>,
}

impl Listing {
    fn of(directory: &str) -> Self {
        let names = std::fs::read_dir(directory).and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().into_vec()))
                .collect()
        });
        Self {
            directory: AbsolutePath::parse(directory).unwrap_or_else(|_| AbsolutePath::root()),
            names: names.ok(),
        }
    }

    /// False only when nothing can be at `path`.
    fn may_hold(&self, path: &AbsolutePath) -> bool {
        let (Some(names), Some(below)) = (&self.names, path.relative_to(&self.directory)) else {
            return true;
        };
        let first = below.split(|&byte| byte == b'/').next().unwrap_or_default();
        first.is_empty() || names.contains(first)
    }
}

/// Who the caller is, for the launcher's id maps.
pub fn identity() -> Result<Identity, ProbeError> {
    Ok(Identity {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        every_id: maps_every_id()?,
    })
}

fn answer(
    questions: Vec<AbsolutePath>,
    answers: &mut BTreeMap<AbsolutePath, PathFact>,
) -> Result<(), ProbeError> {
    for path in questions {
        // Parents sort before what they hold, so theirs is known by now.
        let parent = path
            .parent()
            .and_then(|parent| Some((answers.get(&parent)?, parent)));
        let reached_plainly = match parent {
            Some((fact, parent)) => fact.resolved == Some(parent),
            None => path.parent().is_some_and(|parent| parent.is_root()),
        };
        let fact = match reached_plainly {
            true => plain_path_fact(&path),
            false => path_fact(&path),
        };
        let fact = fact.map_err(|error| ProbeError::System {
            what: "what a path of the policy is",
            error,
        })?;
        answers.extend(fact.map(|fact| (path, fact)));
    }
    Ok(())
}

/// As [`answer`], for paths in the directories of an image.
fn answer_of_image(
    image: &ImageFacts,
    questions: Vec<AbsolutePath>,
    answers: &mut BTreeMap<AbsolutePath, PathFact>,
) -> Result<(), ProbeError> {
    let failed = |error| ProbeError::System {
        what: "what a path of the image is",
        error,
    };
    let root = image::Root::open(image).map_err(failed)?;
    for path in questions {
        let fact = root.fact(&path).map_err(failed)?;
        answers.extend(fact.map(|fact| (path, fact)));
    }
    Ok(())
}

/// What is at a path whose parent was reached without a link: one call.
fn plain_path_fact(path: &AbsolutePath) -> io::Result<Option<PathFact>> {
    match lstat(path.as_bytes()) {
        Ok(stat) => fact_of(path, &stat),
        Err(_) => path_fact(path),
    }
}

/// The fact about a path of which at most the last component is a link.
fn fact_of(path: &AbsolutePath, stat: &Stat) -> io::Result<Option<PathFact>> {
    let kind = path_kind(path, stat.st_mode)?;
    if matches!(kind, PathKind::Symlink { .. }) {
        return linked_path_fact(path);
    }
    Ok(Some(PathFact {
        resolved: Some(path.clone()),
        resolved_kind: Some(kind.clone()),
        kind,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o7777,
    }))
}

fn architecture() -> Result<Architecture, ProbeError> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(Architecture::X86_64),
        "aarch64" => Ok(Architecture::Aarch64),
        other => Err(ProbeError::Architecture(other)),
    }
}

/// Major and minor release from uname(2).
pub fn kernel() -> Result<(u32, u32), ProbeError> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if major > 0 => Ok((major, minor)),
        _ => Err(ProbeError::System {
            what: "the kernel release",
            error: io::ErrorKind::InvalidData.into(),
        }),
    }
}

fn maps_every_id() -> Result<bool, ProbeError> {
    let wanted = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let held = capabilities(None).map_err(system("the capabilities of this process"))?;
    Ok(held.effective.contains(wanted))
}

fn user_name(environment: &BTreeMap<Vec<u8>, Vec<u8>>, uid: u32) -> String {
    let from_environment = environment
        .get(&b"USER"[..])
        .or_else(|| environment.get(&b"LOGNAME"[..]));
    match from_environment.and_then(|name| String::from_utf8(name.clone()).ok()) {
        Some(name) if !name.is_empty() => name,
        // The password database is read from files: only when needed.
        _ => stockade_sys::process::account(uid)
            .and_then(|account| String::from_utf8(account.name).ok())
            .unwrap_or_else(|| uid.to_string()),
    }
}

fn current_umask() -> u32 {
    // There is no call that only reads it; this process has one thread.
    let mask = umask(Mode::from_raw_mode(0o077));
    umask(mask);
    mask.as_raw_mode()
}

fn memory_total_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.mem_unit) * info.totalram as u64
}

fn processors() -> Result<Vec<u32>, ProbeError> {
    let set = sched_getaffinity(None).map_err(system("the processors of this process"))?;
    let most = rustix::thread::CpuSet::MAX_CPU;
    Ok((0..most)
        .filter(|&number| set.is_set(number))
        .map(|number| number as u32)
        .collect())
}

/// What is at `path`; `None` when nothing is, or when the caller may not know.
fn path_fact(path: &AbsolutePath) -> io::Result<Option<PathFact>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // One call answers the common cases: missing, or reached without a link.
    match openat2(CWD, path.as_bytes(), flags, Mode::empty(), resolve) {
        Ok(file) => fact_of(path, &fstat(&file)?),
        Err(rustix::io::Errno::LOOP) => linked_path_fact(path),
        Err(
            rustix::io::Errno::NOENT
            | rustix::io::Errno::NOTDIR
            | rustix::io::Errno::ACCESS
            | rustix::io::Errno::NAMETOOLONG,
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn linked_path_fact(path: &AbsolutePath) -> io::Result<Option<PathFact>> {
    let stat = match lstat(path.as_bytes()) {
        Ok(stat) => stat,
        Err(_) => return Ok(None),
    };
    let kind = path_kind(path, stat.st_mode)?;
    let resolved = std::fs::canonicalize(path.as_path())
        .ok()
        .and_then(|resolved| AbsolutePath::parse(resolved.as_os_str().as_bytes()).ok());
    let resolved_kind = match &resolved {
        Some(resolved) => Some(path_kind(resolved, lstat(resolved.as_bytes())?.st_mode)?),
        None => None,
    };
    Ok(Some(PathFact {
        kind,
        resolved,
        resolved_kind,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o7777,
    }))
}

fn path_kind(path: &AbsolutePath, mode: u32) -> io::Result<PathKind> {
    Ok(match FileType::from_raw_mode(mode) {
        FileType::Directory => PathKind::Directory,
        FileType::RegularFile => PathKind::File,
        FileType::Socket => PathKind::Socket,
        FileType::Symlink => PathKind::Symlink {
            target: readlink(path.as_bytes(), Vec::new())?.into_bytes(),
        },
        _ => PathKind::Other,
    })
}

/// Adds what exists below `base` for a pattern whose `*` stand for any bytes
/// within one component.
fn expand(base: &AbsolutePath, pattern: &str, paths: &mut BTreeMap<AbsolutePath, PathFact>) {
    let (component, rest) = match pattern.split_once('/') {
        Some((component, rest)) => (component, Some(rest)),
        None => (pattern, None),
    };
    let descend = |name: &[u8], paths: &mut BTreeMap<AbsolutePath, PathFact>| {
        let Ok(path) = base.join(name) else { return };
        match rest {
            Some(rest) => expand(&path, rest, paths),
            None => {
                if let Ok(Some(fact)) = path_fact(&path) {
                    paths.insert(path, fact);
                }
            }
        }
    };
    if !component.contains('*') {
        return descend(component.as_bytes(), paths);
    }
    let Ok(entries) = std::fs::read_dir(base.as_path()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if component_matches(component.as_bytes(), name.as_bytes()) {
            descend(name.as_bytes(), paths);
        }
    }
}

/// Control groups in which this process may make a child.
pub fn control_groups(uid: u32) -> ControlGroups {
    let none = |reason: &str, remedy: &str| ControlGroups::None {
        reason: reason.into(),
        remedy: remedy.into(),
    };
    let unified = statfs("/sys/fs/cgroup").is_ok_and(|fs| fs.f_type == CGROUP2_MAGIC);
    if !unified && uid != 0 {
        return none(
            "this machine's control groups are version 1, which only root may use",
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or run as root",
        );
    }
    let Ok(own) = std::fs::read("/proc/self/cgroup") else {
        return none("/proc/self/cgroup cannot be read", "mount /proc");
    };
    let found = if unified {
        unified_group(&own)
    } else {
        version_one_groups(&own)
    };
    found.unwrap_or_else(|| {
        none(
            "no control group with the memory and pids controllers is delegated to this user",
            "run below a systemd user session with `Delegate=yes`, for example \
             `systemd-run --user --scope stockade run …`, or as root",
        )
    })
}

/// The parent of this process's v2 group, if a sibling with the controllers
/// can be made there and a process may be moved into it.
fn unified_group(own: &[u8]) -> Option<ControlGroups> {
    let path = own
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"0::"))?;
    let mount = AbsolutePath::parse("/sys/fs/cgroup").ok()?;
    let own = mount.join(path).ok()?;
    let parent = if own == mount { own } else { own.parent()? };
    let enabled =
        std::fs::read_to_string(parent.join("cgroup.subtree_control").ok()?.as_path()).ok()?;
    let controllers: Vec<String> = enabled
        .split_ascii_whitespace()
        .filter(|name| CONTROLLERS.contains(name))
        .map(str::to_owned)
        .collect();
    let usable = ["memory", "pids"]
        .iter()
        .all(|name| controllers.iter().any(|have| have == name));
    let movable = writable(&parent) && writable(&parent.join("cgroup.procs").ok()?);
    (usable && movable).then_some(ControlGroups::V2 {
        directory: parent,
        controllers,
    })
}

fn version_one_groups(own: &[u8]) -> Option<ControlGroups> {
    let mut directories = BTreeMap::new();
    for line in own.split(|&byte| byte == b'\n') {
        let mut fields = line.splitn(3, |&byte| byte == b':').skip(1);
        let (Some(names), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        for name in names.split(|&byte| byte == b',') {
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            if !CONTROLLERS.contains(&name) {
                continue;
            }
            let mount = AbsolutePath::parse(format!("/sys/fs/cgroup/{name}")).ok()?;
            let directory = mount.join(path).ok()?;
            if writable(&directory) {
                directories.insert(name.to_owned(), directory);
            }
        }
    }
    let usable = directories.contains_key("memory") && directories.contains_key("pids");
    usable.then_some(ControlGroups::V1 { directories })
}

fn writable(path: &AbsolutePath) -> bool {
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXISTS;
    let flags = rustix::fs::AtFlags::EACCESS;
    rustix::fs::accessat(CWD.as_fd(), path.as_bytes(), access, flags).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_bytes_within_a_component() {
        assert!(component_matches(b".*_history", b".bash_history"));
        assert!(component_matches(
            b"ssh_host_*_key",
            b"ssh_host_ed25519_key"
        ));
        assert!(!component_matches(
            b"ssh_host_*_key",
            b"ssh_host_ed25519_key.pub"
        ));
        assert!(component_matches(b"*", b""));
    }

    #[test]
    fn a_link_is_told_apart_from_what_it_names() {
        let scratch = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(scratch.path()).unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("dangling")).unwrap();
        let path =
            |name: &str| AbsolutePath::parse(root.join(name).as_os_str().as_bytes()).unwrap();
        let fact = path_fact(&path("link")).unwrap().unwrap();
        assert_eq!(
            fact.kind,
            PathKind::Symlink {
                target: b"real".to_vec()
            }
        );
        assert_eq!(fact.resolved, Some(path("real")));
        let dangling = path_fact(&path("dangling")).unwrap().unwrap();
        assert_eq!(dangling.resolved, None);
        assert_eq!(path_fact(&path("missing")).unwrap(), None);
    }
}
