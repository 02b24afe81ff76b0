//! Twenty runs at once in one tree, in each mode, while somebody outside edits
//! the same files: every file is one writer's whole version, nothing is lost,
//! what conflicts is said and waits, and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use stockade_testkit::tools::soon;
use stockade_testkit::{Finished, World, has_program, processes_with, skip};

const RUNS: usize = 20;
/// Lines of one version of a shared file.
const LINES: usize = 2000;
/// Files that every run replaces; the last one is replaced from outside too.
const SHARED: [&str; 3] = ["shared0", "shared1", "edited"];

/// Replaces each shared file as a whole, adds lines to one file, and makes files
/// of its own. `$1` is the number of the run.
const WORK: &str = r#"
echo ready; read go || exit 7
for i in 0 1 2; do
  for f in shared0 shared1 edited; do
    yes "run $1 version $i" | head -n 2000 > $f.$1.new && mv -f $f.$1.new $f || exit 8
  done
  echo "run $1 line $i" >> log || exit 9
  echo "run $1 version $i" > own/$1-$i || exit 10
done
"#;

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

fn json(world: &World, arguments: &[&str]) -> Value {
    serde_json::from_str(&stockade(world, arguments).ok()).unwrap()
}

fn prepared() -> World {
    let world = World::new();
    for name in SHARED {
        world.write(format!("project/{name}"), whole("start", 0));
    }
    world.write("project/log", "start\n");
    fs::create_dir(world.project.join("own")).unwrap();
    world
}

fn whole(writer: &str, version: usize) -> String {
    format!("{writer} version {version}\n").repeat(LINES)
}

/// The line of which a file wholly consists.
#[track_caller]
fn version(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), LINES, "{path:?}");
    lines.dedup();
    assert_eq!(lines.len(), 1, "{path:?} is of several: {lines:?}");
    lines[0].to_owned()
}

/// Every name of the project, sorted.
fn names(world: &World) -> Vec<String> {
    let found = world.outside_sh("find . -mindepth 1 -name .git -prune -o -mindepth 1 -print");
    let mut names: Vec<String> = found.ok().lines().map(|one| one[2..].to_owned()).collect();
    names.sort();
    names
}

/// What the product keeps in the home, but for the log and what is in caches.
fn kept(world: &World) -> String {
    world
        .outside_sh("cd && find .local .config -mindepth 1 | grep -v /log | sort")
        .ok()
}

/// Runs that have all started, and wait for the word to go.
struct Crowd {
    children: Vec<Child>,
    needle: String,
}

impl Crowd {
    fn assemble(world: &World, mode: &str, script: &str) -> Self {
        let needle = format!("crowd-{mode}-{}", world.outside().display());
        let children: Vec<Child> = (0..RUNS)
            .map(|number| {
                let number = number.to_string();
                let mut command = world.stockade();
                command
                    .args(["run", "--workspace", mode, "--", "sh", "-c", script])
                    .args([&needle, &number])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        let mut crowd = Self { children, needle };
        for child in &mut crowd.children {
            let mut line = String::new();
            // Unbuffered beyond the line: nothing else comes before the word.
            let mut output = BufReader::with_capacity(1, child.stdout.as_mut().unwrap());
            output.read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
        }
        crowd
    }

    /// Lets all go at once, edits meanwhile, and returns how each ended.
    fn go(mut self, meanwhile: impl Fn(usize) + Sync) -> Vec<Finished> {
        for child in &mut self.children {
            child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        }
        let children = self.children;
        let ended = while_editing(meanwhile, || {
            let outputs = children.into_iter().map(Child::wait_with_output);
            outputs
                .map(|output| Finished::of(output.unwrap()))
                .collect()
        });
        assert!(
            soon(|| processes_with(&self.needle).is_empty()),
            "{:?}",
            processes_with(&self.needle)
        );
        ended
    }
}

/// Calls `edit` again and again while `work` goes on, with a number that
/// grows, and at least once.
fn while_editing<T>(edit: impl Fn(usize) + Sync, work: impl FnOnce() -> T) -> T {
    /// Also when `work` panics.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let over = AtomicBool::new(false);
    let turns = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while turns.load(Ordering::SeqCst) == 0 || !over.load(Ordering::SeqCst) {
                edit(turns.load(Ordering::SeqCst));
                turns.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let _over = Over(&over);
        assert!(soon(|| turns.load(Ordering::SeqCst) > 0));
        work()
    })
}

/// Somebody outside who replaces a file as editors do, and adds to another.
struct Editor<'a> {
    world: &'a World,
    /// How many edits there were.
    count: AtomicUsize,
}

