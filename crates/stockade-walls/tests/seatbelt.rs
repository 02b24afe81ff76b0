//! Starting a command below Seatbelt, with this program in the place of
//! sandbox-exec: it understands the profile that it is given, checks that the
//! profile permits what is asked of it, and executes the rest. The command is
//! this program again, which says what it finds inside.
//!
//! Without the test harness, because the same program has three parts to play.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_policy::guard::Guard;
use stockade_policy::network::NetworkPlan;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{
    Access, Action, Form, Grant, Limits, Plan, Resource, ResourceLimit, Rule, Step, Wall,
    WorkspaceMode,
};
use stockade_policy::seatbelt::{Sources, profile};
use stockade_testkit::sbpl::{self, Object, Parameters, Volume};
use stockade_walls::seatbelt::{Proxy, SeatbeltError, Start, command};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("-f") => stand_in(&arguments),
        Some("inside") => inside(&arguments),
        _ => {
            what_is_started_is_what_was_planned();
            println!("test what_is_started_is_what_was_planned ... ok");
            a_plan_that_does_not_fit_starts_nothing();
            println!("test a_plan_that_does_not_fit_starts_nothing ... ok");
        }
    }
}

/// Takes the arguments as sandbox-exec(1) does: `-f FILE`, `-D KEY=VALUE`, then
/// the command.
fn stand_in(arguments: &[OsString]) -> ! {
    let text = |at: usize| arguments[at].to_str().expect("an argument is text");
    let source = std::fs::read_to_string(&arguments[2]).expect("the profile");
    let mut parameters = Parameters::new();
    let mut at = 3;
    while text(at) == "-D" {
        let (key, value) = text(at + 1).split_once('=').expect("a definition");
        parameters.insert(key.to_owned(), value.to_owned());
        at += 2;
    }
    let profile = sbpl::parse(&source, &parameters).expect("the profile is understood");
    let allows = |operation: &str, path: &[u8]| {
        profile.allows(operation, Object::Path(path), Volume::CaseFolding)
    };
    assert!(
        allows("process-exec", arguments[at].as_bytes()),
        "the shell"
    );
    let directory = std::env::current_dir().expect("a directory");
    assert!(allows("file-write-data", directory.as_os_str().as_bytes()));
    assert!(allows(
        "file-write-create",
        format!("{}/x", parameters["TEMPORARY"]).as_bytes()
    ));
    assert!(
        !allows("file-read-data", arguments[2].as_bytes()),
        "the profile itself"
    );
    assert!(!allows("file-read-data", b"/Users/u/.ssh/id_ed25519"));
    for port in [4711, 4712] {
        let object = Object::Address {
            loopback: true,
            port,
        };
        let reached = profile.allows("network-outbound", object, Volume::CaseFolding);
        let wanted = parameters
            .get("PROXY")
            .is_some_and(|place| place == "localhost:4711");
        assert_eq!(reached, wanted && port == 4711);
    }
    let error = Command::new(&arguments[at])
        .args(&arguments[at + 1..])
        .exec();
    panic!("{error}");
}

/// Says what there is: arguments, variables, descriptors, limits, place.
fn inside(arguments: &[OsString]) {
    for word in &arguments[2..] {
        println!("argument {}", word.display());
    }
    for (name, value) in std::env::vars_os() {
        println!("variable {}={}", name.display(), value.display());
    }
    for entry in std::fs::read_dir("/proc/self/fd").expect("descriptors") {
        let entry = entry.expect("a descriptor");
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if !target.starts_with("/proc") {
            println!("descriptor {}", entry.file_name().display());
        }
    }
    print!(
        "{}",
        std::fs::read_to_string("/proc/self/limits").expect("limits")
    );
    println!(
        "directory {}",
        std::env::current_dir().expect("a directory").display()
    );
    let status = std::fs::read_to_string("/proc/self/stat").expect("status");
    let group = status
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(2));
    println!(
        "leads its group: {}",
        group == Some(&std::process::id().to_string())
    );
}

