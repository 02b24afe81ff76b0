//! `stockade secret`: what is stored is found again by a run, and never shown.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use stockade_testkit::{World, has_program, skip};

const SECRET: &str = "s3cret-of-the-store-test";

#[test]
fn the_file_store_is_private_and_shows_no_value() {
    let world = World::new();
    let stored = with_input(
        &mut secret(&world, &["set", "github"]),
        &format!("{SECRET}\n"),
    );
    let errors = String::from_utf8_lossy(&stored.stderr).into_owned();
    assert!(stored.status.success(), "{errors}");
    assert!(errors.contains("no system keyring"), "{errors}");
    let file = world.home.join(".local/state/stockade/secrets.json");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(fs::read_to_string(&file).unwrap().contains(SECRET));
    check_list_and_removal(&world, "file", &[]);
    assert!(!fs::read_to_string(&file).unwrap().contains(SECRET));
}

#[test]
fn a_value_is_never_an_argument() {
    let world = World::new();
    let refused = with_input(&mut secret(&world, &["set", "github", SECRET]), "");
    assert_eq!(refused.status.code(), Some(125));
    let refused = with_input(&mut secret(&world, &["set", "../x"]), SECRET);
    assert_eq!(refused.status.code(), Some(125));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("no name for a secret"), "{text}");
    let empty = with_input(&mut secret(&world, &["set", "github"]), "");
    assert_eq!(empty.status.code(), Some(125));
}

#[test]
fn the_terminal_does_not_show_what_is_typed() {
    let name = "the_terminal_does_not_show_what_is_typed";
    if !has_program("script") {
        return skip(name, "script", "there is no script on PATH");
    }
    let world = World::new();
    let plain = secret(&world, &["set", "github"]);
    let mut line = plain.get_program().to_string_lossy().into_owned();
    for argument in plain.get_args() {
        line = format!("{line} {}", argument.to_string_lossy());
    }
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env_clear();
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("script starts");
    // Typed only once the question is there, when nothing is shown any more.
    let mut output = BufReader::new(child.stdout.take().expect("output"));
    let mut shown = Vec::new();
    output.read_until(b':', &mut shown).expect("the question");
    let mut input = child.stdin.take().expect("input");
    input
        .write_all(format!("x\x7f{SECRET}\r").as_bytes())
        .expect("it reads");
    output.read_until(b'.', &mut shown).expect("an answer");
    std::io::Read::read_to_end(&mut output, &mut shown).expect("the rest");
    drop(input);
    assert!(child.wait().expect("it ends").success());
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(
        shown.contains("Secret for github:") && !shown.contains(SECRET),
        "{shown}"
    );
    let file = world.home.join(".local/state/stockade/secrets.json");
    let stored = fs::read_to_string(file).expect("it is stored");
    assert!(stored.contains(&format!("\"{SECRET}\"")));
}

#[test]
fn the_system_keyring_is_used_when_there_is_one() {
    let name = "the_system_keyring_is_used_when_there_is_one";
    for program in ["dbus-daemon", "gnome-keyring-daemon"] {
        if !has_program(program) {
            return skip(name, "keyring", &format!("there is no {program} on PATH"));
        }
    }
    let world = World::new();
    let keyring = match Keyring::start(&world) {
        Ok(keyring) => keyring,
        Err(reason) => return skip(name, "keyring", &reason),
    };
    let variables = [("DBUS_SESSION_BUS_ADDRESS", keyring.address.as_str())];
    let mut set = secret(&world, &["set", "github"]);
    let stored = with_input(set.envs(variables), SECRET);
    let errors = String::from_utf8_lossy(&stored.stderr).into_owned();
    assert!(stored.status.success(), "{errors}");
    let answer = String::from_utf8_lossy(&stored.stdout).into_owned();
    assert!(answer.contains("system keyring"), "{answer}");
    let file = world.home.join(".local/state/stockade/secrets.json");
    assert!(!file.exists(), "nothing of it is in a file");
    check_list_and_removal(&world, "keyring", &variables);
}

fn check_list_and_removal(world: &World, place: &str, variables: &[(&str, &str)]) {
    let run = |arguments: &[&str]| {
        let mut command = secret(world, arguments);
        with_input(command.envs(variables.iter().copied()), "")
    };
    let text = run(&["list"]);
    let json = run(&["list", "--json"]);
    for listed in [&text, &json] {
        let shown = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(shown.contains("github") && shown.contains(place), "{shown}");
        assert!(!shown.contains(SECRET));
    }
    let entries: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(entries[0]["name"], "github");
    assert_eq!(entries[0]["place"], place);
    assert!(run(&["remove", "github"]).status.success());
    assert_eq!(run(&["remove", "github"]).status.code(), Some(1));
    let entries = run(&["list", "--json"]).stdout;
    assert_eq!(String::from_utf8_lossy(&entries).trim(), "[]");
}

fn secret(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.stockade();
    command.arg("secret").args(arguments);
    command
}

fn with_input(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("stockade starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // One that refuses its arguments does not read.
    let _unread = stdin.write_all(input.as_bytes()).is_err();
    drop(stdin);
    child.wait_with_output().expect("stockade ends")
}

/// A session bus with a keyring of its own, below the world's home.
struct Keyring {
    bus: Child,
    daemon: Child,
    address: String,
}

impl Keyring {
    fn start(world: &World) -> Result<Self, String> {
        let socket = world.home.join("bus");
        let mut bus = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--nopidfile", "--print-address=1"])
            .arg(format!("--address=unix:path={}", socket.display()))
            .env("HOME", &world.home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut address = String::new();
        let output = bus.stdout.take().ok_or("no output")?;
        let read = BufReader::new(output).read_line(&mut address);
        read.map_err(|error| error.to_string())?;
        let address = address.trim().to_owned();
        let daemon = Command::new("gnome-keyring-daemon")
            .args(["--foreground", "--unlock", "--components=secrets"])
            .arg(format!(
                "--control-directory={}",
                world.home.join("keyring").display()
            ))
            .env("HOME", &world.home)
            .env("XDG_DATA_HOME", world.home.join("data"))
            .env("DBUS_SESSION_BUS_ADDRESS", &address)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut keyring = Self {
            bus,
            daemon,
            address,
        };
        let mut password = keyring.daemon.stdin.take().ok_or("no input")?;
        password
            .write_all(b"password")
            .map_err(|error| error.to_string())?;
        drop(password);
        keyring.wait(world)?;
        Ok(keyring)
    }

    /// Until the daemon has its name on the bus: before, the bus could start
    /// another one, which nobody unlocks.
    fn wait(&mut self, world: &World) -> Result<(), String> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(60) {
            if let Ok(Some(status)) = self.daemon.try_wait() {
                return Err(format!("gnome-keyring-daemon does not run here ({status})"));
            }
            let owned = Command::new("dbus-send")
                .arg(format!("--bus={}", self.address))
                .args(["--print-reply", "--dest=org.freedesktop.DBus", "/"])
                .arg("org.freedesktop.DBus.NameHasOwner")
                .arg("string:org.freedesktop.secrets")
                .env("HOME", &world.home)
                .output()
                .map_err(|error| error.to_string())?;
            if String::from_utf8_lossy(&owned.stdout).contains("boolean true") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("gnome-keyring-daemon does not get ready".to_owned())
    }
}

impl Drop for Keyring {
    fn drop(&mut self) {
        for child in [&mut self.daemon, &mut self.bus] {
            let _gone = child.kill().is_err();
            let _reaped = child.wait().is_err();
        }
    }
}