impl<'a> Editor<'a> {
    fn of(world: &'a World) -> Self {
        Self {
            world,
            count: AtomicUsize::new(0),
        }
    }

    fn edit(&self) {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let new = self.world.outside().join("new");
        fs::write(&new, whole("host", number)).unwrap();
        fs::rename(new, self.world.project.join("edited")).unwrap();
        let mut log = fs::OpenOptions::new();
        let mut log = log
            .append(true)
            .open(self.world.project.join("log"))
            .unwrap();
        log.write_all(format!("host line {number}\n").as_bytes())
            .unwrap();
    }

    fn edits(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// Each line once: how many there are of each writer.
#[track_caller]
fn lines_of(log: &str) -> BTreeMap<String, usize> {
    let mut seen = BTreeSet::new();
    let mut counts = BTreeMap::new();
    for line in log.lines() {
        assert!(seen.insert(line), "{line} is there twice");
        let writer = line.split(" line ").next().unwrap();
        *counts.entry(writer.to_owned()).or_default() += 1;
    }
    counts
}

#[track_caller]
fn nothing_is_mounted(world: &World) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let own = world.outside().to_str().unwrap();
    assert!(!mounts.contains(own), "{mounts}");
}

fn all_went_well(ended: &[Finished]) {
    for one in ended {
        assert_eq!(one.code, Some(0), "{}\n{}", one.stdout, one.stderr);
    }
}

#[test]
fn twenty_live_runs_lose_nothing() {
    let world = prepared();
    // What the product keeps after one run is what it keeps after twenty more.
    world.sh("touch x && rm x").expect_code(0);
    let before = kept(&world);
    let editor = Editor::of(&world);
    let ended = Crowd::assemble(&world, "live", WORK).go(|_| editor.edit());
    all_went_well(&ended);
    for name in SHARED {
        version(&world.project.join(name));
    }
    let log = fs::read_to_string(world.project.join("log")).unwrap();
    let lines = lines_of(&log);
    assert_eq!(lines["host"], editor.edits());
    let mut expected: Vec<String> = ["log", "own"]
        .iter()
        .chain(&SHARED)
        .map(|&s| s.into())
        .collect();
    for number in 0..RUNS {
        assert_eq!(lines[&format!("run {number}")], 3);
        for turn in 0..3 {
            let own = world.project.join(format!("own/{number}-{turn}"));
            let text = fs::read_to_string(own).unwrap();
            assert_eq!(text, format!("run {number} version {turn}\n"));
            expected.push(format!("own/{number}-{turn}"));
        }
    }
    expected.sort();
    assert_eq!(names(&world), expected);
    assert_eq!(kept(&world), before);
    let holds = json(&world, &["approvals", "--json"]);
    assert_eq!(holds["holds"].as_array().unwrap().len(), 0, "{holds}");
    nothing_is_mounted(&world);
}

/// Commits of all in one repository: git's own locks work between sandboxes and
/// with git outside.
#[test]
fn twenty_live_runs_commit_in_one_repository() {
    if !has_program("git") {
        return skip("twenty_live_runs_commit", "git", "no git on PATH");
    }
    const COMMIT: &str = "commit() { echo \"$1\" > \"r$1\" || return 1; tries=0; \
         until git add \"r$1\" && git commit -qm \"of $1\" -- \"r$1\"; do \
         tries=$((tries+1)); [ $tries -lt 3000 ] || return 1; sleep 0.02; done; }; ";
    let world = World::new();
    world
        .outside_sh(
            "git init -q -b main . && git config user.email a@b && git config user.name n && \
             git config gc.auto 0 && git commit -q --allow-empty -m start",
        )
        .ok();
    let script = format!("{COMMIT} echo ready; read go; commit \"$1\" 2> /tmp/tries || exit 8");
    let ended = Crowd::assemble(&world, "live", &script).go(|turn| {
        if turn < 5 {
            world
                .outside_sh(&format!("{COMMIT} commit host{turn} 2> /dev/null"))
                .expect_code(0);
        }
    });
    all_went_well(&ended);
    world.outside_sh("git fsck --strict").expect_code(0);
    assert_eq!(world.outside_sh("git status --porcelain").ok(), "");
    let subjects = world.outside_sh("git log --format=%s").ok();
    let mut subjects: Vec<&str> = subjects.lines().collect();
    subjects.sort_unstable();
    subjects.retain(|subject| !subject.starts_with("of host"));
    let mut wanted: Vec<String> = (0..RUNS).map(|number| format!("of {number}")).collect();
    wanted.push("start".into());
    wanted.sort();
    assert_eq!(subjects, wanted);
    for number in 0..RUNS {
        let shown = world.outside_sh(&format!("git show main:r{number}")).ok();
        assert_eq!(shown, number.to_string());
    }
    let locks = world
        .outside_sh("find . -name '*.lock' -o -name 'tmp_obj*'")
        .ok();
    assert_eq!(locks, "");
    nothing_is_mounted(&world);
}

#[test]
fn twenty_discarded_runs_leave_nothing() {
    let world = prepared();
    world
        .run(&["--workspace", "discard"], &["touch", "x"])
        .expect_code(0);
    let (before, there) = (kept(&world), names(&world));
    let editor = Editor::of(&world);
    let ended = Crowd::assemble(&world, "discard", WORK).go(|_| editor.edit());
    all_went_well(&ended);
    assert_eq!(names(&world), there);
    assert_eq!(version(&world.project.join("shared0")), "start version 0");
    assert_eq!(version(&world.project.join("shared1")), "start version 0");
    let last = format!("host version {}", editor.edits() - 1);
    assert_eq!(version(&world.project.join("edited")), last);
    let log = fs::read_to_string(world.project.join("log")).unwrap();
    assert_eq!(lines_of(&log)["host"], editor.edits());
    assert_eq!(log.lines().count(), editor.edits() + 1);
    assert_eq!(kept(&world), before);
    nothing_is_mounted(&world);
}

/// The waiting runs by their number.
fn waiting(world: &World) -> BTreeMap<usize, String> {
    let list = json(world, &["diff", "--list", "--json"]);
    let runs = list["runs"].as_array().unwrap().iter();
    runs.map(|run| {
        let number = run["command"].as_array().unwrap().last().unwrap();
        let number = number.as_str().unwrap().parse().unwrap();
        (number, run["id"].as_str().unwrap().to_owned())
    })
    .collect()
}

/// The paths that a run still changes.
fn changes(world: &World, id: &str) -> Vec<String> {
    let diff = json(world, &["diff", "--json", id]);
    let changes = diff["changes"].as_array().unwrap().iter();
    changes
        .map(|change| change["path"].as_str().unwrap().to_owned())
        .collect()
}

fn upper(world: &World, id: &str) -> PathBuf {
    let all = world.home.join(".local/state/stockade/workspaces");
    let workspace = fs::read_dir(all).unwrap().next().unwrap().unwrap();
    workspace.path().join("runs").join(id).join("upper")
}

/// What a run wrote to a shared file, and that its layer still has it.
#[track_caller]
fn still_holds(world: &World, id: &str, number: usize, names: &[&str]) {
    let changes = changes(world, id);
    for name in names {
        assert!(changes.iter().any(|change| change == name), "{changes:?}");
        let held = upper(world, id).join(name);
        match *name {
            "log" => {
                let log = fs::read_to_string(held).unwrap();
                assert_eq!(lines_of(&log)[&format!("run {number}")], 3);
            }
            _ => assert_eq!(version(&held), format!("run {number} version 2"), "{name}"),
        }
    }
}

#[test]
fn twenty_reviewed_runs_are_applied_but_for_what_conflicts() {
    let world = prepared();
    let editor = Editor::of(&world);
    let there = names(&world);
    let ended = Crowd::assemble(&world, "review", WORK).go(|_| editor.edit());
    all_went_well(&ended);
    assert_eq!(names(&world), there);
    assert_eq!(version(&world.project.join("shared0")), "start version 0");
    let waiting = waiting(&world);
    assert_eq!(waiting.len(), RUNS);
    for (&number, id) in &waiting {
        still_holds(&world, id, number, &["shared0", "shared1", "edited", "log"]);
    }
    while_editing(
        |_| editor.edit(),
        || {
            let half = RUNS / 2;
            one_after_the_other(&world, waiting.range(..half));
            all_together(&world, waiting.range(half..));
        },
    );
    // The first one's are there, and what the host wrote last.
    assert_eq!(version(&world.project.join("shared0")), "run 0 version 2");
    assert_eq!(version(&world.project.join("shared1")), "run 0 version 2");
    let last = format!("host version {}", editor.edits() - 1);
    assert_eq!(version(&world.project.join("edited")), last);
    let log = fs::read_to_string(world.project.join("log")).unwrap();
    assert_eq!(lines_of(&log)["host"], editor.edits());
    assert_eq!(log.lines().count(), editor.edits() + 1);
    let mut expected = there;
    for number in 0..RUNS {
        expected.extend((0..3).map(|turn| format!("own/{number}-{turn}")));
    }
    expected.sort();
    assert_eq!(names(&world), expected);
    for (&number, id) in &waiting {
        let conflicting: &[&str] = match number {
            0 => &["edited", "log"],
            _ => &["edited", "log", "shared0", "shared1"],
        };
        assert_eq!(changes(&world, id), conflicting, "{number}");
        still_holds(&world, id, number, conflicting);
        stockade(&world, &["discard", id]).expect_code(0);
        assert!(!upper(&world, id).exists());
    }
    assert_eq!(names(&world), expected);
    assert!(
        json(&world, &["diff", "--list", "--json"])["runs"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    nothing_is_mounted(&world);
}

type Runs<'a> = std::collections::btree_map::Range<'a, usize, String>;

/// Each is first refused as a whole, then applied but for what conflicts.
fn one_after_the_other(world: &World, runs: Runs<'_>) {
    for (&number, id) in runs {
        let before = names(world);
        let refused = stockade(world, &["apply", id]).expect_code(125);
        for part in ["  edited ", "  log ", "--skip-conflicts"] {
            assert!(refused.stderr.contains(part), "{}", refused.stderr);
        }
        assert_eq!(names(world), before);
        let all = ["shared0", "shared1", "edited", "log"];
        still_holds(world, id, number, &all);
        let applied = stockade(world, &["apply", "--skip-conflicts", "--json", id]).expect_code(1);
        let applied: Value = serde_json::from_str(&applied.stdout).unwrap();
        let conflicts = applied["conflicts"].as_array().unwrap().iter();
        let mut conflicts: Vec<&str> = conflicts.map(|one| one["path"].as_str().unwrap()).collect();
        conflicts.sort_unstable();
        match number {
            0 => assert_eq!(conflicts, ["edited", "log"]),
            _ => assert_eq!(conflicts, ["edited", "log", "shared0", "shared1"]),
        }
        assert_eq!(applied["left"], conflicts.len(), "{applied}");
        still_holds(world, id, number, &conflicts);
    }
}

fn all_together(world: &World, runs: Runs<'_>) {
    let children: Vec<Child> = runs
        .map(|(_, id)| {
            let mut command = world.stockade();
            command
                .args(["apply", "--skip-conflicts", id])
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for child in children {
        let applied = Finished::of(child.wait_with_output().unwrap()).expect_code(1);
        assert!(
            applied.stderr.contains("left as it was"),
            "{}",
            applied.stderr
        );
    }
}