/// A directory that goes with the test, in /tmp as on macOS.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let place = PathBuf::from(format!(
            "/tmp/stockade-seatbelt-{}-{name}",
            std::process::id()
        ));
        std::fs::create_dir(&place).expect("a scratch directory");
        Self(place)
    }

    fn path(&self) -> AbsolutePath {
        path(self.0.as_os_str().as_bytes())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0).is_err();
    }
}

fn path(bytes: &[u8]) -> AbsolutePath {
    AbsolutePath::parse(bytes).expect("an absolute path")
}

fn rule(id: &str) -> Rule {
    Rule {
        id: id.to_owned(),
        origin: "test".to_owned(),
        reason: "test".to_owned(),
    }
}

fn own_program() -> PathBuf {
    std::env::current_exe().expect("this program")
}

fn plan(project: &Path, network: Option<NetworkPlan>) -> Plan {
    let project = path(project.as_os_str().as_bytes());
    let grant = |place: AbsolutePath, access| Grant {
        path: place,
        access,
        private: false,
        rule: rule("filesystem"),
    };
    let own = own_program();
    let mut plan = Plan {
        wall: Wall::Seatbelt,
        image: None,
        form: Form::Seatbelt,
        command: stockade_policy::plan::Command {
            argv: vec![
                own.as_os_str().as_bytes().to_vec(),
                b"inside".to_vec(),
                b"two words".to_vec(),
                b"$(touch x); \"'".to_vec(),
            ],
            directory: project.clone(),
            environment: vec![
                (b"BASH_ENV".to_vec(), b"/nonexistent/hostile".to_vec()),
                (b"KEY".to_vec(), b"a\nb".to_vec()),
            ],
        },
        workspace: project.clone(),
        workspace_mode: (WorkspaceMode::Live, rule("filesystem.workspace")),
        uid: 0,
        gid: 0,
        umask: 0o027,
        grants: vec![
            grant(path(b"/bin"), Access::Read),
            grant(path(b"/usr"), Access::Read),
            grant(project, Access::Write),
        ],
        masks: Vec::new(),
        guard: Guard::built_in(),
        limits: limits(),
        caches: None,
        nested_sandbox: false,
        network,
        guest: None,
        steps: Vec::new(),
        guarantees: Vec::new(),
        notes: Vec::new(),
    };
    let profile = profile(Sources::from(&plan)).expect("a profile");
    let limit = |resource, limit| ResourceLimit {
        resource,
        soft: limit,
        hard: limit,
    };
    let limits = vec![
        limit(Resource::Core, 0),
        limit(Resource::Cpu, 77),
        limit(Resource::FileSize, 1 << 20),
        limit(Resource::OpenFiles, 99),
    ];
    let actions = [
        Action::ScrubLauncher,
        Action::ResourceLimits { limits },
        Action::Seatbelt { profile },
    ];
    plan.steps = actions
        .into_iter()
        .map(|action| Step {
            name: "step".to_owned(),
            action,
            holds: Vec::new(),
        })
        .collect();
    plan
}

fn limits() -> Limits {
    Limits {
        memory_bytes: None,
        processes: None,
        cpu_percent: None,
        cpu_seconds: Some(77),
        wall_time_ms: None,
        open_files: Some(99),
        file_bytes: Some(1 << 20),
        disk_bytes: 0,
        disk_inodes: 0,
        store_bytes: 0,
        exact: false,
    }
}

fn what_is_started_is_what_was_planned() {
    let (project, temporary, state) = (
        Scratch::new("project"),
        Scratch::new("temporary"),
        Scratch::new("state"),
    );
    let place = temporary.path();
    let own = own_program();
    let profile = state.0.join("profile.sb");
    let mut start = Start {
        sandbox_exec: &own,
        profile: &profile,
        temporary: &place,
        proxy: None,
    };
    // What a caller forgot to close.
    let forgotten = stockade_sys::rustix::io::dup(std::io::stdin()).expect("a descriptor");
    for proxy in [
        None,
        Some(Proxy {
            port: 4711,
            token: TOKEN,
        }),
    ] {
        start.proxy = proxy;
        let plan = plan(&project.0, proxy.map(|_| NetworkPlan::nothing()));
        let mut command = command(&plan, &start).expect("a command");
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("the stand-in starts");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).expect("text");
        check(&said, &project, &place, proxy.is_some());
        let written = std::fs::read_to_string(&profile).expect("the profile");
        assert!(written.starts_with("(version 1)\n(deny default)\n"));
        assert!(!written.contains(TOKEN));
        // A second start does not write over what is there.
        let again = command_error(&plan, &start);
        assert!(matches!(again, SeatbeltError::Profile(_)), "{again}");
        std::fs::remove_file(&profile).expect("the profile goes");
    }
    assert!(forgotten.as_raw_fd() > 2);
}

