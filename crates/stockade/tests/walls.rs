//! What must be so behind every wall that this machine has: kills, zombies,
//! limits that are named, a second entry as the first, and that nothing is left.

mod machines;
#[allow(dead_code, reason = "other files use the rest")]
mod staying;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use staying::{Staying, signal, soon};
use stockade_sys::rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::machine::kernel_package;
use stockade_testkit::{
    Finished, World, has_program, is_root, processes_with, replace_program, skip,
};

/// The walls that can be had here.
fn walls() -> Vec<&'static str> {
    let mut walls = walls_on_this_kernel();
    if kernel_package("the microVM wall").is_some() {
        walls.push("microvm");
    }
    walls
}

/// Those without a machine. What takes hundreds of starts is done to machines in
/// `microvm_kills.rs`.
fn walls_on_this_kernel() -> Vec<&'static str> {
    let mut walls = vec!["process", "container"];
    match has_program("runsc") {
        true => walls.push("gvisor"),
        false => skip("gVisor's wall", "gvisor", "there is no runsc"),
    }
    walls
}

/// Gives the wall to every sandbox of a world. Only root can have control
/// groups everywhere; others say that they do without. Behind gVisor a live
/// workspace has no guard.
fn choose(world: &World, wall: &str) {
    if wall == "microvm" {
        let package = kernel_package("the microVM wall").unwrap();
        return machines::give_image(world, &package);
    }
    let weaken = match wall {
        "container" if !is_root() => "weaken = [\"PR7\"]\n",
        "gvisor" => "weaken = [\"FS4\", \"PR7\"]\n",
        _ => "",
    };
    world.policy(&format!("wall = \"{wall}\"\n{weaken}"));
}

/// A sandbox that stays behind each wall, one after the other.
fn behind_each(name: &str, check: impl Fn(&str, &Staying)) {
    behind(&walls(), name, check);
}

fn behind(walls: &[&str], name: &str, check: impl Fn(&str, &Staying)) {
    for &wall in walls {
        let staying = Staying::prepared(&format!("{name}-{wall}"), &[], |world| {
            choose(world, wall);
        });
        assert_eq!(staying.listed().unwrap()["wall"], wall);
        check(wall, &staying);
    }
}

/// What runs of a world could leave behind on the machine.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    mounts: usize,
    /// Files of sandboxes that stay.
    files: usize,
}

impl Traces {
    fn of(world: &World) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let home = world.home.to_str().unwrap();
        let sandboxes = world.home.join(".local/state/stockade/sandboxes");
        Self {
            mounts: mounts.lines().filter(|line| line.contains(home)).count(),
            files: fs::read_dir(sandboxes).map_or(0, Iterator::count),
        }
    }
}

/// Control groups that these processes made.
fn groups_of(makers: &[u32]) -> Vec<PathBuf> {
    let is_theirs = |name: &str| {
        let maker = name
            .strip_prefix("stockade-")
            .and_then(|name| name.split_once('-'));
        maker.is_some_and(|(_, pid)| makers.iter().any(|maker| *pid == maker.to_string()))
    };
    let mut found = Vec::new();
    let mut look = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = look.pop() {
        // Groups come and go meanwhile.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match is_theirs(&entry.file_name().to_string_lossy()) {
                true => found.push(entry.path()),
                false => look.push(entry.path()),
            }
        }
    }
    found
}

/// Removes what only another process can remove, and tells whether all is gone.
fn is_swept(world: &World, makers: &[u32], before: &Traces) -> bool {
    let swept = world.stockade().arg("gc").output().unwrap();
    assert!(swept.status.success(), "{swept:?}");
    Traces::of(world) == *before && groups_of(makers).is_empty()
}

