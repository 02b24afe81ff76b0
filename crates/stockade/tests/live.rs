//! Live mode: names in the workspace are made by a process outside, exactly as
//! the kernel would have made them, but for guarded ones, which are held.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use stockade_testkit::tools::compile_c_with;
use stockade_testkit::{Finished, World, has_program, skip};

const NAMES: &str = include_str!("clients/names.py");
/// Makes and removes the same few names in several threads; prints the errors that it met.
const COMING: &str = r#"
import errno, os, threading
met = set()
def often(*steps):
    for turn in range(1500):
        for step in steps:
            try:
                step()
            except OSError as error:
                met.add(errno.errorcode[error.errno])
def make(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
work = [
    (lambda: os.mkdir("d"), lambda: os.rmdir("d")),
    (lambda: make("d/f"), lambda: os.unlink("d/f")),
    (lambda: os.rename("d", "e"), lambda: os.rename("e", "d")),
    (lambda: os.mkdir("d/g"), lambda: os.symlink("f", "d/h"), lambda: os.rmdir("d/g")),
    (lambda: os.link("d/f", "d/i"), lambda: os.unlink("d/i"), lambda: os.unlink("d/h")),
]
threads = [threading.Thread(target=often, args=steps) for steps in work]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(" ".join(sorted(met)))
"#;

fn both(finished: &Finished) -> String {
    format!("stdout: {}\nstderr: {}", finished.stdout, finished.stderr)
}

/// Runs a script inside and returns what the report says was done to names.
fn report(world: &World, script: &str) -> (Finished, Value) {
    let path = world.home.join("report.json");
    let finished = world.run(&["--report", path.to_str().unwrap()], &["sh", "-c", script]);
    let text = fs::read_to_string(&path).expect("a report is written");
    let report: Value = serde_json::from_str(&text).unwrap();
    (finished, report["workspace"].clone())
}

/// The guarded names of a report with what became of them.
fn guarded(summary: &Value) -> BTreeMap<String, String> {
    summary["guarded"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| {
            let text = |key: &str| one[key].as_str().unwrap().to_owned();
            (text("path"), text("what"))
        })
        .collect()
}

/// Every name below a directory with its inode, size, mode and times.
fn listing(directory: &Path) -> BTreeMap<String, (u64, u64, u32, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let status = fs::symlink_metadata(&path).unwrap();
            if status.is_dir() {
                left.push(path.clone());
            }
            found.insert(
                path.to_string_lossy().into_owned(),
                (
                    status.ino(),
                    status.size(),
                    status.mode(),
                    status.mtime(),
                    status.mtime_nsec(),
                ),
            );
        }
    }
    found
}

#[test]
fn names_are_made_as_the_kernel_makes_them() {
    if !has_program("python3") {
        return skip("names_are_made", "python", "there is no python3 on PATH");
    }
    let world = World::new();
    world.write("project/names.py", NAMES);
    let outside = world.outside_sh("python3 names.py outside 2>&1").ok();
    let inside = world.sh("python3 names.py inside 2>&1");
    let (outside, inside): (Vec<&str>, Vec<&str>) =
        (outside.lines().collect(), inside.stdout.lines().collect());
    for (expected, found) in outside.iter().zip(&inside) {
        assert_eq!(found, expected);
    }
    assert_eq!(inside.len(), outside.len(), "{}", inside.join("\n"));
}