fn check(said: &str, project: &Scratch, temporary: &AbsolutePath, network: bool) {
    let lines = |kind: &str| -> Vec<String> {
        let kind = format!("{kind} ");
        said.lines()
            .filter_map(|line| Some(line.strip_prefix(&kind)?.to_owned()))
            .collect()
    };
    assert_eq!(lines("argument"), ["two words", "$(touch x); \"'"]);
    assert!(
        !project.0.join("x").exists(),
        "nothing was taken for a command"
    );
    assert_eq!(lines("directory"), [project.0.to_str().expect("text")]);
    assert!(said.contains("leads its group: true"), "{said}");
    let mut descriptors = lines("descriptor");
    descriptors.sort();
    assert_eq!(descriptors, ["0", "1", "2"], "{said}");
    for limit in [
        "Max core file size        0                    0",
        "Max cpu time              77                   77",
        "Max file size             1048576              1048576",
        "Max open files            99                   99",
    ] {
        assert!(said.contains(limit), "{limit}: {said}");
    }
    let variables: BTreeMap<String, String> = lines("variable")
        .iter()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        // Of the shell itself.
        .filter(|(name, _)| !["PWD", "SHLVL", "_", "OLDPWD"].contains(&&name[..]))
        .collect();
    let mut wanted = vec!["BASH_ENV", "KEY", "TMPDIR"];
    if network {
        wanted.extend([
            "ALL_PROXY",
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "NO_PROXY",
            "all_proxy",
            "http_proxy",
            "https_proxy",
            "no_proxy",
        ]);
        let url = format!("http://stockade:{TOKEN}@127.0.0.1:4711");
        assert_eq!(variables["HTTPS_PROXY"], url);
        assert_eq!(variables["http_proxy"], url);
    }
    wanted.sort_unstable();
    assert_eq!(variables.keys().collect::<Vec<_>>(), wanted);
    assert_eq!(variables["TMPDIR"], format!("/private{temporary}"));
}

fn command_error(plan: &Plan, start: &Start<'_>) -> SeatbeltError {
    command(plan, start).expect_err("it is refused")
}

fn a_plan_that_does_not_fit_starts_nothing() {
    let (project, state) = (Scratch::new("other"), Scratch::new("none"));
    let profile = state.0.join("profile.sb");
    let own = own_program();
    let place = path(b"/private/tmp/stockade.x");
    let elsewhere = path(b"/private/tmp/a/b");
    let good = Start {
        sandbox_exec: &own,
        profile: &profile,
        temporary: &place,
        proxy: None,
    };
    let closed = plan(&project.0, None);
    let open = plan(&project.0, Some(NetworkPlan::nothing()));
    let mut other = closed.clone();
    other.steps.clear();
    assert!(matches!(
        command_error(&other, &good),
        SeatbeltError::OtherPlan
    ));
    let start = Start {
        temporary: &elsewhere,
        ..good
    };
    assert!(matches!(
        command_error(&closed, &start),
        SeatbeltError::Temporary(_)
    ));
    assert!(matches!(command_error(&open, &good), SeatbeltError::Proxy));
    for token in ["short", "0123456789abcdef0123456789abcde@"] {
        let start = Start {
            proxy: Some(Proxy { port: 1, token }),
            ..good
        };
        assert!(matches!(command_error(&open, &start), SeatbeltError::Token));
        assert!(matches!(
            command_error(&closed, &start),
            SeatbeltError::Proxy
        ));
    }
    assert!(!profile.exists());
}
