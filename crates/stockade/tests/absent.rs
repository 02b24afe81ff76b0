//! Below a directory that can only be read, credentials do not even have a
//! name; below one that can be written, they have no content.

use std::fs;
use std::time::{Duration, Instant};

use stockade_testkit::{Finished, World};

/// Each with the content `secret`.
const CREDENTIALS: [&str; 5] = [
    ".netrc",
    ".ssh/id_x",
    ".cargo/credentials.toml",
    ".config/gh/hosts.yml",
    ".bash_history",
];

/// What an ordinary home holds besides; `.local` has the log of runs.
const ORDINARY: &str = ".cargo\n.config\n.local\nnotes\nproject";

/// How long a command waits for another at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// A home with credentials, ordinary files beside them and this policy.
fn world(policy: &str) -> World {
    let world = World::new();
    for credential in CREDENTIALS {
        world.write(credential, "secret");
    }
    for ordinary in ["notes", ".cargo/config.toml", ".config/other/settings"] {
        world.write(ordinary, "ordinary");
    }
    world.policy(policy);
    world
}

fn readable_home() -> World {
    world("[filesystem]\nread = [\"system\", \"~\"]\n")
}

#[test]
fn credentials_have_no_name_in_a_readable_home() {
    let world = readable_home();
    assert_eq!(world.sh("ls -A ~").ok(), ORDINARY);
    assert_eq!(world.sh("cd ~/.cargo && ls -A").ok(), "config.toml");
    assert_eq!(world.sh("cd ~/.config && ls -A").ok(), "other");
    for credential in CREDENTIALS {
        let tried = world.sh(&format!("! test -e ~/{credential} && cat ~/{credential}"));
        assert_ne!(tried.code, Some(0), "{credential}");
        assert!(
            tried.stderr.contains("No such file or directory"),
            "{credential}: {}",
            tried.stderr
        );
    }
    // Nor can a name be made to come back.
    for attempt in [
        "touch ~/.netrc",
        "mkdir ~/.ssh",
        "ln -s notes ~/.bash_history",
        "mv ~/notes ~/.netrc",
    ] {
        assert_ne!(world.sh(attempt).code, Some(0), "{attempt}");
    }
}

#[test]
fn the_rest_of_the_home_is_as_it_was() {
    let world = readable_home();
    let ordinary = "cat ~/notes ~/.cargo/config.toml ~/.config/other/settings";
    assert_eq!(world.sh(ordinary).ok(), "ordinary".repeat(3));
    let looks = "stat -c '%a %u %g %y %F' ~ ~/.cargo ~/.config ~/notes ~/.cargo/config.toml";
    assert_eq!(world.sh(looks).ok(), world.outside_sh(looks).ok());
    world.sh("echo new > ~/project/file && mv file other").ok();
    assert_eq!(
        fs::read_to_string(world.project.join("other")).unwrap(),
        "new\n"
    );
    assert_ne!(world.sh("echo new > ~/notes").code, Some(0));
    // Nothing is left behind outside.
    for credential in CREDENTIALS {
        assert_eq!(
            fs::read_to_string(world.home.join(credential)).unwrap(),
            "secret"
        );
    }
}

/// Programs refresh tokens by renaming a new file over the old one.
#[test]
fn a_credential_replaced_outside_during_the_run_stays_absent() {
    let world = readable_home();
    let mut command = world.stockade();
    command.args(["run", "--", "sh", "-c"]).arg(
        "test ! -e ~/.netrc && touch started && until test -e replaced; do sleep 0.02; done
         cat ~/.netrc ~/.cargo/credentials.toml ~/.ssh/id_x; ls -A ~",
    );
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !world.project.join("started").exists() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    for credential in [".netrc", ".cargo/credentials.toml"] {
        let fresh = world.write("notes.new", "fresh secret");
        fs::rename(fresh, world.home.join(credential)).unwrap();
    }
    fs::rename(world.home.join(".ssh"), world.home.join(".ssh.old")).unwrap();
    world.write(".ssh/id_x", "fresh secret");
    fs::remove_dir_all(world.home.join(".ssh.old")).unwrap();
    fs::write(world.project.join("replaced"), "").unwrap();
    let finished = Finished::of(child.wait_with_output().unwrap());
    assert_eq!(finished.stdout.trim(), ORDINARY);
    assert_eq!(
        finished.stderr.matches("No such file or directory").count(),
        3,
        "{}",
        finished.stderr
    );
}

#[test]
fn what_a_hide_pattern_matches_has_no_name_where_nothing_can_be_written() {
    let world = world("[filesystem]\nread = [\"system\", \"~\"]\nhide = [\"**/*.key\"]\n");
    world.write("data/a.key", "secret");
    world.write("data/b.txt", "ordinary");
    world.write("project/c.key", "secret");
    assert_eq!(world.sh("ls -A ~/data").ok(), "b.txt");
    // The project can be written: there the name stays, without content.
    assert_ne!(world.sh("cat ~/project/c.key").code, Some(0));
    assert_eq!(world.sh("ls -A ~/project").ok(), "c.key");
}

#[test]
fn in_a_writable_directory_credentials_have_no_content() {
    let world = world("[filesystem]\nread = [\"system\"]\nwrite = [\".\", \"~/.config\"]\n");
    world
        .sh("echo new > ~/.config/other/settings && echo new > ~/.config/made")
        .ok();
    let secret = world.sh("cat ~/.config/gh/hosts.yml");
    assert_ne!(secret.code, Some(0));
    assert_eq!(secret.stdout, "");
    assert_ne!(
        world.sh("echo planted > ~/.config/gh/hosts.yml").code,
        Some(0)
    );
    assert_eq!(
        fs::read_to_string(world.home.join(".config/gh/hosts.yml")).unwrap(),
        "secret"
    );
}

/// With FS3 weakened by name, a grant of one credential shows that one only,
/// and not even that one in a directory that is a credential as a whole.
#[test]
fn a_credential_granted_by_name_is_the_only_one() {
    let world = world(
        "weaken = [\"FS3\"]\n[filesystem]\nread = [\"system\", \"~\", \"~/.netrc\", \"~/.ssh/id_x\"]\n",
    );
    assert_eq!(world.sh("cat ~/.netrc").ok(), "secret");
    let secrets = world.sh("cat ~/.ssh/id_x ~/.cargo/credentials.toml ~/.bash_history");
    assert_eq!((secrets.code, &secrets.stdout[..]), (Some(1), ""));
    let inside = world.sh("ls -A ~").ok();
    assert!(
        inside.contains(".netrc") && !inside.contains(".bash_history"),
        "{inside}"
    );
}
