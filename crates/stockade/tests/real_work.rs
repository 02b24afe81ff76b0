//! Real programs inside the default policy with the set `toolchains`: each has
//! the same exit code and the same output as outside.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use stockade_testkit::{World, has_program, skip};

/// So that a program that hangs fails a test instead of stopping all.
const TIME_MAX: &str = "300s";

/// Runs `script` outside and inside, each in a world of its own that `prepare`
/// filled, compares, and returns what it printed.
#[track_caller]
fn same(prepare: impl Fn(&World), environment: &[(&str, OsString)], script: &str) -> String {
    let outside = {
        let world = World::new();
        prepare(&world);
        let mut command = Command::new("timeout");
        command.args([TIME_MAX, "sh"]);
        command
            .current_dir(&world.project)
            .env_clear()
            .env("HOME", &world.home);
        command.env("USER", "tester").env("LANG", "C.UTF-8");
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        finish(
            command
                .args(["-c", script])
                .envs(environment.iter().cloned()),
            &world,
        )
    };
    let inside = {
        let world = World::new();
        prepare(&world);
        let mut command = world.stockade();
        command.args([
            "run",
            "--quiet",
            "--read",
            "toolchains",
            "--wall-time",
            TIME_MAX,
        ]);
        command.args(["--", "sh", "-c", script]);
        finish(command.envs(environment.iter().cloned()), &world)
    };
    assert_eq!(outside, inside, "outside (left) and inside (right) differ");
    assert_eq!(outside.0, Some(0), "{outside:?}");
    outside.1
}

/// Exit code, standard output and standard error, without what differs from
/// run to run.
type Comparable = (Option<i32>, String, String);

fn finish(command: &mut Command, world: &World) -> Comparable {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .stdin(Stdio::null())
        .output()
        .expect("the command starts");
    (
        status.code(),
        comparable(&stdout, world.outside()),
        comparable(&stderr, world.outside()),
    )
}

/// The world's own directory and numbers with a point (durations) become
/// fixed.
fn comparable(output: &[u8], world: &Path) -> String {
    let world = world.to_str().expect("a world's path is ASCII");
    let text = String::from_utf8_lossy(output).replace(world, "/world");
    let mut result = String::with_capacity(text.len());
    for word in text.split_inclusive(|character: char| !"0123456789.".contains(character)) {
        let number = word.trim_end_matches(|character: char| !"0123456789.".contains(character));
        if number.len() > 1 && number.contains('.') {
            result.push('#');
            result.push_str(&word[number.len()..]);
        } else {
            result.push_str(word);
        }
    }
    result
}

/// Whether all programs are there; else says that the test is skipped.
#[track_caller]
fn needs(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !has_program(program));
    if let Some(program) = missing {
        skip(test, program, &format!("there is no {program} on PATH"));
    }
    missing.is_none()
}

/// What makes the Rust toolchain of this process found from another home.
fn rust(test: &str) -> Option<Vec<(&'static str, OsString)>> {
    if !needs(test, &["rustc", "cargo"]) {
        return None;
    }
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .expect("rustc starts");
    let sysroot = String::from_utf8(output.stdout).expect("a toolchain's path is UTF-8");
    let sysroot = Path::new(sysroot.trim());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        [sysroot.join("bin")]
            .into_iter()
            .chain(std::env::split_paths(&path)),
    );
    let mut environment = vec![("PATH", path.expect("a search path can be made longer"))];
    // RUSTUP_HOME/toolchains/NAME, as rustup lays it out.
    if let Some(toolchains) = sysroot.parent()
        && toolchains.ends_with("toolchains")
        && let Some(home) = toolchains.parent()
    {
        environment.push(("RUSTUP_HOME", home.into()));
    }
    Some(environment)
}

fn crate_with_vendored_dependency(world: &World) {
    let write = |name: &str, text: &str| world.write(world.project.join(name), text);
    write(
        "Cargo.toml",
        "[package]\nname = \"demo\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
         [dependencies]\nleaf = \"1\"\n",
    );
    write(
        "src/main.rs",
        "fn main() { println!(\"{}\", leaf::answer()); }\n\
         #[test]\nfn it_is_the_answer() { assert_eq!(leaf::answer(), 42); }\n",
    );
    // A build script starts another program while building.
    write(
        "build.rs",
        "fn main() { println!(\"cargo::rerun-if-changed=build.rs\"); }\n",
    );
    write(
        ".cargo/config.toml",
        "[source.crates-io]\nreplace-with = \"vendored\"\n\
         [source.vendored]\ndirectory = \"vendor\"\n",
    );
    write(
        "vendor/leaf/Cargo.toml",
        "[package]\nname = \"leaf\"\nversion = \"1.0.0\"\nedition = \"2021\"\n",
    );
    write("vendor/leaf/src/lib.rs", "pub fn answer() -> u32 { 42 }\n");
    write("vendor/leaf/.cargo-checksum.json", "{\"files\":{}}");
}

