//! The parts of the view that show nothing of the host: private directories,
//! devices, the process table and what programs read there about the machine.

use crate::facts::{Facts, PathKind};
use crate::git;
use crate::guarantee::Guarantee;
use crate::network::Destination;
use crate::network::destination::RawHost;
use crate::path::AbsolutePath;
use crate::plan::{Access, Grant, Limits, Rule};
use crate::policy::Policy;

use super::super::findings::Findings;
use super::super::{environment, limits, places};
use super::{Entries, Entry, View, built_in, nearest, nearest_above};

/// Devices that programs expect and that show nothing of the machine.
pub(in super::super) const DEVICES: [&str; 6] =
    ["null", "zero", "full", "random", "urandom", "tty"];

/// Links in /dev and what they hold (as systemd and every distribution make
/// them).
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
];

/// Private directories, their modes and why they are there.
const DIRECTORIES: [(&str, u32, &str); 4] = [
    (
        "/dev/shm",
        0o1777,
        "shared memory and semaphores of this run",
    ),
    ("/run", 0o755, "sockets and state of daemons stay outside"),
    ("/tmp", 0o1777, "temporary files of this run"),
    ("/var/tmp", 0o1777, "temporary files of this run"),
];

/// Where the C library and language runtimes count processors.
const PROCESSOR_FILES: [&str; 3] = [
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/possible",
    "/sys/devices/system/cpu/present",
];

/// Home inside when the real one cannot be replaced (for example `/`).
const SUBSTITUTE_HOME: &str = "/tmp/home";

/// Directories that may be private, and the way out's own in each.
const WAY_OUT: [(&str, &str); 2] = [("/run", "/run/stockade"), ("/tmp", "/tmp/.stockade")];

/// Where git's excludes are when the home is the host's.
const GIT_EXCLUDES: [&str; 2] = ["/run/git-excludes", "/tmp/.git-excludes"];

/// Files that say how names are found (resolv.conf(5), hosts(5)).
const NAME_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

const SSH_CONFIGURATION: &str = "/etc/ssh";

/// Paths that are mount points also when a part of the host lies around them,
/// so that it must be known whether they exist.
pub(in super::super) fn mount_points() -> impl Iterator<Item = AbsolutePath> {
    DIRECTORIES
        .iter()
        .map(|(path, ..)| absolute(path))
        .chain([absolute(SSH_CONFIGURATION)])
}

/// Enters everything private; needs mounts.
pub(super) fn enter(
    view: &mut View,
    policy: &Policy,
    facts: &Facts,
    limits: &Limits,
    findings: &mut Findings,
) {
    enter_directories(view, facts, findings);
    enter_home(view, facts, findings);
    enter_git_identity(view, facts);
    enter_git_excludes(view, policy, facts);
    enter_runtime_directory(view, policy, facts);
    enter_devices(view);
    enter_machine(view, policy, facts, limits);
    enter_ssh_configuration(view, facts);
    if policy.network.opens_anything() {
        enter_way_out(view, findings);
        enter_name_files(view, facts, findings);
    }
}

/// What programs need of /dev and /proc when nothing can be mounted: the
/// host's own, under Landlock.
pub(super) fn enter_without_mounts(view: &mut View) {
    enter_host_devices(view);
    let rule = built_in("built-in.proc", "programs read about themselves here");
    grant(view, absolute("/proc"), Access::Read, Content::Host, rule);
    for name in DEVICES {
        view.entries.insert(device(name), Entry::Device { name });
    }
    view.entries.insert(absolute("/proc"), Entry::Proc);
}

/// The devices alone, as the host has them.
pub(super) fn enter_host_devices(view: &mut View) {
    for name in DEVICES {
        grant(
            view,
            device(name),
            Access::Write,
            Content::Host,
            device_rule(),
        );
    }
}

#[derive(Clone, Copy)]
enum Content {
    Host,
    OwnOfThisRun,
}

fn enter_directories(view: &mut View, facts: &Facts, findings: &mut Findings) {
    for (path, mode, reason) in DIRECTORIES {
        let path = absolute(path);
        if view.entries.contains_key(&path) {
            findings.note(format!("{path} is granted, so this run has no private one"));
            continue;
        }
        let shows_host = matches!(
            nearest_above(&view.entries, &path),
            Some(Entry::Host { .. })
        );
        if shows_host && !facts.paths.contains_key(&path) {
            findings.note(format!("{path} does not exist, so there is no private one"));
            continue;
        }
        enter_directory(view, path, mode, reason);
    }
}

fn enter_home(view: &mut View, facts: &Facts, findings: &mut Findings) {
    if matches!(
        nearest(&view.entries, &facts.home),
        Some(Entry::Host {
            directory: true,
            ..
        })
    ) {
        return;
    }
    if !places::is_replaceable_home(&facts.home) {
        view.home = absolute(SUBSTITUTE_HOME);
        findings.note(format!(
            "the home directory {} belongs to the system; inside it is {SUBSTITUTE_HOME}",
            facts.home
        ));
    }
    let home = view.home.clone();
    enter_directory(
        view,
        home,
        0o700,
        "an empty home; nothing of the real one is inside",
    );
}

