//! What compiling gives for fixed machines and policies.

use expect_test::{Expect, expect};

use super::fixtures::*;
use super::{CommandRequest, compile, credential_questions, granted_roots, questions};
use crate::caches::Cache;
use crate::decide::{Decision, Question, decide};
use crate::facts::{Ability, ControlGroups, Facts, HiddenMatch, PathKind};
use crate::guarantee::Guarantee;
use crate::plan::{Access, Action, Form, Hold, Plan};
use crate::policy::{Amount, HidePattern, Policy};

/// One line for each step, mask, guarantee that is not held in full, and note.
fn check(policy: &Policy, facts: &Facts, expected: Expect) -> Option<Plan> {
    let (plan, text) = match compiled(policy, facts) {
        Ok(plan) => {
            let text = summary(&plan);
            (Some(plan), text)
        }
        Err(refusals) => (
            None,
            refusals
                .iter()
                .map(|refusal| format!("{refusal}\n"))
                .collect::<String>(),
        ),
    };
    expected.assert_eq(&text);
    plan
}

fn summary(plan: &Plan) -> String {
    let mut lines: Vec<String> = plan.steps.iter().map(|step| step.name.clone()).collect();
    lines.extend(
        plan.masks
            .iter()
            .map(|mask| format!("mask {} {}", mask.path, mask.rule.id)),
    );
    for (guarantee, hold) in &plan.guarantees {
        if let Hold::Partial { lost, .. } = hold {
            lines.push(format!("{guarantee} loses: {lost}"));
        }
    }
    lines.extend(plan.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n") + "\n"
}

fn refused(policy: &Policy, facts: &Facts) -> Vec<String> {
    let refusals = compiled(policy, facts).expect_err("this must be refused");
    refusals
        .iter()
        .map(|refusal| format!("{}: {}", refusal.guarantee, refusal.reason))
        .collect()
}

#[test]
fn an_ordinary_user() {
    check(
        &policy(),
        &facts(),
        expect![[r#"
            supervisor.streams
            supervisor.namespaces
            supervisor.ids
            launcher.tie
            launcher.scrub
            launcher.not-dumpable
            network.loopback
            view.root
            view.link /dev/fd
            view.device /dev/full
            view.device /dev/null
            view.link /dev/ptmx
            view.terminals /dev/pts
            view.device /dev/random
            view.link /dev/stderr
            view.link /dev/stdin
            view.link /dev/stdout
            view.device /dev/tty
            view.device /dev/urandom
            view.device /dev/zero
            view.proc /proc
            launcher.verify-namespaces
            view.storage
            view.link /bin
            view.private /dev/shm
            view.bind /etc
            view.copy /etc/ssh
            view.private /home/u
            view.bind /home/u/project
            view.link /lib64
            view.bind /opt
            view.file /proc/meminfo
            view.private /run
            view.file /sys/devices/system/cpu/online
            view.file /sys/devices/system/cpu/possible
            view.file /sys/devices/system/cpu/present
            view.private /tmp
            view.bind /usr
            view.private /var/tmp
            view.masks
            view.enter
            enter.directory
            limit.resources
            limit.processors
            confine.no-nesting
            confine.no-new-privileges
            confine.capabilities
            confine.landlock
            confine.names
            confine.system-calls
            mask /etc/shadow credential.shadow
            mask /proc/key-users built-in.keys
            mask /proc/keys built-in.keys
            FS6 loses: in the workspace writes are limited only by the disk
            PR7 loses: limits are best effort, and of shared memory the growth on the whole machine counts: no delegated control group
        "#]],
    );
}

#[test]
fn root_with_control_groups() {
    let mut policy = policy();
    policy.limits.memory = Some((Amount::PercentOfMachine(50), rule("limits.memory")));
    let plan = check(
        &policy,
        &facts_of_root(),
        expect![[r#"
            supervisor.streams
            supervisor.namespaces
            supervisor.ids
            supervisor.control-group
            launcher.tie
            launcher.scrub
            launcher.not-dumpable
            network.loopback
            view.root
            view.link /dev/fd
            view.device /dev/full
            view.device /dev/null
            view.link /dev/ptmx
            view.terminals /dev/pts
            view.device /dev/random
            view.link /dev/stderr
            view.link /dev/stdin
            view.link /dev/stdout
            view.device /dev/tty
            view.device /dev/urandom
            view.device /dev/zero
            view.proc /proc
            launcher.verify-namespaces
            view.storage
            view.link /bin
            view.private /dev/shm
            view.bind /etc
            view.bind /home/u/project
            view.link /lib64
            view.bind /opt
            view.file /proc/meminfo
            view.private /root
            view.private /run
            view.file /sys/devices/system/cpu/online
            view.file /sys/devices/system/cpu/possible
            view.file /sys/devices/system/cpu/present
            view.private /tmp
            view.bind /usr
            view.private /var/tmp
            view.masks
            view.enter
            enter.directory
            limit.resources
            limit.processors
            confine.no-nesting
            confine.no-new-privileges
            confine.capabilities
            confine.landlock
            confine.names
            confine.system-calls
            mask /etc/shadow credential.shadow
            mask /proc/key-users built-in.keys
            mask /proc/keys built-in.keys
            FS6 loses: in the workspace writes are limited only by the disk
        "#]],
    )
    .unwrap();
    assert!(plan.limits.exact);
    assert_eq!(plan.limits.memory_bytes, Some(5 << 30));
}

#[test]
fn no_landlock_is_refused_unless_weakened_by_name() {
    let facts = Facts {
        landlock_abi: 0,
        ..facts()
    };
    check(
        &policy(),
        &facts,
        expect![[r#"
        FS2 cannot be kept by the process wall: the kernel has no Landlock, so the mounts are the only check of what is written
          remedy: boot a kernel with Landlock (5.13 or newer, `landlock` in its lsm= list), or add "FS2" to weaken
        PR6 cannot be kept by the process wall: the kernel has no Landlock, so /proc/self/fd can re-open a standard descriptor
          remedy: boot a kernel with Landlock (5.13 or newer, `landlock` in its lsm= list), or add "PR6" to weaken
    "#]],
    );
    let mut weakened = policy();
    weakened.weaken = vec![
        (Guarantee::FS2, rule("weaken[0]")),
        (Guarantee::PR6, rule("weaken[1]")),
    ];
    let plan = compiled(&weakened, &facts).unwrap();
    assert!(
        !plan
            .steps
            .iter()
            .any(|step| matches!(step.action, Action::Landlock(_)))
    );
    assert!(
        plan.notes
            .iter()
            .any(|note| note.starts_with("FS2 is weakened by stockade.toml:1"))
    );
}

#[test]
fn no_user_namespaces_names_the_other_form() {
    let no = Ability::No {
        reason: "AppArmor".to_owned(),
        remedy: "add a profile".to_owned(),
    };
    let facts = Facts {
        user_namespaces: no,
        ..facts()
    };
    check(
        &policy(),
        &facts,
        expect![[r#"
        FS1 cannot be kept by the process wall: user namespaces cannot be made: AppArmor
          remedy: add a profile; or accept less by name with process.form = "landlock-only"
        FS3 cannot be kept by the process wall: user namespaces cannot be made: AppArmor
          remedy: add a profile; or accept less by name with process.form = "landlock-only"
        PR3 cannot be kept by the process wall: user namespaces cannot be made: AppArmor
          remedy: add a profile; or accept less by name with process.form = "landlock-only"
        PR4 cannot be kept by the process wall: user namespaces cannot be made: AppArmor
          remedy: add a profile; or accept less by name with process.form = "landlock-only"
        PR8 cannot be kept by the process wall: user namespaces cannot be made: AppArmor
          remedy: add a profile; or accept less by name with process.form = "landlock-only"
        NT1 cannot be kept by the process wall: user namespaces cannot be made: AppArmor
          remedy: add a profile; or accept less by name with process.form = "landlock-only"
    "#]],
    );
}

#[test]
fn landlock_only_says_what_it_loses() {
    let mut facts = facts();
    facts.paths.get_mut(&path("/etc/shadow")).unwrap().mode = 0o640;
    let policy = Policy {
        form: Form::LandlockOnly,
        ..policy()
    };
    check(
        &policy,
        &facts,
        expect![[r#"
            supervisor.streams
            supervisor.fork
            launcher.tie
            launcher.scrub
            launcher.not-dumpable
            enter.directory
            limit.resources
            limit.processors
            confine.no-new-privileges
            confine.capabilities
            confine.landlock
            confine.names
            confine.system-calls
            FS1 loses: that a path exists is visible, and so are the processes in /proc
            FS3 loses: 1 credential places are withheld only by their permission bits
            FS6 loses: there are no private directories; only single files have a limit
            PR3 loses: processes outside can be seen, though not traced or signalled
            PR4 loses: a process that leaves its session can outlive the run
            PR7 loses: limits are best effort, and of shared memory the growth on the whole machine counts: no delegated control group
            PR8 loses: System V objects and message queues are shared with the user's own
            EP1 loses: there is no private /tmp, /dev/shm, /run or home
            note: this form has no namespaces: no private /tmp, no process table of its own, no loopback, no new terminals
        "#]],
    );
}

#[test]
fn landlock_only_cannot_hide() {
    let policy = Policy {
        form: Form::LandlockOnly,
        ..policy()
    };
    check(
        &policy,
        &facts(),
        expect![[r#"
        FS3 cannot be kept by the process wall: /etc/shadow stays visible: Landlock cannot hide it (password hashes of this machine)
          remedy: use process.form = "namespaces", grant a directory that does not hold it, or add "FS3" to weaken
    "#]],
    );
}

#[test]
fn a_nested_sandbox_costs_the_second_check() {
    let policy = Policy {
        nested_sandbox: Some(rule("process.nested_sandbox")),
        ..policy()
    };
    let plan = compiled(&policy, &facts()).unwrap();
    let is_landlock = |action: &Action| matches!(action, Action::Landlock(_));
    assert!(!plan.steps.iter().any(|step| is_landlock(&step.action)));
    let names: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert!(!names.contains(&"confine.no-nesting"));
    assert!(!names.contains(&"view.file /proc/meminfo"));
    for (guarantee, hold) in &plan.guarantees {
        if [Guarantee::FS2, Guarantee::PR6].contains(guarantee) {
            assert!(
                matches!(hold, Hold::Partial { .. }),
                "{guarantee}: {hold:?}"
            );
        }
    }
}

#[test]
fn what_the_home_grants_is_covered_where_credentials_are() {
    let mut policy = policy();
    policy.read.push(grant("filesystem.read[1]", "/home/u"));
    policy.hide.push(HidePattern {
        pattern: "**/.env".to_owned(),
        rule: rule("filesystem.hide[0]"),
    });
    let mut facts = facts();
    facts
        .hidden
        .push(HiddenMatch::new(path("/home/u/project/.env"), false, 0));
    facts.sockets.push(path("/home/u/data/daemon.sock"));
    let plan = compiled(&policy, &facts).unwrap();
    let masks: Vec<String> = plan
        .masks
        .iter()
        .map(|mask| format!("{} {}", mask.path, mask.rule.id))
        .collect();
    expect![[r#"
        /etc/shadow credential.shadow
        /home/u/.ssh credential.ssh
        /home/u/data/daemon.sock built-in.socket
        /home/u/project/.env filesystem.hide[0]
        /proc/key-users built-in.keys
        /proc/keys built-in.keys"#]]
    .assert_eq(&masks.join("\n"));
    // The home is the host's, so there is no private one.
    assert!(
        !plan
            .grants
            .iter()
            .any(|grant| grant.private && grant.path == path("/home/u"))
    );
}

/// Only where nothing can be written is a name left out; what another mount
/// needs, what can be written and the system's own is covered.
#[test]
fn names_are_left_out_of_what_can_only_be_read() {
    let mut policy = policy();
    policy.read.push(grant("filesystem.read[1]", "/home/u"));
    policy
        .write
        .push(grant("filesystem.write[1]", "/home/u/.gnupg/public"));
    policy.hide.push(HidePattern {
        pattern: "**/.env".to_owned(),
        rule: rule("filesystem.hide[0]"),
    });
    policy.weaken.push((Guarantee::FS3, rule("weaken[0]")));
    let mut facts = facts();
    for directory in ["/home/u/.gnupg", "/home/u/.gnupg/public"] {
        let fact = fact(PathKind::Directory, directory);
        facts.paths.insert(path(directory), fact);
    }
    facts.paths.insert(
        path("/home/u/.netrc"),
        fact(PathKind::File, "/home/u/.netrc"),
    );
    for hidden in ["/home/u/project/.env", "/home/u/data/.env"] {
        facts.hidden.push(HiddenMatch::new(path(hidden), false, 0));
    }
    let plan = compiled(&policy, &facts).unwrap();
    let places: Vec<String> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.action {
            Action::BindWithout { absent, .. } => Some((step, absent.iter().collect::<Vec<_>>())),
            Action::Masks { paths } => Some((step, paths.iter().map(|mask| &mask.path).collect())),
            _ => None,
        })
        .flat_map(|(step, paths)| {
            let name = &step.name;
            paths.into_iter().map(move |path| format!("{name}: {path}"))
        })
        .collect();
    expect![[r#"
        view.bind-without /home/u: /home/u/.netrc
        view.bind-without /home/u: /home/u/.ssh
        view.bind-without /home/u: /home/u/data/.env
        view.masks: /etc/shadow
        view.masks: /home/u/.gnupg
        view.masks: /home/u/project/.env
        view.masks: /proc/key-users
        view.masks: /proc/keys"#]]
    .assert_eq(&places.join("\n"));
}

#[test]
fn directories_above_what_is_covered_are_pinned_where_they_can_be_moved() {
    let mut policy = policy();
    policy
        .read
        .push(grant("filesystem.read[1]", "/home/u/data"));
    policy.hide.push(HidePattern {
        pattern: "x".to_owned(),
        rule: rule("filesystem.hide[0]"),
    });
    let mut facts = facts();
    for hidden in ["/home/u/project/a/b/key", "/home/u/data/c/key"] {
        facts.hidden.push(HiddenMatch::new(path(hidden), false, 0));
    }
    let plan = compiled(&policy, &facts).unwrap();
    let writable: Vec<String> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.action {
            Action::Bind { path, access, .. } if *access == Access::Write => Some(path.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(
        writable,
        [
            "/home/u/project",
            "/home/u/project/a",
            "/home/u/project/a/b"
        ]
    );
}

#[test]
fn what_the_next_run_is_set_up_by_is_kept() {
    let mut facts = facts();
    for (place, kind) in [
        ("/home/u/project/stockade.toml", PathKind::File),
        ("/home/u/project/.git", PathKind::Directory),
    ] {
        facts.paths.insert(path(place), fact(kind, place));
    }
    let binds = |plan: &Plan| -> Vec<String> {
        let below = |step: &crate::plan::Step| match &step.action {
            Action::Bind { path, access, .. } if path.to_string().contains("project/") => {
                Some(format!("{path} {access:?}"))
            }
            _ => None,
        };
        plan.steps.iter().filter_map(below).collect()
    };
    let file = path("/home/u/project/stockade.toml");
    let mut policy = policy();
    let plan = compiled(&policy, &facts).unwrap();
    let expected = [
        "/home/u/project/.git Write",
        "/home/u/project/stockade.toml Read",
    ];
    assert_eq!(binds(&plan), expected);
    assert!(matches!(
        decide(&plan, &Question::Write(file.clone())),
        Decision::Denied(_)
    ));
    // A person may say that it is to be changed.
    policy.write.push(grant(
        "filesystem.write[1]",
        "/home/u/project/stockade.toml",
    ));
    let plan = compiled(&policy, &facts).unwrap();
    assert!(matches!(
        decide(&plan, &Question::Write(file)),
        Decision::Permit { .. }
    ));
    policy.form = Form::LandlockOnly;
    policy.weaken.push((Guarantee::FS3, rule("weaken[0]")));
    let plan = compiled(&policy, &facts).unwrap();
    let lost = |(guarantee, hold): &(Guarantee, Hold)| {
        *guarantee == Guarantee::FS5 && matches!(hold, Hold::Partial { .. })
    };
    assert!(plan.guarantees.iter().any(lost));
}

#[test]
fn a_granted_credential_is_refused_with_its_reason() {
    let mut policy = policy();
    policy
        .read
        .push(grant("filesystem.read[1]", "/home/u/.ssh"));
    expect!["FS3: filesystem.read[1] (stockade.toml:1) grants /home/u/.ssh, which is a credential (ssh): private keys, and the hosts on which they work"].assert_eq(&refused(&policy, &facts()).join("\n"));
    policy.weaken.push((Guarantee::FS3, rule("weaken[0]")));
    let plan = compiled(&policy, &facts()).unwrap();
    assert!(
        !plan
            .masks
            .iter()
            .any(|mask| mask.path == path("/home/u/.ssh"))
    );
    assert!(
        plan.notes.iter().any(|note| note.contains("/home/u/.ssh")),
        "{:?}",
        plan.notes
    );
}

#[test]
fn places_that_are_never_a_workspace() {
    for place in [
        "/",
        "/usr",
        "/usr/lib/x",
        "/etc",
        "/dev/shm",
        "/proc",
        "/home",
        "/home/u",
        "/tmp",
        "/var",
        "/opt",
        "/root",
        "/root/x",
        "/run/user/1000",
    ] {
        let policy = Policy {
            workspace: path(place),
            write: Vec::new(),
            ..policy()
        };
        let mut facts = facts();
        facts
            .paths
            .insert(path(place), fact(PathKind::Directory, place));
        let request = CommandRequest {
            directory: path(place),
            ..request()
        };
        let refusals = compile(&policy, &facts, request).expect_err(place);
        assert!(
            refusals
                .iter()
                .any(|refusal| refusal.guarantee == Guarantee::FS2),
            "{place}"
        );
    }
    for place in [
        "/tmp/x",
        "/opt/x",
        "/home/u/x",
        "/usr/src/app",
        "/run/media/u/disk",
        "/work",
    ] {
        let policy = Policy {
            workspace: path(place),
            write: vec![grant("w", place)],
            ..policy()
        };
        let mut facts = facts();
        facts
            .paths
            .insert(path(place), fact(PathKind::Directory, place));
        let request = CommandRequest {
            directory: path(place),
            ..request()
        };
        assert_eq!(
            compile(&policy, &facts, request).map(|_| ()),
            Ok(()),
            "{place}"
        );
    }
}

#[test]
fn the_commands_directory_never_widens_what_is_written() {
    let mut facts = facts();
    link(
        &mut facts,
        "/home/u/project/out",
        "/home/u",
        "/home/u",
        PathKind::Directory,
    );
    for directory in [
        "/",
        "/home/u/data",
        "/home/u/project/out",
        "/home/u/project/gone",
    ] {
        let request = CommandRequest {
            directory: path(directory),
            ..request()
        };
        let refusals = compile(&policy(), &facts, request).expect_err(directory);
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        assert_eq!(refusals[0].guarantee, Guarantee::FS2);
    }
}

#[test]
fn links_of_a_run_are_not_followed_and_links_of_a_person_are() {
    let mut facts = facts();
    link(
        &mut facts,
        "/home/u/project/out",
        "/home/u/data",
        "/home/u/data",
        PathKind::Directory,
    );
    link(
        &mut facts,
        "/home/u/tools",
        "../../opt",
        "/opt",
        PathKind::Directory,
    );
    let mut inside = policy();
    inside
        .read
        .push(grant("filesystem.read[1]", "/home/u/project/out"));
    expect!["FS5: filesystem.read[1] (stockade.toml:1) grants /home/u/project/out through the link /home/u/project/out, which an earlier run could have made"].assert_eq(&refused(&inside, &facts).join("\n"));
    let mut outside = policy();
    outside
        .read
        .push(grant("filesystem.read[1]", "/home/u/tools"));
    let plan = compiled(&outside, &facts).unwrap();
    let steps: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert!(steps.contains(&"view.link /home/u/tools") && steps.contains(&"view.bind /opt"));
}

#[test]
fn a_dangling_link_is_skipped_and_said() {
    let mut facts = facts();
    link(
        &mut facts,
        "/home/u/gone",
        "/nowhere",
        "/nowhere",
        PathKind::File,
    );
    let fact = facts.paths.get_mut(&path("/home/u/gone")).unwrap();
    (fact.resolved, fact.resolved_kind) = (None, None);
    let mut policy = policy();
    policy
        .read
        .push(grant("filesystem.read[1]", "/home/u/gone"));
    let plan = compiled(&policy, &facts).unwrap();
    assert!(
        plan.notes
            .iter()
            .any(|note| note.contains("link to nothing")),
        "{:?}",
        plan.notes
    );
}

#[test]
fn every_refusal_is_reported_at_once() {
    let mut policy = policy();
    policy.read.push(grant("filesystem.read[1]", "/missing"));
    policy.read.push(grant("filesystem.read[2]", "/"));
    policy.write.push(grant("filesystem.write[1]", "/etc"));
    policy.limits.exact = Some(rule("limits.exact"));
    policy.limits.open_files = Some((1 << 30, rule("limits.open_files")));
    policy.limits.disk_bytes = Some((1 << 50, rule("limits.disk")));
    let facts = Facts {
        kernel: (5, 4),
        ..facts()
    };
    check(
        &policy,
        &facts,
        expect![[r#"
            FS1 cannot be kept by the process wall: kernel 5.4 has no mount_setattr, so no read-only view can be built
              remedy: use kernel 5.12 or newer
            FS1 cannot be kept by the process wall: filesystem.read[1] (stockade.toml:1) grants /missing, which does not exist
              remedy: create it, or remove the rule
            FS1 cannot be kept by the process wall: filesystem.read[2] (stockade.toml:1) grants the whole file system
              remedy: grant the directories that are needed
            FS2 cannot be kept by the process wall: filesystem.write[1] (stockade.toml:1) lets /etc be written: /etc belongs to the system
              remedy: name the directory below it that must be written
            FS6 cannot be kept by the process wall: limits.disk (stockade.toml:1) is more than this machine's memory of 10 GiB, where private directories live
              remedy: lower limits.disk
            PR7 cannot be kept by the process wall: limits.open_files (stockade.toml:1) asks for 1073741824 open files, but the hard limit here is 1048576
              remedy: lower it, or raise the hard limit (`ulimit -Hn`)
            PR7 cannot be kept by the process wall: limits.exact (stockade.toml:1) demands exact limits: no delegated control group
              remedy: run below `systemd-run --user --scope`; or remove limits.exact
        "#]],
    );
}

#[test]
fn the_environment_is_exactly_what_is_listed() {
    let mut policy = policy();
    policy
        .environment_set
        .push(("CI".to_owned(), "1".to_owned(), rule("environment.set")));
    let plan = compiled(&policy, &facts()).unwrap();
    let lines: Vec<String> = plan
        .command
        .environment
        .iter()
        .map(|(name, value)| {
            format!(
                "{}={}",
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value)
            )
        })
        .collect();
    expect![[r#"
        CI=1
        HOME=/home/u
        LC_ALL=C.UTF-8
        LOGNAME=u
        PATH=/usr/bin
        STOCKADE=1
        TMPDIR=/tmp
        TMPPREFIX=/tmp/zsh
        USER=u"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn who_commits_enters_a_private_home_and_no_other() {
    let mut facts = facts();
    facts.git_identity = vec![("user.name".to_owned(), b"U".to_vec())];
    let plan = compiled(&policy(), &facts).unwrap();
    assert!(summary(&plan).contains("view.settings /home/u/.gitconfig\n"));
    let question = Question::Read(path("/home/u/.gitconfig"));
    assert!(matches!(decide(&plan, &question), Decision::Permit { .. }));
    let mut granted = policy();
    granted.read.push(grant("filesystem.read[1]", "/home/u"));
    let plan = compiled(&granted, &facts).unwrap();
    assert!(!summary(&plan).contains("view.settings"));
}

#[test]
fn the_runtime_directory_is_private_when_its_variable_passes() {
    let mut facts = facts();
    facts
        .environment
        .insert(b"XDG_RUNTIME_DIR".to_vec(), b"/run/user/1000".to_vec());
    assert!(!summary(&compiled(&policy(), &facts).unwrap()).contains("/run/user"));
    let mut policy = policy();
    policy
        .environment_pass
        .push(("XDG_*".to_owned(), rule("environment.pass")));
    let plan = compiled(&policy, &facts).unwrap();
    assert!(summary(&plan).contains("view.private /run/user/1000\n"));
}

#[test]
fn questions_name_what_compiling_looks_up() {
    let mut policy = policy();
    policy.read.push(grant("filesystem.read[1]", "/home/u/a/b"));
    let asked = questions(
        &policy,
        &path("/home/u"),
        &facts().environment,
        &path("/home/u/project"),
        &[],
    );
    for wanted in [
        "/usr",
        "/home/u/project",
        "/home/u/a",
        "/home/u/a/b",
        "/etc/ssh",
    ] {
        assert!(asked.contains(&path(wanted)), "{wanted}");
    }
    assert!(asked.is_sorted() && !asked.contains(&path("/")));
}

#[test]
fn credentials_are_asked_about_where_something_is_granted() {
    let asked = credential_questions(&policy(), &facts());
    assert!(asked.paths.contains(&path("/etc/shadow")));
    assert!(!asked.paths.contains(&path("/home/u/.ssh")));
    // A link to the home opens it as the home itself would.
    let mut facts = facts();
    link(
        &mut facts,
        "/data",
        "/home/u",
        "/home/u",
        PathKind::Directory,
    );
    let mut policy = policy();
    policy.read.push(grant("filesystem.read[1]", "/data"));
    assert!(
        credential_questions(&policy, &facts)
            .paths
            .contains(&path("/home/u/.ssh"))
    );
}

#[test]
fn only_what_a_person_granted_is_searched() {
    let mut policy = policy();
    policy
        .read
        .push(grant("filesystem.read[1]", "/home/u/data"));
    policy.read.push(grant("filesystem.read[2]", "/home/u"));
    assert_eq!(granted_roots(&policy, &facts()), [path("/home/u")]);
}

#[test]
fn each_guarantee_rests_on_the_steps_that_name_it() {
    let plan = compiled(&policy(), &facts_of_root()).unwrap();
    for (guarantee, hold) in &plan.guarantees {
        let (Hold::Held { by, steps } | Hold::Partial { by, steps, .. }) = hold else {
            continue;
        };
        assert!(!by.is_empty(), "{guarantee}");
        for (index, step) in plan.steps.iter().enumerate() {
            // Where nothing leaves, what shows that shows the rest of it too.
            let shown = match guarantee {
                Guarantee::NT3 | Guarantee::NT4 | Guarantee::NT5 | Guarantee::NT6 => Guarantee::NT2,
                other => *other,
            };
            let rests = *guarantee == Guarantee::AU2 || step.holds.contains(&shown);
            assert_eq!(
                steps.contains(&index),
                rests,
                "{guarantee} and {}",
                step.name
            );
        }
        assert!(
            *guarantee == Guarantee::AU1 || !steps.is_empty(),
            "{guarantee}"
        );
    }
    assert_eq!(plan.guarantees.len(), Guarantee::ALL.len());
}

#[test]
fn without_the_pids_controller_limits_are_not_exact() {
    let mut facts = facts_of_root();
    facts.control_groups = ControlGroups::V1 {
        directories: [("memory".to_owned(), path("/m"))].into(),
    };
    assert!(!compiled(&policy(), &facts).unwrap().limits.exact);
}

/// Where the host's own cache is granted, programs are left to it.
#[test]
fn caches_are_one_mount_and_give_way_to_what_is_granted() {
    let mut policy = policy();
    policy.caches = Cache::KNOWN
        .iter()
        .map(|cache| (cache.clone(), rule("filesystem.caches")))
        .collect();
    policy
        .read
        .push(grant("filesystem.read[1]", "/home/u/go/pkg"));
    let mut facts = facts();
    facts.caches = Some(path("/home/u/.cache/stockade/0123/data"));
    for directory in ["/home/u/go", "/home/u/go/pkg"] {
        let fact = fact(PathKind::Directory, directory);
        facts.paths.insert(path(directory), fact);
    }
    let plan = compiled(&policy, &facts).unwrap();
    let binds: Vec<_> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.action {
            Action::Bind {
                source,
                path,
                access,
                ..
            } if source != path => Some((source.to_string(), path.to_string(), *access)),
            _ => None,
        })
        .collect();
    let [source, inside] = [
        "/home/u/.cache/stockade/0123/data",
        "/home/u/.cache/stockade",
    ];
    assert_eq!(
        binds,
        [(source.to_owned(), inside.to_owned(), Access::Write)]
    );
    let value = |name: &str| {
        let mut variables = plan.command.environment.iter();
        variables
            .find(|(found, _)| found == name.as_bytes())
            .map(|(_, value)| String::from_utf8(value.clone()).unwrap())
    };
    assert_eq!(value("GOMODCACHE"), None);
    assert_eq!(value("GOCACHE"), Some(format!("{inside}/go/build")));
    assert_eq!(value("npm_config_cache"), Some(format!("{inside}/npm")));
    let epoch = plan
        .guarantees
        .iter()
        .find(|(guarantee, _)| *guarantee == Guarantee::EP1);
    let Some((_, Hold::Held { by, .. })) = epoch else {
        panic!("EP1 is held");
    };
    assert!(
        by.contains("only caches are kept: cargo, npm, pip, go, ccache"),
        "{by}"
    );
    // Without caches there is nothing to keep.
    policy.caches.clear();
    assert_eq!(compiled(&policy, &facts).unwrap().caches, None);
}