#[test]
fn b39_a_second_entry_is_confined_as_the_first() {
    const SHOWN: &str = "grep -E '^(NoNewPrivs|Seccomp|Cap[A-Z][a-z]+|Groups|Uid|Gid|Shd|Cpus_allowed):' \
                         /proc/self/status; cat /proc/self/limits /proc/self/cgroup; id; umask; \
                         readlink /proc/self/ns/*; ls /proc/self/fd | wc -l; cat /proc/self/mountinfo";
    behind_each("b39", |wall, staying| {
        // gVisor gives its one user namespace another number each time.
        let shown = || {
            let shown = staying.sh(SHOWN).ok();
            let lines = shown
                .lines()
                .filter(|line| wall != "gvisor" || !line.starts_with("user:["));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        let first = shown();
        // What could be a copy of the policy, or a place of the product's.
        staying.sh(
            "for place in /run /tmp /etc /proc/1 $HOME/.config $HOME/.local; do \
             find $place -name '*stockade*' -writable -exec sh -c 'echo > \"$1\"' sh {} \\; ; done; \
             echo 'version = 1' > $HOME/.config/stockade/stockade.toml; ulimit -n 7; umask 0; true",
        );
        for _ in 0..3 {
            assert_eq!(shown(), first, "{wall}");
        }
        let policy = fs::read_to_string(staying.world.home.join(".config/stockade/stockade.toml"));
        assert!(policy.unwrap().contains(wall));
    });
}

#[test]
fn c05_a_kill_reaches_everything() {
    behind_each("c05", |wall, staying| {
        let mark = format!("mark-{}", staying.name);
        let scripts = [
            // Deaf, with children in sessions of their own, and one that writes.
            format!("trap '' TERM HUP; while :; do sleep 0.1; done; : {mark}"),
            format!(
                "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done; : {mark}' & wait; : {mark}"
            ),
            format!("while :; do echo {mark}; done"),
        ];
        let mut children: Vec<_> = scripts.iter().map(|script| staying.spawn(script)).collect();
        soon("they run", || staying.commands() == Some(3));
        let supervisor = staying.supervisor();
        staying.stockade(&["stop", &staying.name]).expect_code(0);
        for child in &mut children {
            drop(child.stdout.take());
            assert_ne!(child.wait().unwrap().code(), Some(0), "{wall}");
        }
        assert_eq!(processes_with(&mark), [0; 0], "{wall}");
        assert!(!Path::new(&format!("/proc/{supervisor}/root/.")).exists());
    });
}

#[test]
fn c06_zombies_do_not_pile_up() {
    behind_each("c06", |wall, staying| {
        let spawn = "i=0; while [ $i -lt 25 ]; do sleep 0.05 & i=$((i+1)); done";
        for _ in 0..20 {
            staying.sh(spawn).ok();
        }
        // The kernel tells the state of each after the closing bracket of its name.
        let zombies = "cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | grep -c '^Z'; true";
        soon("none is left", || staying.sh(zombies).ok() == "0");
        let mut waiting = staying.spawn("exec sleep 1000");
        assert_eq!(
            staying.sh("sh -c 'exit 7' & wait $!").code,
            Some(7),
            "{wall}"
        );
        signal(waiting.id(), Signal::TERM);
        assert_eq!(waiting.wait().unwrap().code(), Some(143), "{wall}");
    });
}

#[test]
fn c22_what_ran_out_is_named_and_the_host_is_not_touched() {
    if !has_program("python3") {
        return skip("c22", "python3", "it allocates the memory");
    }
    for wall in walls() {
        let world = World::new();
        choose(&world, wall);
        let cases: [(&[&str], &str, &str); 3] = [
            (
                &["--memory", "256MiB"],
                "python3 -c 'x = bytearray(1 << 30); print(len(x))'",
                "limits.memory",
            ),
            (
                &["--processes", "64"],
                "for i in $(seq 200); do sleep 5 & done; wait",
                "limits.processes",
            ),
            (
                &["--disk", "100MiB"],
                "dd if=/dev/zero of=/tmp/large bs=1M count=1000",
                "limits.disk",
            ),
        ];
        for (options, script, limit) in cases {
            // Its kernel does not tell of a process that it refuses (PR7, in part).
            if (wall, limit) == ("gvisor", "limits.processes") {
                continue;
            }
            let report = world.outside().join("report.json");
            let options = [options, &["--report", report.to_str().unwrap()]].concat();
            let run = world.run(&options, &["sh", "-c", script]);
            assert_ne!(run.code, Some(0), "{wall} {limit}: {run:?}");
            let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
            let said = report["limits_hit"].to_string() + &run.stderr;
            assert!(said.contains(limit), "{wall} {limit}: {report} {run:?}");
            assert!(!run.stderr.contains("network"), "{wall}: {}", run.stderr);
        }
    }
}

#[test]
fn c01_killed_supervisors_leave_nothing() {
    for wall in walls() {
        let world = World::new();
        choose(&world, wall);
        let mark = format!("c01-{wall}-{}", std::process::id());
        let start = |name: &str| {
            let mut command = world.stockade();
            let status = command.args(["start", "--quiet", "--name", name]).output();
            assert!(status.unwrap().status.success());
        };
        let names: Vec<String> = (0..5).map(|number| format!("{mark}-{number}")).collect();
        for name in &names {
            start(name);
            let mut command = world.stockade();
            let script =
                format!("setsid sh -c 'while :; do sleep 0.1; done; : {name}' >/dev/null 2>&1 &");
            let command = command.args(["exec", name, "--", "sh", "-c", &script]);
            assert!(command.stdin(Stdio::null()).status().unwrap().success());
        }
        let mut supervisors = Vec::new();
        for name in &names {
            supervisors.extend(processes_with(&format!("start --quiet --name {name}")));
        }
        assert_eq!(supervisors.len(), 5);
        let before = Traces {
            mounts: 0,
            files: 1,
        };
        for pid in &supervisors {
            let pid = Pid::from_raw(pid.cast_signed()).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
        }
        soon("no process is left", || processes_with(&mark).is_empty());
        soon("nothing is left", || {
            is_swept(&world, &supervisors, &before)
        });
        start(&names[0]);
        let stopped = world.stockade().args(["stop", &names[0]]).status().unwrap();
        assert!(stopped.success(), "{wall}");
    }
}

/// Kills of one run, at moments that spread over its whole life.
fn kills() -> u32 {
    // The machinery is the same for everybody.
    if is_root() { 100 } else { 30 }
}

#[test]
fn a_run_behind_any_wall_may_be_killed_at_any_moment() {
    for wall in walls_on_this_kernel() {
        let world = World::new();
        choose(&world, wall);
        let mark = format!("killed-{wall}-{}", std::process::id());
        let script =
            format!("sh -c 'while :; do sleep 0.1; done; : {mark}' & sleep 0.02; : {mark}");
        let command = || {
            let mut command = world.stockade();
            command.args(["run", "--", "sh", "-c", &script]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        };
        let before = Traces::of(&world);
        let begun = Instant::now();
        assert!(command().status().unwrap().success(), "{wall}");
        let life = begun.elapsed();
        let mut killed = Vec::new();
        for number in 0..kills() {
            let mut run = command().spawn().unwrap();
            killed.push(run.id());
            std::thread::sleep(life * number / kills());
            run.kill().unwrap();
            run.wait().unwrap();
        }
        soon("no process is left", || processes_with(&mark).is_empty());
        soon("nothing is left", || is_swept(&world, &killed, &before));
        let verified = world.stockade().args(["log", "--verify"]).output();
        assert!(verified.unwrap().status.success(), "{wall}");
    }
}

#[test]
fn two_hundred_sandboxes_come_and_go_without_a_trace() {
    behind(&walls_on_this_kernel(), "many", |wall, staying| {
        let open = |process: &str| fs::read_dir(format!("/proc/{process}/fd")).map(Iterator::count);
        staying.exec(&["true"]).expect_code(0);
        let supervisor = staying.supervisor().to_string();
        let before = Traces::of(&staying.world);
        // Others may not look into it.
        let descriptors = is_root().then(|| open(&supervisor).unwrap());
        let count = "ls -d /proc/[0-9]* | wc -l";
        let inside = staying.sh(count).ok();
        let other = format!("one-of-{}", staying.name);
        let mut supervisors = Vec::new();
        // A start behind gVisor takes a hundred times as long.
        let times = match (wall, is_root()) {
            ("gvisor", true) => 20,
            ("gvisor", false) => 5,
            (_, true) => 200,
            (_, false) => 40,
        };
        for _ in 0..times {
            staying
                .stockade(&["start", "--name", &other])
                .expect_code(0);
            staying
                .stockade(&["exec", &other, "--", "true"])
                .expect_code(0);
            staying.exec(&["true"]).expect_code(0);
            supervisors.extend(processes_with(&format!("start --name {other}")));
            staying.stockade(&["stop", &other]).expect_code(0);
        }
        assert_eq!(groups_of(&supervisors), Vec::<PathBuf>::new(), "{wall}");
        assert_eq!(Traces::of(&staying.world), before, "{wall}");
        assert_eq!(processes_with(&other), [0; 0], "{wall}");
        if let Some(descriptors) = descriptors {
            // The last connection is closed a moment after its caller has its answer;
            // the one before may have been counted.
            soon("its descriptors are closed", || {
                open(&supervisor).unwrap() <= descriptors
            });
        }
        soon("nothing more is left inside", || {
            staying.sh(count).ok() == inside
        });
    });
}

#[test]
fn a35_owner_mode_and_umask() {
    for wall in walls() {
        let world = World::new();
        choose(&world, wall);
        owner_mode_and_umask(&world, wall);
    }
}

fn owner_mode_and_umask(world: &World, wall: &str) {
    let uid = fs::metadata(&world.project).unwrap().uid();
    let git = has_program("git");
    if git {
        world
            .outside_sh(
                "git init -q . && git config user.email a@b && git config user.name a && \
            echo x > tracked && chmod +x tracked && git add tracked && git commit -qm x",
            )
            .expect_code(0);
    } else {
        skip("a35", "git", "there is no git on PATH");
    }
    for (mask, file, directory, program) in [
        ("077", 0o600, 0o700, 0o700),
        ("022", 0o644, 0o755, 0o755),
        ("027", 0o640, 0o750, 0o750),
    ] {
        let sandboxed = "umask; echo a > n; mkdir d; echo a > p; chmod +x p; echo a > d/deep; \
            if test -d .git; then rm tracked; git checkout -q -- . && git status --porcelain -uno; fi";
        let script = format!("umask {mask}; exec \"$0\" run -- sh -c '{sandboxed}'");
        let mut command = world.stockade();
        let program_name = command.get_program().to_owned();
        command = replace_program(&command, "sh");
        command
            .args(["-c", &script])
            .arg(program_name)
            .stdin(Stdio::null());
        assert_eq!(
            Finished::of(command.output().unwrap()).ok(),
            format!("0{mask}")
        );
        for (name, mode) in [
            ("n", file),
            ("d", directory),
            ("p", program),
            ("d/deep", file),
        ] {
            let metadata = fs::metadata(world.project.join(name)).unwrap();
            assert_eq!(
                metadata.permissions().mode() & 0o7777,
                mode,
                "{name} under {mask} behind {wall}"
            );
            assert_eq!(metadata.uid(), uid, "{name}");
        }
        if git {
            let mode = fs::metadata(world.project.join("tracked")).unwrap().mode();
            assert_eq!(
                mode & 0o7777,
                program,
                "the checkout keeps the executable bit"
            );
            assert_eq!(world.outside_sh("git status --porcelain -uno").ok(), "");
        }
        world.outside_sh("rm -r n d p").expect_code(0);
    }
}