#[test]
fn b02_guarded_names_that_did_not_exist_are_held() {
    let world = World::new();
    world.write("project/.git/HEAD", "ref: refs/heads/main\n");
    fs::create_dir_all(world.project.join(".git/objects")).unwrap();
    fs::create_dir_all(world.project.join(".git/refs")).unwrap();
    let names = [
        ".claude/settings.json",
        ".vscode/tasks.json",
        ".mcp.json",
        ".envrc",
        ".git/hooks/pre-commit",
        ".github/workflows/x.yml",
        ".bashrc",
    ];
    for name in names {
        let directory = Path::new(name).parent().unwrap().to_str().unwrap();
        let make = match directory {
            "" => String::new(),
            directory => format!("mkdir -p {directory}; "),
        };
        // Each way to make a file of this name.
        let ways = [
            format!("{make}echo evil > {name}"),
            format!("{make}echo evil > ordinary; mv ordinary {name}"),
            format!("{make}echo evil > ordinary; ln ordinary {name}; rm -f ordinary"),
            format!("{make}echo evil > ordinary; ln -s $PWD/ordinary {name}; rm -f ordinary"),
            format!("{make}echo evil > ordinary; cp ordinary {name}; rm -f ordinary"),
            format!(
                "mkdir -p t/{directory}; cd t; echo evil > ordinary; tar cf a.tar --transform \
                 's,ordinary,{name},' ordinary; cd ..; tar xf t/a.tar; rm -rf t"
            ),
            format!("{make}dd if=/dev/zero of={name} count=1 2>/dev/null"),
            format!(
                "{make}cd ./{}; echo evil >> {}",
                if directory.is_empty() { "." } else { directory },
                Path::new(name).file_name().unwrap().to_str().unwrap()
            ),
        ];
        for way in ways {
            let (finished, summary) = report(&world, &way);
            let path = world.project.join(name);
            assert!(
                fs::symlink_metadata(&path).is_err(),
                "{name} was planted by {way}: {}",
                both(&finished)
            );
            let found = guarded(&summary);
            assert_eq!(
                found.get(path.to_str().unwrap()).map(String::as_str),
                Some("held"),
                "{way}: {found:?} {}",
                both(&finished)
            );
            assert!(
                finished.stderr.contains("stockade approvals"),
                "{}",
                both(&finished)
            );
        }
    }
}

#[test]
fn b01_renaming_what_is_above_sheds_nothing() {
    let world = World::new();
    world
        .outside_sh("git init -q . && git config user.email a@b && git config user.name n")
        .ok();
    let script = "mv .git g2; mkdir -p .git/hooks; echo evil > evil; cp evil .git/hooks/pre-commit; \
        mv g2/* .git; mkdir -p x/hooks; cp evil x/hooks/pre-commit; mv x/hooks .git/hooks; \
        mkdir w; cp evil w/tasks.json; mv w .vscode; mkdir -p gh/workflows; \
        cp evil gh/workflows/x.yml; mv gh .github; ln -s gh .github; ln -s w .vscode; true";
    let (finished, _) = report(&world, script);
    for planted in [
        ".git/hooks/pre-commit",
        ".vscode/tasks.json",
        ".github/workflows/x.yml",
    ] {
        assert!(
            !world.project.join(planted).exists(),
            "{planted}: {}",
            both(&finished)
        );
    }
    world.outside_sh("git status").ok();
}

/// What git runs in a project because of a setting that was there before.
#[test]
fn b01_what_the_configuration_leads_to_is_held() {
    let world = World::new();
    world
        .outside_sh(
            "git init -q . && git config core.hooksPath scripts && mkdir scripts tools && \
             git config include.path ../git.settings && touch git.settings && \
             git config filter.x.clean './tools/clean.sh %f' && touch tools/clean.sh",
        )
        .ok();
    let script = "echo x > scripts/pre-commit; echo x > scripts/lib.sh; echo x > tools/clean.sh; \
                  printf '[alias]\\nst = !x\\n' > git.settings; echo x > tools/other; \
                  mkdir new; echo x > new/post-merge; mv scripts old; mv new scripts";
    let (finished, summary) = report(&world, script);
    let names = guarded(&summary);
    for name in [
        "scripts/pre-commit",
        "scripts/lib.sh",
        "scripts/post-merge",
        "git.settings",
        "tools/clean.sh",
    ] {
        let path = world.project.join(name);
        let what = names.get(path.to_str().unwrap()).map(String::as_str);
        assert_eq!(what, Some("held"), "{name}: {names:?} {}", both(&finished));
    }
    let left = world.outside_sh("find . -path ./.git -prune -o -type f -size +0 -print");
    assert_eq!(left.ok(), "./tools/other");
    let ask = |world: &World| {
        let mut test = world.stockade();
        Finished::of(test.args(["test", "write", "scripts/x"]).output().unwrap())
    };
    let answer = ask(&world);
    assert!(
        answer.stdout.contains("core.hookspath"),
        "{}",
        both(&answer)
    );
    // Like every rule of ours it can be taken out by the user.
    let user = world.home.join(".config/stockade/stockade.toml");
    fs::create_dir_all(user.parent().unwrap()).unwrap();
    fs::write(
        user,
        "version = 1\n[filesystem]\nguard = [\"!scripts/**\"]\n",
    )
    .unwrap();
    let answer = ask(&world);
    assert!(!answer.stdout.contains("held"), "{}", both(&answer));
    world
        .sh("mkdir -p scripts; echo x > scripts/pre-commit")
        .ok();
    assert!(world.project.join("scripts/pre-commit").exists());
}