/// Who commits, and nothing else of the caller's git configuration: it may
/// name programs, tokens and files that are not inside.
fn enter_git_identity(view: &mut View, facts: &Facts) {
    let content = git::configuration(&facts.git_identity);
    let path = view.home.join(git::FILE_NAME);
    let (Some(content), Ok(path)) = (content, path) else {
        return;
    };
    if !matches!(nearest(&view.entries, &path), Some(Entry::Private { .. })) {
        return;
    }
    view.entries
        .insert(path.clone(), Entry::Settings { content });
    let rule = built_in(
        git::RULE,
        "who commits, from the caller's git configuration",
    );
    grant(view, path, Access::Write, Content::OwnOfThisRun, rule);
}

/// What git is to pass over: what is hidden, and what the caller excludes
/// everywhere. In a private home the file stands where git always looks
/// (gitignore(5)), so no setting of the repository is overridden; where the
/// home is the host's, the environment names it.
fn enter_git_excludes(view: &mut View, policy: &Policy, facts: &Facts) {
    let hidden = facts
        .hidden
        .iter()
        .filter(|found| !found.is_committed())
        .filter_map(|found| found.in_repository.as_deref());
    let content = git::excludes(&facts.git_excludes, hidden);
    let directory = environment::passed(policy, facts, b"XDG_CONFIG_HOME")
        .and_then(|value| AbsolutePath::parse(value).ok())
        .or_else(|| view.home.join(".config").ok());
    let path = directory.and_then(|directory| directory.join(git::EXCLUDES_FILE).ok());
    let (false, Some(path)) = (content.is_empty(), path) else {
        return;
    };
    let is_private = |view: &View, path: &AbsolutePath| {
        matches!(nearest(&view.entries, path), Some(Entry::Private { .. }))
    };
    let path = match is_private(view, &path) {
        true => path,
        false => {
            let elsewhere = GIT_EXCLUDES.iter().map(|place| absolute(place));
            let Some(path) = elsewhere.into_iter().find(|place| is_private(view, place)) else {
                return;
            };
            view.git_excludes = Some(path.clone());
            path
        }
    };
    view.entries
        .insert(path.clone(), Entry::Settings { content });
    let rule = built_in(
        git::EXCLUDES_RULE,
        "what git is to pass over: hidden files, and what the caller excludes everywhere",
    );
    grant(view, path, Access::Write, Content::OwnOfThisRun, rule);
}

/// The directory that XDG_RUNTIME_DIR names, if the policy passes it and it
/// lies where the view is private.
fn enter_runtime_directory(view: &mut View, policy: &Policy, facts: &Facts) {
    let Some(value) = environment::passed(policy, facts, b"XDG_RUNTIME_DIR") else {
        return;
    };
    let Ok(path) = AbsolutePath::parse(value) else {
        return;
    };
    if view.entries.contains_key(&path) {
        return;
    }
    if matches!(nearest(&view.entries, &path), Some(Entry::Private { .. })) {
        view.runtime_directory = Some(path.clone());
        enter_directory(view, path, 0o700, "runtime files of this run");
    }
}

fn enter_directory(view: &mut View, path: AbsolutePath, mode: u32, reason: &str) {
    view.entries.insert(path.clone(), Entry::Private { mode });
    let rule = built_in("built-in.private", reason);
    grant(view, path, Access::Write, Content::OwnOfThisRun, rule);
}

/// What stands in /dev and /proc of every view, whatever is granted.
pub(in super::super) fn constant_entries() -> Entries {
    let devices = DEVICES.map(|name| (device(name), Entry::Device { name }));
    let links = DEVICE_LINKS.map(|(link, target)| {
        let target = target.into();
        (absolute(link), Entry::Symlink { target })
    });
    let others = [
        (absolute("/dev/pts"), Entry::Terminals),
        (absolute("/proc"), Entry::Proc),
    ];
    devices.into_iter().chain(links).chain(others).collect()
}

fn enter_devices(view: &mut View) {
    enter_host_devices(view);
    let rule = built_in("built-in.terminals", "terminals of this run");
    grant(
        view,
        absolute("/dev/pts"),
        Access::Write,
        Content::OwnOfThisRun,
        rule,
    );
    view.entries.extend(constant_entries());
}

/// The process table, and files that say how much of the machine this run
/// has. A nested sandbox could not mount a process table of its own if a part
/// of this one were covered (mount_namespaces(7)).
fn enter_machine(view: &mut View, policy: &Policy, facts: &Facts, limits: &Limits) {
    let rule = built_in("built-in.proc", "processes of this run");
    grant(
        view,
        absolute("/proc"),
        Access::Read,
        Content::OwnOfThisRun,
        rule,
    );
    if let (false, Some(bytes)) = (policy.makes_namespaces(), limits.memory_bytes) {
        enter_file(
            view,
            "/proc/meminfo",
            limits::memory_file(bytes),
            "memory of this run",
        );
    }
    let processors = limits::processors(facts, limits);
    let content = limits::processor_file(processors);
    for path in PROCESSOR_FILES {
        enter_file(view, path, content.clone(), "processors of this run");
    }
}