#[test]
fn cargo_builds_and_tests_with_a_vendored_dependency() {
    let Some(environment) = rust("cargo_builds_and_tests_with_a_vendored_dependency") else {
        return;
    };
    let script = "cargo build --offline --jobs 1 && target/debug/demo && \
                  cargo test --offline --jobs 1";
    let output = same(crate_with_vendored_dependency, &environment, script);
    assert!(
        output.starts_with("42\n") && output.contains("1 passed"),
        "{output}"
    );
}

#[test]
fn npm_test() {
    if !needs("npm_test", &["npm", "node"]) {
        return;
    }
    let prepare = |world: &World| {
        let package = r#"{"name":"demo","version":"1.0.0","scripts":{"test":"node --test"}}"#;
        world.write("project/package.json", package);
        world.write(
            "project/demo.test.js",
            "const test = require('node:test'); const assert = require('node:assert');\n\
             test('adds', () => assert.equal(1 + 1, 2));\n\
             test('reads itself', () => require('fs').readFileSync(__filename));\n",
        );
    };
    let output = same(
        prepare,
        &[],
        "npm test --no-update-notifier | grep -v duration_ms",
    );
    assert!(output.contains("pass 2"), "{output}");
}

#[test]
fn pytest_with_multiprocessing() {
    let test = "pytest_with_multiprocessing";
    let python = Command::new("/usr/bin/python3")
        .args(["-c", "import pytest"])
        .output();
    if !python.is_ok_and(|output| output.status.success()) {
        return skip(test, "pytest", "/usr/bin/python3 has no pytest");
    }
    let prepare = |world: &World| {
        world.write(
            "project/test_demo.py",
            "import multiprocessing\n\
             def square(number): return number * number\n\
             def fill(queue): queue.put('filled')\n\
             def test_pool():\n    \
                 with multiprocessing.Pool(2) as pool:\n        \
                     assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]\n\
             def test_queue():\n    \
                 queue = multiprocessing.Queue()\n    \
                 child = multiprocessing.Process(target=fill, args=(queue,))\n    \
                 child.start()\n    \
                 assert queue.get(timeout=60) == 'filled'\n    \
                 child.join()\n\
             def test_shared_memory():\n    \
                 from multiprocessing import shared_memory\n    \
                 memory = shared_memory.SharedMemory(create=True, size=4096)\n    \
                 memory.close()\n    \
                 memory.unlink()\n",
        );
    };
    let output = same(prepare, &[], "/usr/bin/python3 -m pytest --quiet");
    assert!(output.contains("3 passed"), "{output}");
}

/// Dates as variables of the script, so that the hashes are the same.
const GIT: &str = "export GIT_AUTHOR_DATE='2024-01-02T03:04:05Z' \
                   GIT_COMMITTER_DATE='2024-01-02T03:04:05Z'; set -e\n";

#[test]
fn git_status_add_commit_log() {
    if !needs("git_status_add_commit_log", &["git"]) {
        return;
    }
    let prepare = |world: &World| {
        world.write("project/file", "content\n");
        let script = "git init -q -b main . && git config user.name Tester && \
                      git config user.email tester@example.com";
        world.outside_sh(script).expect_code(0);
    };
    let script = "git status --short; git add file; git commit -m first; git status; \
                  git checkout -q -b other; echo more >> file; git commit -q -a -m second; \
                  git log --stat; git diff main other; git gc --quiet; git fsck";
    let output = same(prepare, &[], &format!("{GIT}{script}"));
    assert!(
        output.contains("second") && output.contains("+more"),
        "{output}"
    );
}

#[test]
fn git_takes_the_callers_name_and_nothing_else() {
    if !needs("git_takes_the_callers_name_and_nothing_else", &["git"]) {
        return;
    }
    let prepare = |world: &World| {
        world.write("project/file", "content\n");
        world.write(
            ".gitconfig",
            "[user]\n\tname = A \"B\" C # comment\n\temail = a@example.com\n\
             [init]\n\tdefaultBranch = trunk\n",
        );
    };
    let script = "git init -q; git add .; git commit -q -m first; git log; git branch; \
                  git config --global user.name changed; git config user.name";
    let output = same(prepare, &[], &format!("{GIT}{script}"));
    assert!(output.contains("A B C <a@example.com>"), "{output}");

    let world = World::new();
    world.write(
        ".gitconfig",
        "[user]\nname = A\n[credential]\nhelper = store\n[core]\nsshCommand = ssh -i key\n",
    );
    let inside = world.sh("cat ~/.gitconfig; echo lost > ~/.gitconfig").ok();
    assert_eq!(inside, "[user]\n\tname = \"A\"");
    let outside = std::fs::read_to_string(world.home.join(".gitconfig")).unwrap();
    assert!(outside.contains("helper = store"), "{outside}");
}