#[test]
fn b05_keys_that_run_something_are_held_and_harmless_ones_pass() {
    let world = World::new();
    world.outside_sh("git init -q .").ok();
    let keys = [
        ("core.fsmonitor", "./evil"),
        ("diff.external", "./evil"),
        ("core.sshCommand", "./evil"),
        ("core.pager", "./evil"),
        ("filter.x.clean", "./evil"),
        ("gpg.program", "./evil"),
        ("alias.status", "!./evil"),
        ("core.hooksPath", "hooks"),
    ];
    for (key, value) in keys {
        let (finished, summary) = report(&world, &format!("git config {key} '{value}'"));
        assert_ne!(finished.code, Some(0), "{key}: {}", both(&finished));
        let outside = world
            .outside_sh(&format!("git config {key} || echo none"))
            .ok();
        assert_eq!(outside, "none", "{key}");
        let held = &summary["guarded"][0];
        assert_eq!(held["what"], "held", "{summary}");
        assert!(
            held["keys"][0].as_str().unwrap().eq_ignore_ascii_case(key),
            "{summary}"
        );
    }
    let plain = world.sh("git config user.name me && git config branch.x.remote origin");
    plain.expect_code(0);
    assert_eq!(world.outside_sh("git config user.name").ok(), "me");
    // Written in place, and through a descriptor that is kept.
    let (finished, _) = report(
        &world,
        "printf '[core]\\n\\tfsmonitor = ./evil\\n' >> .git/config; cp .git/config c; \
         exec 9>>c; mv c .git/config; printf '[core]\\n\\tfsmonitor = ./evil\\n' >&9",
    );
    let fsmonitor = world
        .outside_sh("git config core.fsmonitor || echo none")
        .ok();
    assert_eq!(fsmonitor, "none", "{}", both(&finished));
}

#[test]
fn b04_directories_that_git_would_take_for_its_own() {
    let world = World::new();
    let evil = "printf '[core]\\n\\tfsmonitor = ./evil\\n'";
    let orders = [
        format!("mkdir -p r/objects r/refs; {evil} > r/config; echo 'ref: refs/heads/m' > r/HEAD"),
        format!("mkdir -p r/objects r/refs; echo 'ref: refs/heads/m' > r/HEAD; {evil} > r/config"),
        format!(
            "mkdir r; {evil} > r/config; echo 'ref: refs/heads/m' > r/HEAD; mkdir r/objects r/refs"
        ),
        format!(
            "mkdir -p r/objects r/refs; {evil} > c; echo 'ref: refs/heads/m' > r/HEAD; mv c r/config"
        ),
        format!(
            "mkdir -p r/objects r/refs; {evil} > c; echo 'ref: refs/heads/m' > r/HEAD; ln c r/config"
        ),
        format!(
            "mkdir -p r/objects r/refs; {evil} > c; echo 'ref: refs/heads/m' > r/HEAD; ln -s ../c r/config"
        ),
        format!(
            "mkdir -p r/objects r/refs; : > c; ln c r/config; echo 'ref: refs/heads/m' > r/HEAD; {evil} > c"
        ),
        format!(
            "mkdir -p r/objects r/refs; ln -s ../c r/config; echo 'ref: refs/heads/m' > r/HEAD; {evil} > c"
        ),
        format!(
            "mkdir -p r/objects r/refs; exec 9> r/config; echo 'ref: refs/heads/m' > r/HEAD; {evil} >&9"
        ),
    ];
    for order in orders {
        let (finished, _) = report(&world, &order);
        let runs = world
            .outside_sh("cd r && GIT_DIR=. git config core.fsmonitor || echo none")
            .ok();
        assert_eq!(runs, "none", "{order}: {}", both(&finished));
        world.outside_sh("rm -rf r c").ok();
    }
    let hooks = "git init -q --bare r.git && echo evil > r.git/hooks/post-receive; \
        git init -q sub; echo evil > sub/.git/hooks/pre-commit; mkdir -p .git/modules/s/hooks; \
        echo evil > .git/modules/s/hooks/pre-commit; true";
    let (finished, summary) = report(&world, hooks);
    finished.expect_code(0);
    assert_eq!(
        guarded(&summary)
            .values()
            .filter(|what| *what == "held")
            .count(),
        3,
        "{summary}"
    );
    for hook in [
        "r.git/hooks/post-receive",
        "sub/.git/hooks/pre-commit",
        ".git/modules/s/hooks/pre-commit",
    ] {
        assert!(!world.project.join(hook).exists(), "{hook}");
    }
    world
        .outside_sh("git -C r.git rev-parse --is-bare-repository")
        .ok();
}