fn enter_file(view: &mut View, path: &str, content: Vec<u8>, reason: &str) {
    view.entries.insert(absolute(path), Entry::File { content });
    let rule = built_in("built-in.machine", reason);
    grant(
        view,
        absolute(path),
        Access::Read,
        Content::OwnOfThisRun,
        rule,
    );
}

/// OpenSSH refuses a configuration whose owner has no id inside, which is
/// true of root's files when only the caller's id is mapped.
fn enter_ssh_configuration(view: &mut View, facts: &Facts) {
    let path = absolute(SSH_CONFIGURATION);
    // Files of an image belong to the caller.
    let owner_is_mapped = facts.maps_every_id || facts.uid == 0 || facts.image.is_some();
    let is_directory = facts
        .paths
        .get(&path)
        .is_some_and(|fact| fact.kind == PathKind::Directory);
    let readable = Entry::Host {
        access: Access::Read,
        directory: true,
    };
    if !owner_is_mapped && is_directory && nearest(&view.entries, &path) == Some(&readable) {
        view.entries.insert(path, Entry::Copy);
    }
}

/// A directory for sockets and certificates of the way out.
fn enter_way_out(view: &mut View, findings: &mut Findings) {
    let private = WAY_OUT.into_iter().find(|(above, _)| {
        let entry = nearest(&view.entries, &absolute(above));
        matches!(entry, Some(Entry::Private { .. }))
    });
    let Some((_, path)) = private else {
        findings.refuse(
            Guarantee::NT1,
            "/run and /tmp are both granted, so the way out has no private directory inside",
            "grant less than all of /run and /tmp",
        );
        return;
    };
    let path = absolute(path);
    view.way_out = Some(path.clone());
    enter_directory(view, path, 0o755, "sockets and certificates of the way out");
}

/// Names are asked of the way out, and no address is known without it.
fn enter_name_files(view: &mut View, facts: &Facts, findings: &mut Findings) {
    let contents = [resolver_file(), hosts_file(&facts.host_name)];
    for (path, content) in NAME_FILES.into_iter().zip(contents) {
        let named = absolute(path);
        // The file is often a link to where a daemon of the host keeps it.
        let place = match facts.paths.get(&named) {
            Some(fact) => match (&fact.kind, &fact.resolved) {
                (_, Some(resolved)) => Some(resolved.clone()),
                (PathKind::Symlink { target }, None) => named.link_target(target),
                (_, None) => None,
            },
            None => match nearest(&view.entries, &named) {
                Some(Entry::Host { .. }) => None,
                _ => Some(named.clone()),
            },
        };
        let dangles = |place: &AbsolutePath| {
            let shown = matches!(nearest(&view.entries, place), Some(Entry::Host { .. }));
            shown
                && facts
                    .paths
                    .get(&named)
                    .is_some_and(|fact| fact.resolved.is_none())
        };
        match place.filter(|place| !dangles(place)) {
            Some(place) => {
                let content = content.into_bytes();
                view.entries.insert(place.clone(), Entry::File { content });
                let rule = built_in("built-in.names", "names are asked of the way out");
                grant(view, place, Access::Read, Content::OwnOfThisRun, rule);
            }
            None => findings.note(format!(
                "{path} does not exist, so programs that read it do not find the way out"
            )),
        }
    }
}

fn resolver_file() -> String {
    "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n".to_owned()
}

/// The machine's own name is here, because programs look it up (Java does to
/// say who it is) and the way out would not answer for it.
fn hosts_file(host_name: &str) -> String {
    let mut content = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
    let raw = RawHost::Text(host_name.as_bytes());
    let own = Destination::new(raw, 1).ok();
    if let Some(name) = own.as_ref().and_then(Destination::name) {
        content.push_str(&format!("127.0.1.1 {name}\n"));
    }
    content
}

/// Who is asked for names, where the one who asks has a root of its own.
pub(in super::super) fn resolver() -> (AbsolutePath, Vec<u8>) {
    (absolute(NAME_FILES[0]), resolver_file().into_bytes())
}

/// Files that say how names are found.
pub(in super::super) fn name_files() -> impl Iterator<Item = AbsolutePath> {
    NAME_FILES.into_iter().map(absolute)
}

fn grant(view: &mut View, path: AbsolutePath, access: Access, content: Content, rule: Rule) {
    let private = matches!(content, Content::OwnOfThisRun);
    view.grants.push(Grant {
        path,
        access,
        private,
        rule,
    });
}

fn device_rule() -> Rule {
    built_in(
        "built-in.devices",
        "devices that show nothing of the machine",
    )
}

fn device(name: &str) -> AbsolutePath {
    absolute(&format!("/dev/{name}"))
}

fn absolute(path: &str) -> AbsolutePath {
    AbsolutePath::parse(path).expect("a constant of this file is an absolute path")
}