#[test]
fn make_of_a_c_program() {
    if !needs("make_of_a_c_program", &["make", "gcc"]) {
        return;
    }
    let prepare = |world: &World| {
        world.write(
            "project/Makefile",
            "demo: main.o other.o\n\tgcc -o $@ $^\nCFLAGS = -O2\n",
        );
        world.write("project/other.c", "int other(void) { return 42; }\n");
        world.write(
            "project/main.c",
            "#include <stdio.h>\nint other(void);\n\
             int main(void) { printf(\"%d\\n\", other()); return 0; }\n",
        );
    };
    let output = same(prepare, &[], "make && ./demo && make");
    assert!(
        output.contains("\n42\n") && output.contains("up to date"),
        "{output}"
    );
}

#[test]
fn node_with_worker_threads() {
    if !needs("node_with_worker_threads", &["node"]) {
        return;
    }
    let prepare = |world: &World| {
        world.write(
            "project/demo.js",
            "const { Worker, isMainThread, parentPort } = require('worker_threads');\n\
             if (isMainThread) {\n\
             let sum = 0, left = 4;\n\
             for (let i = 0; i < 4; i++)\n\
             new Worker(__filename).on('message', n => sum += n)\n\
             .on('exit', () => { if (--left == 0) console.log(sum); });\n\
             } else { parentPort.postMessage(require('crypto').pbkdf2Sync('a', 'b', 9, 8, 'sha1').length); }\n",
        );
    };
    assert_eq!(same(prepare, &[], "node demo.js"), "32\n");
}

#[test]
fn sqlite3() {
    if !needs("sqlite3", &["sqlite3"]) {
        return;
    }
    // The write-ahead log needs a shared mapping and file locks.
    let script = "sqlite3 demo.db 'pragma journal_mode=wal; create table t (n); \
                  insert into t values (1), (2); select sum(n) from t;' && \
                  sqlite3 demo.db 'pragma integrity_check'";
    assert_eq!(same(|_| (), &[], script), "wal\n3\nok\n");
}

#[test]
fn strace() {
    if !needs("strace", &["strace"]) {
        return;
    }
    let script = "strace -f true 2> trace; echo $?; tail -n 1 trace; \
                  strace -f -e trace=exit_group sh -c 'true & wait' 2>&1 | grep -c exited";
    assert_eq!(same(|_| (), &[], script), "0\n+++ exited with 0 +++\n2\n");
}

#[test]
fn tmux() {
    if !needs("tmux", &["tmux"]) {
        return;
    }
    let name = format!("stockade-test-{}", std::process::id());
    // The shell stays: with its last session the server would end as well.
    let script = format!(
        "t() {{ tmux -L {name} -f /dev/null \"$@\"; }}\n\
         t new-session -d sh && \
         t send-keys 'tty | grep -c ^/dev/pts/ > out; tmux -L {name} wait-for -S done' Enter && \
         t wait-for done && cat out; t kill-server"
    );
    assert_eq!(same(|_| (), &[], &script), "1\n");
}

#[test]
fn zsh_here_documents() {
    if !needs("zsh_here_documents", &["zsh"]) {
        return;
    }
    let script = "zsh -f -c 'cat <<END\nhere $((1 + 1))\nEND\ncat <(echo substituted); \
                  cat =(echo file)'";
    assert_eq!(same(|_| (), &[], script), "here 2\nsubstituted\nfile\n");
}

#[test]
fn java() {
    if !needs("java", &["java", "javac"]) {
        return;
    }
    let prepare = |world: &World| {
        world.write(
            "project/Demo.java",
            "class Demo { public static void main(String[] a) { System.out.println(\"java\"); } }\n",
        );
    };
    assert_eq!(same(prepare, &[], "javac Demo.java && java Demo"), "java\n");
}

#[test]
fn a_command_that_fails_fails_alike() {
    let world = World::new();
    for script in [
        "exit 3",
        "ls missing",
        "kill -TERM $$",
        "cat < missing",
        "false | true",
    ] {
        let outside = world.outside_sh(script);
        let inside = world.run(&["--quiet"], &["sh", "-c", script]);
        // A shell shows a signal as 128+n, and so does stockade.
        assert_eq!(
            outside.code.unwrap_or(143),
            inside.code.unwrap(),
            "{script}"
        );
        assert_eq!(
            (outside.stdout, outside.stderr),
            (inside.stdout, inside.stderr),
            "{script}"
        );
    }
}