#[test]
fn a06_legitimate_git_work_goes_through() {
    let world = World::new();
    world
        .outside_sh(
            "git init -q --bare ../remote.git; git init -q -b main . && git config user.email a@b && \
             git config user.name n && echo 1 > f && git add f && git commit -qm 1 && \
             git remote add origin $PWD/remote2.git && git init -q --bare remote2.git && \
             echo remote2.git >> .git/info/exclude",
        )
        .ok();
    let script = "set -e; git push -q -u origin main; git branch -q --track t main; git switch -q -c b; \
        echo 2 >> f; git commit -qam 2; git switch -q main; git merge -q b; echo 3 >> f; git stash -q; \
        git stash pop -q; git checkout -q -- .; git tag v1; git worktree add -q wt b; \
        (cd wt && echo w > w && git add w && git commit -qm w); git worktree list; \
        git clone -q . cloned; (cd cloned && git log --oneline); git init -q made; \
        (cd made && git config user.email a@b && git config user.name n && echo m > m && git add m && git commit -qm m); \
        git -c protocol.file.allow=always submodule --quiet add $PWD/made sub; git commit -qam sub; \
        git gc -q; rm -rf cloned; git status --porcelain; git fsck";
    let finished = world.sh(script);
    assert_eq!(finished.code, Some(0), "{}", both(&finished));
    let upstream = world
        .outside_sh("git rev-parse --abbrev-ref main@{upstream}")
        .ok();
    assert_eq!(upstream, "origin/main", "{}", both(&finished));
    assert_eq!(
        world.outside_sh("git config branch.t.merge").ok(),
        "refs/heads/main"
    );
    world.outside_sh("git fsck && git -C wt status").ok();
}

