//! Wrong policies, places and commands: a clear error before anything runs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use stockade_testkit::{World, is_root, skip};

/// What a finished `stockade` left: exit code and standard error.
fn finish(mut command: Command) -> (Option<i32>, String) {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("stockade starts");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// `stockade run OPTIONS -- touch marker`, which must be refused with a
/// message that holds all of `parts`; nothing may have run.
#[track_caller]
fn refused(world: &World, command: Command, parts: &[&str]) {
    let (code, message) = finish(command);
    assert_eq!(code, Some(125), "{message}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
    assert!(
        message.contains("nothing was run") || message.starts_with("stockade: "),
        "{message}"
    );
    assert!(!message.contains("panicked"), "{message}");
    assert!(!world.project.join("marker").exists());
}

fn touch<S: AsRef<OsStr>>(world: &World, options: &[S]) -> Command {
    let mut command = world.stockade();
    command
        .arg("run")
        .args(options)
        .args(["--", "touch", "marker"]);
    command
}

const PLAIN: [&str; 0] = [];

#[test]
fn a_malformed_policy_shows_the_line() {
    for (text, parts) in [
        ("[filesystem\n", &["stockade.toml:2"][..]),
        (
            "[filesystem]\nread = [1]\n",
            &["stockade.toml:3", "read = [1]"],
        ),
        (
            "[limits]\nmemory = \"much\"\n",
            &["stockade.toml:3", "much"],
        ),
        (
            "[limits]\nmemory = -1\n[filesystem]\nread = 7\n",
            &[":3", ":5"],
        ),
        (
            "[network]\nallow = [\"http://x y\"]\n",
            &["stockade.toml:3"],
        ),
        ("wall = \"paper\"\n", &["paper"]),
        ("version = 1\n", &["version"]),
    ] {
        let world = World::new();
        world.policy(text);
        refused(&world, touch(&world, &PLAIN), parts);
    }
    let world = World::new();
    world.write(
        ".config/stockade/stockade.toml",
        b"version = 1\n# \xff\xfe\n",
    );
    refused(&world, touch(&world, &PLAIN), &["stockade.toml"]);
    let world = World::new();
    world.write("project/stockade.toml", "version = 99\n");
    refused(&world, touch(&world, &PLAIN), &["stockade.toml", "99"]);
}

#[test]
fn an_unknown_key_names_the_one_that_was_meant() {
    let world = World::new();
    world.policy("[filesystem]\nwirte = [\".\"]\n");
    refused(
        &world,
        touch(&world, &PLAIN),
        &["wirte", "`write`", "stockade.toml:3"],
    );
    let world = World::new();
    world.policy("[filesytem]\nwrite = [\".\"]\n");
    refused(&world, touch(&world, &PLAIN), &["filesytem", "filesystem"]);
}

#[test]
fn a_policy_of_ten_megabytes() {
    for name in [".config/stockade/stockade.toml", "project/stockade.toml"] {
        let world = World::new();
        world.write(
            name,
            format!("version = 1\n{}", "# filler\n".repeat(10 << 17)),
        );
        refused(
            &world,
            touch(&world, &PLAIN),
            &["stockade.toml", "larger than 1048576 bytes"],
        );
    }
}

#[test]
fn a_policy_that_is_no_file() {
    let world = World::new();
    fs::create_dir(world.project.join("stockade.toml")).unwrap();
    refused(
        &world,
        touch(&world, &PLAIN),
        &["stockade.toml", "regular file"],
    );
    let world = World::new();
    std::os::unix::fs::symlink("/etc/passwd", world.project.join("stockade.toml")).unwrap();
    refused(
        &world,
        touch(&world, &PLAIN),
        &["stockade.toml", "symbolic link"],
    );
}

#[test]
fn a_missing_path() {
    let world = World::new();
    refused(
        &world,
        touch(&world, &["--read", "/nowhere"]),
        &["/nowhere", "does not exist"],
    );
    refused(
        &world,
        touch(&world, &["--write", "/nowhere"]),
        &["/nowhere", "does not exist"],
    );
    refused(
        &world,
        touch(&world, &["--project", "/nowhere"]),
        &["/nowhere"],
    );
    refused(&world, touch(&world, &["-C", "/nowhere"]), &["/nowhere"]);
    world.policy("[filesystem]\nread = [\"~/gone\"]\n");
    refused(
        &world,
        touch(&world, &PLAIN),
        &["/home/gone", "does not exist", "stockade.toml:3"],
    );
}

#[test]
fn a_relative_path_that_leaves_the_project() {
    for path in ["../sibling", "a/../../sibling", ".."] {
        let world = World::new();
        fs::create_dir(world.home.join("sibling")).unwrap();
        world.policy(&format!("[filesystem]\nwrite = [{path:?}]\n"));
        refused(&world, touch(&world, &PLAIN), &[path]);
    }
    let world = World::new();
    fs::create_dir(world.home.join("sibling")).unwrap();
    refused(&world, touch(&world, &["-C", "../sibling"]), &["/sibling"]);
    std::os::unix::fs::symlink("../sibling", world.project.join("link")).unwrap();
    refused(&world, touch(&world, &["-C", "link"]), &["/sibling"]);
    // The project is granted already, and its links are not followed.
    let inside = world.run(&["--write", "link"], &["sh", "-c", "echo x > link/file"]);
    assert_ne!(inside.code, Some(0));
    assert!(!world.home.join("sibling/file").exists());
}

#[test]
fn a_path_that_is_not_utf8() {
    let world = World::new();
    let name = OsStr::from_bytes(b"caf\xe9");
    let directory = world.project.join(name);
    fs::create_dir(&directory).unwrap();
    // An option takes text: the policy could not state it either.
    let (code, message) = finish(touch(&world, &[OsStr::new("--read"), name]));
    assert_ne!(code, Some(0), "{message}");
    assert!(message.contains("UTF-8"), "{message}");
    assert!(!world.project.join("marker").exists());
    // A project, a directory and an argument are bytes.
    let mut command = world.stockade();
    command
        .args(["run", "--project"])
        .arg(&directory)
        .arg("-C")
        .arg(&directory);
    let (code, message) = finish({
        command
            .args(["--", "touch"])
            .arg(OsStr::from_bytes(b"made-\xff"));
        command
    });
    assert_eq!(code, Some(0), "{message}");
    assert!(directory.join(OsStr::from_bytes(b"made-\xff")).exists());
}

#[test]
fn a_directory_that_vanishes() {
    let world = World::new();
    let gone = world.home.join("gone");
    fs::create_dir(&gone).unwrap();
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("cd \"$1\" && rmdir \"$1\" && shift && exec \"$@\"")
        .arg("sh")
        .arg(&gone);
    shell
        .arg(stockade_testkit::binary())
        .args(["run", "--", "touch", "marker"]);
    shell
        .env_clear()
        .env("HOME", &world.home)
        .env("PATH", "/usr/bin:/bin");
    refused(
        &world,
        shell,
        &["current directory", "change to a directory that exists"],
    );
}

#[test]
fn a_directory_that_vanishes_while_the_command_runs_is_the_commands_affair() {
    let world = World::new();
    let script = "mkdir sub && cd sub && rmdir ../sub && exit 7";
    world.sh(script).expect_code(7);
}

#[test]
fn places_that_are_no_project() {
    for place in ["/", "/tmp", "/etc", "/usr", "/proc", "/dev"] {
        let world = World::new();
        let mut command = touch(&world, &["--project", place]);
        command.current_dir(place);
        refused(&world, command, &[place, "remedy"]);
    }
    let world = World::new();
    let home = world.home.to_str().unwrap();
    let mut command = touch(&world, &["--project", home]);
    command.current_dir(&world.home);
    refused(&world, command, &[home, "remedy"]);
    let mut command = touch(&world, &PLAIN);
    command.current_dir(&world.home);
    refused(&world, command, &[home, "remedy"]);
    assert!(!world.home.join("marker").exists());
}

#[test]
fn commands_that_cannot_be_executed() {
    let world = World::new();
    world.write("project/plain", "text");
    let program = world.write("project/foreign", "#!/nowhere/interpreter\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for (argv, code) in [
        (&["does-not-exist"][..], 127),
        (&["./does-not-exist"], 127),
        (&["/nowhere/at/all"], 127),
        (&[""], 127),
        (&["."], 126),
        (&["/usr"], 126),
        (&["./plain"], 126),
        (&["./foreign"], 127),
        (&["./plain/below"], 127),
    ] {
        let finished = world.run(&[], argv).expect_code(code);
        assert!(
            finished.stderr.contains("stockade: "),
            "{argv:?}: {}",
            finished.stderr
        );
    }
    let mut command = world.stockade();
    command.args(["run", "--"]);
    let (code, message) = finish(command);
    assert!(matches!(code, Some(2 | 125)), "{message}");
    assert!(message.contains("COMMAND"), "{message}");
}

#[test]
fn a_program_that_is_hidden_is_explained() {
    let world = World::new();
    let tool = world.write("tools/tool", "#!/bin/sh\necho tool\n");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", world.home.join("tools").display());
    let run = |options: &[&str]| {
        let mut command = world.stockade();
        command
            .env("PATH", &path)
            .arg("run")
            .args(options)
            .args(["--", "tool"]);
        finish(command)
    };
    let (code, message) = run(&[]);
    assert_eq!(code, Some(127), "{message}");
    assert!(message.contains("\"tool\" was not found"), "{message}");
    assert!(
        message.contains("to allow it") && message.contains("/home/tools/tool"),
        "{message}"
    );
    assert_eq!(run(&["--read", tool.to_str().unwrap()]).0, Some(0));
}

#[test]
fn a_long_argument_and_many() {
    let world = World::new();
    let long = "x".repeat(100_000);
    let inside = world.run(&[], &["sh", "-c", "printf %s \"$1\" | wc -c", "sh", &long]);
    assert_eq!(inside.ok(), "100000");
    let many: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    let mut argv = vec!["sh", "-c", "echo $#", "sh"];
    argv.extend(many.iter().map(String::as_str));
    assert_eq!(world.run(&[], &argv).ok(), "20000");
}

#[test]
fn a_home_that_cannot_be_used() {
    let world = World::new();
    let mut command = touch(&world, &PLAIN);
    command.env("HOME", "/nowhere");
    refused(&world, command, &["/nowhere"]);
    let mut command = touch(&world, &PLAIN);
    command.env("HOME", "relative");
    refused(&world, command, &["HOME"]);
    let world = World::new();
    let mut command = touch(&world, &PLAIN);
    // The account's own home is taken; it may or may not be usable here.
    command.env_remove("HOME").env_remove("USER");
    let (code, message) = finish(command);
    assert!(matches!(code, Some(0 | 125)), "{message}");
    assert!(!message.contains("panicked"), "{message}");
}

#[test]
fn a_home_of_someone_else() {
    let test = "a_home_of_someone_else";
    let world = World::new();
    let mut command = touch(&world, &PLAIN);
    if is_root() {
        let home = world.home.clone();
        std::os::unix::fs::chown(&home, Some(12345), Some(12345)).unwrap();
        refused(&world, command, &["is not a directory of user 0"]);
        return;
    }
    let Some(owned) = ["/root", "/var/lib"]
        .into_iter()
        .find(|place| Path::new(place).is_dir())
    else {
        return skip(test, "root-home", "there is no directory of root's");
    };
    command.env("HOME", owned);
    refused(&world, command, &[owned]);
}

#[test]
fn a_report_that_cannot_be_written() {
    let world = World::new();
    refused(
        &world,
        touch(&world, &["--report", "missing/report.json"]),
        &["missing/report.json"],
    );
    refused(
        &world,
        touch(&world, &["--report", "/proc/report.json"]),
        &["/proc/report.json"],
    );
    refused(&world, touch(&world, &["--report", "."]), &["cannot write"]);
}

#[test]
fn options_with_values_that_make_no_sense() {
    for (options, part) in [
        (["--memory", "lots"], "lots"),
        (["--memory", "0"], "not a size"),
        (["--processes", "-3"], "-3"),
        (["--cpus", "0"], "cpus"),
        (["--wall-time", "soon"], "soon"),
        (["--disk", "9999999TiB"], "disk"),
        (["--preset", "lenient"], "lenient"),
        (["--hide", "["], "["),
        (["--env", "=x"], "name of a variable"),
        (["--fail-step", "no.such.step"], "no.such.step"),
    ] {
        let world = World::new();
        let (code, message) = finish(touch(&world, &options));
        assert!(
            matches!(code, Some(2 | 125)),
            "{options:?}: {code:?} {message}"
        );
        assert!(
            message.contains(part) && !message.contains("panicked"),
            "{options:?}: {message}"
        );
        assert!(!world.project.join("marker").exists(), "{options:?}");
    }
}