#[test]
fn a02_nothing_is_left_in_the_tree() {
    let world = World::new();
    world
        .outside_sh("git init -q . && mkdir -p src && echo x > src/x")
        .ok();
    let before = listing(&world.project);
    world.run(&[], &["true"]).expect_code(0);
    assert_eq!(listing(&world.project), before);
    let mut killed = world
        .stockade()
        .args(["run", "--", "sh", "-c", "echo 1 > /tmp/x; sleep 60"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let other = world.run(&[], &["sh", "-c", "sleep 0.3"]);
    other.expect_code(0);
    assert_eq!(listing(&world.project), before);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(listing(&world.project), before);
}

#[test]
fn a03_git_configuration_works_afterwards() {
    let world = World::new();
    world
        .outside_sh(
            "git init -q -b main . && git config user.email a@b && git config user.name n && \
             git commit -q --allow-empty -m 1 && git worktree add -q ../wt",
        )
        .ok();
    let mut inside = world.stockade();
    let status = inside
        .current_dir(world.home.join("wt"))
        .args(["run", "--", "true"])
        .status()
        .unwrap();
    assert!(status.success());
    world
        .outside_sh("git config a.b 1 && cd ../wt && git switch -q -c t")
        .ok();
}

#[test]
fn a10_links_at_guarded_names_stay_and_are_no_way_in() {
    let world = World::new();
    world.write("elsewhere/agents", "mine\n");
    symlink("/nonexistent/x", world.project.join(".bashrc")).unwrap();
    symlink("/nonexistent/x", world.home.join(".bashrc")).unwrap();
    fs::create_dir(world.project.join(".git")).unwrap();
    fs::create_dir(world.project.join("h")).unwrap();
    symlink("../h", world.project.join(".git/hooks")).unwrap();
    symlink("../elsewhere/agents", world.project.join("AGENTS.md")).unwrap();
    let finished = world.sh(
        "echo hi; echo evil > .bashrc; echo evil > .git/hooks/pre-commit; \
        echo evil > AGENTS.md; true",
    );
    assert_eq!(finished.stdout, "hi\n", "{}", both(&finished));
    assert!(
        fs::symlink_metadata(world.project.join(".bashrc"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(
        fs::read_to_string(world.home.join("elsewhere/agents")).unwrap(),
        "mine\n"
    );
}

#[test]
fn b37_what_runs_later_is_never_silent() {
    let world = World::new();
    let script = "mkdir -p .vscode .idea .github/workflows venv/bin .cargo; echo x > .vscode/tasks.json; \
        echo x > .envrc; echo '{}' > package.json; echo x > conftest.py; echo x > Makefile; \
        echo x > .github/workflows/x.yml; echo x > CLAUDE.md; echo x > AGENTS.md; \
        echo x > venv/pyvenv.cfg; echo x > venv/bin/python; echo x > .cargo/config.toml; \
        echo x > build.rs; echo x > ordinary.txt";
    let (finished, summary) = report(&world, script);
    let found = guarded(&summary);
    for name in [
        ".vscode/tasks.json",
        ".envrc",
        "package.json",
        "conftest.py",
        "Makefile",
        ".github/workflows/x.yml",
        "CLAUDE.md",
        "AGENTS.md",
        "venv/bin/python",
        ".cargo/config.toml",
        "build.rs",
    ] {
        let path = world.project.join(name);
        let path = path.to_str().unwrap();
        assert!(found.contains_key(path), "{name}: {found:?}");
        assert!(
            finished.stderr.contains(name),
            "{name}: {}",
            both(&finished)
        );
    }
    assert!(!found.keys().any(|path| path.ends_with("ordinary.txt")));
    assert!(world.project.join("ordinary.txt").exists());
    assert!(summary["created"].as_u64().unwrap() >= 8, "{summary}");
}

/// Two threads exchange the last letter of a path, a link and a directory while
/// a third opens it.
const RACE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include <sys/stat.h>
static volatile char path[64] = "xenvrc";
static volatile int over;
static void *letters(void *_) { while (!over) { path[0] = '.'; path[0] = 'x'; } return 0; }
static void *links(void *_) {
  while (!over) {
    symlink(".vscode", "way"); unlink("way"); mkdir("way", 0755); rmdir("way");
    rename("plain", ".vscode2"); rename(".vscode2", "plain");
  }
  return 0;
}
int main(int argc, char **argv) {
  pthread_t one, two;
  mkdir(".vscode", 0755); mkdir("plain", 0755);
  pthread_create(&one, 0, letters, 0); pthread_create(&two, 0, links, 0);
  time_t end = time(0) + atoi(argv[1]);
  while (time(0) < end) {
    int fd = open((char *)path, O_WRONLY | O_CREAT, 0644);
    if (fd >= 0) { write(fd, "evil\n", 5); close(fd); }
    fd = open("way/tasks.json", O_WRONLY | O_CREAT, 0644);
    if (fd >= 0) { write(fd, "evil\n", 5); close(fd); }
    rename("xenvrc", (char *)path); link("xenvrc", (char *)path);
    unlink("xenvrc"); unlink("way/tasks.json");
  }
  over = 1;
  pthread_join(one, 0); pthread_join(two, 0);
  return 0;
}
"#;

#[test]
fn b40_a_race_of_threads_plants_nothing() {
    let world = World::new();
    let Some(race) = compile_c_with(&world, "b40", "race", RACE, &["-pthread"]) else {
        return;
    };
    // The full minute is run by hand and in CI's long form.
    let seconds = std::env::var("STOCKADE_RACE_SECONDS").unwrap_or_else(|_| "8".into());
    let racing = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let end = std::time::Instant::now() + Duration::from_secs(seconds.parse().unwrap());
            let mut planted = std::collections::BTreeSet::new();
            while std::time::Instant::now() < end {
                for name in [".envrc", ".vscode/tasks.json"] {
                    if fs::symlink_metadata(world.project.join(name)).is_ok() {
                        planted.insert(name);
                    }
                }
            }
            planted
        });
        let finished = world.run(&[], &[race.to_str().unwrap(), &seconds]);
        assert_eq!(finished.code, Some(0), "{}", both(&finished));
        watch.join().unwrap()
    });
    assert!(racing.is_empty(), "{racing:?}");
    assert!(!world.project.join(".envrc").exists());
}

#[test]
fn b40_what_the_namer_does_not_decide_is_refused() {
    let world = World::new();
    // Paths that only their own process can look up go to the kernel, as a path
    // does that changes after it was read.
    let script = "for way in /proc/$$/cwd /proc/self/root$PWD /proc/1/root$PWD; do \
        for name in .envrc ordinary; do (echo evil > $way/$name); mkdir $way/d; \
        ln -s x $way/$name; echo x > /tmp/x; ln /tmp/x $way/$name; mkfifo $way/$name; \
        echo kept > kept; (: > $way/kept); mv kept $way/$name; rm $way/kept; done; done; true";
    let (finished, _) = report(&world, script);
    let left: Vec<_> = fs::read_dir(&world.project)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["kept"], "{}", both(&finished));
    assert_eq!(
        fs::read_to_string(world.project.join("kept")).unwrap(),
        "kept\n"
    );
    // What libraries name so works.
    let ways =
        world.sh("echo 1 > /proc/self/cwd/one; exec 9<.; echo 2 > /dev/fd/9/two; cat one two");
    assert_eq!(ways.stdout, "1\n2\n", "{}", both(&ways));
}

/// What is missing when a call is looked at may be there a moment later: the
/// program is told that it was missing, as without a sandbox, not refused.
#[test]
fn names_that_come_and_go_are_never_refused() {
    if !has_program("python3") {
        return skip("names_that_come_and_go", "python", "no python3 on PATH");
    }
    let world = World::new();
    world.write("project/coming.py", COMING);
    let finished = world.sh("python3 coming.py");
    assert_eq!(finished.code, Some(0), "{}", both(&finished));
    let allowed = ["ENOENT", "EEXIST", "ENOTEMPTY", "ENOTDIR", "EISDIR"];
    let told: Vec<&str> = finished.stdout.split_whitespace().collect();
    assert!(told.contains(&"ENOENT"), "nothing raced: {told:?}");
    let odd: Vec<_> = told.iter().filter(|one| !allowed.contains(one)).collect();
    assert!(odd.is_empty(), "{odd:?}");
}

#[test]
fn a_hold_is_approved_or_thrown_away() {
    let world = World::new();
    let (_, summary) = report(
        &world,
        "umask 022; echo one > .envrc; mkdir -p .vscode; echo two > .vscode/tasks.json",
    );
    let id = |name: &str| {
        summary["guarded"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["path"].as_str().unwrap().ends_with(name))
            .unwrap()["hold"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let stockade =
        |arguments: &[&str]| Finished::of(world.stockade().args(arguments).output().unwrap());
    let listed = stockade(&["approvals", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["holds"].as_array().unwrap().len(), 2, "{listed}");
    let shown = stockade(&["approvals", "show", &id(".envrc")]);
    assert!(shown.stdout.contains("one"), "{}", both(&shown));
    stockade(&["approvals", "allow", &id(".envrc")]).expect_code(0);
    assert_eq!(
        fs::read_to_string(world.project.join(".envrc")).unwrap(),
        "one\n"
    );
    let mode = fs::metadata(world.project.join(".envrc"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
    // What changed meanwhile is not overwritten.
    fs::write(world.project.join(".vscode/tasks.json"), "mine\n").unwrap();
    let refused = stockade(&["approvals", "allow", &id("tasks.json")]);
    assert_eq!(refused.code, Some(1), "{}", both(&refused));
    assert_eq!(
        fs::read_to_string(world.project.join(".vscode/tasks.json")).unwrap(),
        "mine\n"
    );
    stockade(&["approvals", "deny", &id("tasks.json")]).expect_code(0);
    let listed = stockade(&["approvals", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["holds"].as_array().unwrap().len(), 0, "{listed}");
}

#[test]
fn what_is_removed_under_a_guarded_name_can_be_put_back() {
    let world = World::new();
    world.outside_sh("git init -q . && echo hook > .git/hooks/pre-commit && mkdir -p .github/workflows && echo ci > .github/workflows/ci.yml").ok();
    let (_, summary) = report(
        &world,
        "rm .git/hooks/pre-commit; rm .github/workflows/ci.yml; echo new > .github/workflows/ci.yml",
    );
    let found = guarded(&summary);
    let path = |name: &str| world.project.join(name).to_str().unwrap().to_owned();
    assert_eq!(
        found
            .get(&path(".git/hooks/pre-commit"))
            .map(String::as_str),
        Some("removed"),
        "{summary}"
    );
    // Replaced: outside it is as it was, and the new content is held.
    assert_eq!(
        found
            .get(&path(".github/workflows/ci.yml"))
            .map(String::as_str),
        Some("held"),
        "{summary}"
    );
    assert_eq!(
        fs::read_to_string(path(".github/workflows/ci.yml")).unwrap(),
        "ci\n"
    );
    let allow = |what: &str| {
        let guarded = summary["guarded"].as_array().unwrap();
        let hold = guarded.iter().find(|one| one["what"] == what).unwrap();
        let id = hold["hold"].as_str().unwrap();
        let allow = world.stockade().args(["approvals", "allow", id]).output();
        Finished::of(allow.unwrap()).expect_code(0);
    };
    allow("removed");
    assert_eq!(
        fs::read_to_string(path(".git/hooks/pre-commit")).unwrap(),
        "hook\n"
    );
    // What went back is what the hold was made over: nobody changed it since.
    allow("held");
    assert_eq!(
        fs::read_to_string(path(".github/workflows/ci.yml")).unwrap(),
        "new\n"
    );
}

/// Neither a link over a removed file nor content that is too large leaves
/// anything behind but what was there.
#[test]
fn what_cannot_be_held_leaves_no_hold() {
    let world = World::new();
    world.write("project/.envrc", "mine\n");
    let (finished, summary) = report(
        &world,
        "rm .envrc && ln -s elsewhere .envrc; \
         head -c 17000000 /dev/zero > large && mv large .gitlab-ci.yml; test -e large",
    );
    assert_eq!(finished.code, Some(0), "{}", both(&finished));
    let path = |name: &str| world.project.join(name).to_str().unwrap().to_owned();
    assert_eq!(fs::read_to_string(path(".envrc")).unwrap(), "mine\n");
    let held: Vec<String> = guarded(&summary).into_keys().collect();
    assert_eq!(held, [path(".envrc")], "{summary}");
    let listed = world.stockade().args(["approvals", "--json"]).output();
    let listed: Value = serde_json::from_slice(&listed.unwrap().stdout).unwrap();
    assert_eq!(listed["holds"].as_array().unwrap().len(), 1, "{listed}");
}

#[test]
fn a01_git_sees_nothing_of_the_guard() {
    let world = World::new();
    world.outside_sh("git init -q . && echo x > x").ok();
    let finished = world.sh(
        "git add . && git status --porcelain && find . -type c && ls -A | grep -v -e '^x$' -e '^.git$'; true",
    );
    assert_eq!(finished.stdout, "A  x\n", "{}", both(&finished));
}

#[test]
fn runs_in_one_tree_at_once_lose_nothing() {
    const RUNS: usize = 20;
    let world = World::new();
    world
        .outside_sh("git init -q . && git config user.email a@b && git config user.name n")
        .ok();
    let script = "for turn in 1 2 3 4 5 6 7 8 9 10; do mkdir -p shared/$0; \
        echo $0-$turn > shared/$0/$turn.tmp; mv shared/$0/$turn.tmp shared/$0/$turn; \
        echo $0-$turn >> log; done; echo evil > .envrc; mv shared/$0 shared/done-$0";
    std::thread::scope(|scope| {
        for number in 0..RUNS {
            let world = &world;
            scope.spawn(move || {
                let finished = world.run(&[], &["sh", "-c", script, &number.to_string()]);
                assert_eq!(finished.code, Some(0), "{}", both(&finished));
            });
        }
        // The host works in the same tree meanwhile.
        for turn in 0..50 {
            fs::write(world.project.join("host"), turn.to_string()).unwrap();
            fs::rename(world.project.join("host"), world.project.join("host2")).unwrap();
        }
    });
    for number in 0..RUNS {
        for turn in 1..=10 {
            let path = world.project.join(format!("shared/done-{number}/{turn}"));
            assert_eq!(
                fs::read_to_string(path).unwrap(),
                format!("{number}-{turn}\n")
            );
        }
    }
    let lines = fs::read_to_string(world.project.join("log")).unwrap();
    assert_eq!(lines.lines().count(), RUNS * 10);
    assert!(!world.project.join(".envrc").exists());
    let listed = Finished::of(
        world
            .stockade()
            .args(["approvals", "--json"])
            .output()
            .unwrap(),
    );
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["holds"].as_array().unwrap().len(), RUNS);
}

#[test]
fn a_run_that_is_killed_at_any_moment_leaves_nothing_active() {
    const KILLS: u64 = 60;
    let world = World::new();
    world.outside_sh("git init -q .").ok();
    let script = "n=0; while :; do n=$((n+1)); echo $n > plain; mv plain moved; echo evil > .envrc; \
        mkdir -p .vscode; echo evil > .vscode/tasks.json; git config user.name $n; \
        git config core.pager ./evil; rm -f .envrc; done 2> /dev/null";
    for number in 0..KILLS {
        let mut run = world
            .stockade()
            .args(["run", "--quiet", "--", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(5 + number * 7 % 190));
        // Now the front, now the process that makes names, now the launcher.
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id()));
        let victim = children.ok().and_then(|children| {
            let all: Vec<u32> = children
                .split_ascii_whitespace()
                .filter_map(|number| number.parse().ok())
                .collect();
            all.get(number as usize % 3).copied()
        });
        match victim {
            Some(victim) if number % 3 != 0 => {
                let killed = std::process::Command::new("kill")
                    .args(["-9", &victim.to_string()])
                    .status();
                assert!(killed.is_ok());
                // Whoever of the three is gone, the others follow.
            }
            _ => run.kill().unwrap(),
        }
        run.wait().unwrap();
        for name in [".envrc", ".vscode/tasks.json"] {
            assert!(!world.project.join(name).exists(), "{number}: {name}");
        }
    }
    let pager = world.outside_sh("git config core.pager || echo none").ok();
    assert_eq!(pager, "none");
    world
        .outside_sh("rm -f .git/config.lock; git config user.name me && git status")
        .ok();
    let litter = world
        .outside_sh("find . -name '*stockade*' -o -type c -o -type b")
        .ok();
    assert_eq!(litter, "");
    // What is held can still be listed, whole.
    let listed = Finished::of(
        world
            .stockade()
            .args(["approvals", "--json"])
            .output()
            .unwrap(),
    );
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    for hold in listed["holds"].as_array().unwrap() {
        assert!(hold["path"].as_str().unwrap().starts_with('/'), "{hold}");
    }
}
