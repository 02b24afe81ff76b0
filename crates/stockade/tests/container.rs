//! The container wall: exact limits, on the host's system or on an image.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use serde_json::Value;
use stockade_testkit::net::Internet;
use stockade_testkit::tools::await_file;
use stockade_testkit::{Finished, World, image, is_root, skip};

/// Where there are no control groups for this user, their guarantee is given
/// up by name; everything else is the same.
const ON_IMAGE: &str =
    "wall = \"container\"\nweaken = [\"PR7\"]\n\n[container]\nimage = \"tiny\"\n";

/// A world whose policy runs everything on the small image.
fn on_image(test: &str, more: &[(&str, &str)]) -> Option<World> {
    if !image::can_be_made() {
        skip(test, "busybox", "there is no static busybox");
        return None;
    }
    let world = World::new();
    image::import(&world, more);
    world.policy(ON_IMAGE);
    Some(world)
}

fn explained(world: &World, options: &[&str]) -> Value {
    let mut command = world.stockade();
    command
        .args(["explain", "--json"])
        .args(options)
        .args(["--", "true"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn image_command(world: &World, arguments: &[&str]) -> Finished {
    let mut command = world.stockade();
    Finished::of(command.arg("image").args(arguments).output().unwrap())
}

#[test]
fn a_container_has_exact_limits_or_says_what_is_missing() {
    let world = World::new();
    if is_root() {
        let plan = explained(&world, &["--wall", "container"]);
        assert_eq!(plan["wall"], "container");
        assert_eq!(plan["limits"]["exact"], true);
        let run = world.run(&["--wall", "at-least:container"], &["cat", "/etc/passwd"]);
        assert!(run.ok().contains("root:"));
        return;
    }
    let refused = world
        .run(&["--wall", "container"], &["true"])
        .expect_code(125);
    for part in [
        "PR7 cannot be kept by the container wall",
        "remedy:",
        "weaken",
    ] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
}

/// Of all files and options the strongest wall counts, also an untrusted one's.
#[test]
fn no_option_takes_the_wall_away() {
    let world = World::new();
    world.write(
        "project/stockade.toml",
        "version = 1\nwall = \"container\"\n",
    );
    world.policy("weaken = [\"PR7\"]\n");
    let plan = explained(&world, &["--wall", "process"]);
    assert_eq!(plan["wall"], "container");
}

#[test]
fn the_directories_of_an_image_are_the_system() {
    let Some(world) = on_image("the_directories_of_an_image", &[]) else {
        return;
    };
    world.write("project/file", "mine\n");
    let script = "cat /etc/os-release file; echo $TINY $PATH; ls -d /usr/lib /usr/sbin /etc/hostname; \
                  touch /usr/bin/x; touch /etc/x; touch /x; echo more >> file; cat file; \
                  ls /proc/1/root; id -u";
    let run = world.sh(script);
    let own = own_id();
    let expected = format!("NAME=tiny\nmine\nyes /usr/bin\nmine\nmore\n{own}");
    let (stdout, stderr) = (run.stdout.trim_end(), &run.stderr);
    assert_eq!(stdout, expected, "{stderr}");
    for part in [
        "/usr/lib: No such file",
        "/usr/bin/x: Read-only",
        "/etc/x: Read-only",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    // Variables that name places of the host stay outside.
    let names = world.sh("env").ok();
    for name in ["SHELL=", "PYENV", "NVM"] {
        assert!(!names.contains(name), "{names}");
    }
}

/// A directory of the host that is granted stands among those of the image.
#[test]
fn what_is_granted_by_path_is_the_hosts() {
    let Some(world) = on_image("what_is_granted_by_path", &[("opt/own", "the image's\n")]) else {
        return;
    };
    world.write("granted/file", "the host's\n");
    let place = world.home.join("granted");
    let read = place.to_str().unwrap();
    let script = format!("cat {read}/file /opt/own; ls /usr/share/zoneinfo/UTC /usr/bin/env");
    let run = world.run(
        &["--read", read, "--read", "/usr/share/zoneinfo"],
        &["sh", "-c", &script],
    );
    let expected = "the host's\nthe image's\n/usr/bin/env\n/usr/share/zoneinfo/UTC";
    let mut lines: Vec<&str> = run.stdout.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<&str> = expected.lines().collect();
    expected.sort_unstable();
    assert_eq!(lines, expected, "{}", run.stderr);
}

fn own_id() -> String {
    let world = World::new();
    world.outside_sh("id -u").ok()
}

/// What an image says of files is said of its own, whatever the host has there.
#[test]
fn links_of_an_image_lead_to_nothing_of_the_host() {
    let victim = World::new();
    victim.write("secret", "the host's\n");
    let target = victim.home.join("secret");
    let links = [
        ("opt/secret", format!("-> {}", target.display())),
        ("etc/shadow", "the image's\n".to_owned()),
        ("var/lib", "-> /etc".to_owned()),
    ];
    let links: Vec<_> = links
        .iter()
        .map(|(path, text)| (*path, &text[..]))
        .collect();
    let Some(world) = on_image("links_of_an_image", &links) else {
        return;
    };
    let run = world.sh("cat /opt/secret; cat /etc/shadow /var/lib/os-release");
    assert_eq!(run.stdout.trim_end(), "the image's\nNAME=tiny");
    assert!(run.stderr.contains("/opt/secret"), "{}", run.stderr);
}

#[test]
fn writes_wait_for_review_on_an_image_too() {
    let Some(world) = on_image("writes_wait_for_review", &[]) else {
        return;
    };
    world
        .run(&["--workspace", "review"], &["sh", "-c", "echo new > new"])
        .ok();
    assert!(!world.project.join("new").exists());
    let apply = world.stockade().arg("apply").output().unwrap();
    Finished::of(apply).expect_code(0);
    assert_eq!(
        fs::read_to_string(world.project.join("new")).unwrap(),
        "new\n"
    );
}

#[test]
fn an_image_reaches_what_is_allowed_and_nothing_else() {
    let Some(world) = on_image("an_image_reaches", &[]) else {
        return;
    };
    let internet = Internet::start(&world);
    internet.policy(&world, "allow = [\"origin.test\"]", "");
    let file = world.home.join(".config/stockade/stockade.toml");
    let network = fs::read_to_string(&file).unwrap();
    let network = network.strip_prefix("version = 1\n").unwrap();
    world.policy(&format!("{ON_IMAGE}\n{network}"));
    let script = "cat /etc/os-release; unset http_proxy; wget -qO - http://origin.test/a; \
                  wget -qO - -T 5 http://other.test/b; wget -qO - -T 5 http://93.184.216.66/c";
    let run = internet.sh(&world, script);
    assert_eq!(
        run.stdout.trim_end(),
        "NAME=tiny\norigin /a",
        "{}",
        run.stderr
    );
    assert!(!internet.saw_text("other"), "{:?}", internet.log());
}

/// A socket that is offered is the host's, wherever it lies.
#[test]
fn a_socket_of_the_host_is_offered_on_an_image() {
    let Some(world) = on_image("a_socket_of_the_host_is_offered_on_an_image", &[]) else {
        return;
    };
    let socket = world.outside().join("offered.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (home, project) = (&world.home, &world.project);
    assert!(!socket.starts_with(home) && !socket.starts_with(project));
    let offer = format!(
        "[[socket]]\npath = \"{}\"\ninside = \"/run/offered.sock\"\n",
        socket.display()
    );
    world.policy(&format!("{ON_IMAGE}\n{offer}"));
    let script = "stat -c %F /run/offered.sock; test -e \"$1\" || echo gone";
    let run = world.run(&[], &["sh", "-c", script, "sh", socket.to_str().unwrap()]);
    assert_eq!(run.stdout, "socket\ngone\n", "{}", run.stderr);
    drop(listener);
}

/// Where requests are inspected, the image's own roots get the run's authority.
#[test]
fn the_roots_of_an_image_are_completed() {
    let bundle = "etc/ssl/certs/ca-certificates.crt";
    let link = ("etc/ssl/cert.pem", "-> certs/ca-certificates.crt");
    let Some(world) = on_image(
        "the_roots_of_an_image",
        &[(bundle, "# its own roots\n"), link],
    ) else {
        return;
    };
    let rule = "[[network.rule]]\nhost = \"origin.test\"\nmethods = [\"GET\"]\n";
    world.policy(&format!("{ON_IMAGE}\n{rule}"));
    let roots = world.sh("cat /etc/ssl/cert.pem").ok();
    assert!(roots.starts_with("# its own roots\n"), "{roots}");
    assert_eq!(roots.matches("BEGIN CERTIFICATE").count(), 1, "{roots}");
}

#[test]
fn an_image_that_is_used_stays() {
    let Some(world) = on_image("an_image_that_is_used", &[]) else {
        return;
    };
    let mut run = world.stockade();
    run.args([
        "run",
        "--",
        "sh",
        "-c",
        "echo x > begun; while ! test -e end; do sleep 0.1; done",
    ]);
    let mut run = run
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    await_file(&world.project.join("begun"));
    let refused = image_command(&world, &["remove", "tiny"]).expect_code(125);
    assert!(refused.stderr.contains("in use"), "{}", refused.stderr);
    fs::write(world.project.join("end"), "").unwrap();
    assert!(run.wait().unwrap().success());
    image_command(&world, &["remove", "tiny"]).expect_code(0);
    let list = image_command(&world, &["list", "--json"]).ok();
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["images"].as_array().map(Vec::len), Some(0));
    let refused = world.sh("true").expect_code(125);
    assert!(
        refused.stderr.contains("there is no image"),
        "{}",
        refused.stderr
    );
}

/// A sandbox that stays stands on an image too: its agent needs nothing of it.
#[test]
fn a_sandbox_stays_on_an_image() {
    let Some(world) = on_image("a_sandbox_stays", &[]) else {
        return;
    };
    let stockade = |arguments: &[&str]| {
        let output = world
            .stockade()
            .args(arguments)
            .stdin(Stdio::null())
            .output();
        Finished::of(output.unwrap())
    };
    stockade(&["start", "--name", "stays"]).expect_code(0);
    let script = "cat /etc/os-release; echo kept > /tmp/kept; touch /usr/x || echo refused";
    let first = stockade(&["exec", "stays", "--", "sh", "-c", script]);
    assert_eq!(first.ok(), "NAME=tiny\nrefused");
    assert_eq!(
        stockade(&["exec", "stays", "--", "cat", "/tmp/kept"]).ok(),
        "kept"
    );
    let list: Value = serde_json::from_str(&stockade(&["list", "--json"]).ok()).unwrap();
    assert_eq!(list["sandboxes"][0]["wall"], "container", "{list}");
    image_command(&world, &["remove", "tiny"]).expect_code(125);
    stockade(&["stop", "stays"]).expect_code(0);
    image_command(&world, &["remove", "tiny"]).expect_code(0);
}

#[test]
fn what_an_image_cannot_stand_under_is_refused() {
    let Some(world) = on_image("what_an_image_cannot", &[]) else {
        return;
    };
    let cases = [
        (
            "[container]\nimage = \"tiny\"\n",
            "needs the container wall, or a stronger one",
        ),
        ("[container]\nimage = \"../x\"\n", "no name of an image"),
    ];
    for (policy, says) in cases {
        world.policy(policy);
        let refused = world.sh("true").expect_code(125);
        assert!(refused.stderr.contains(says), "{says}: {}", refused.stderr);
    }
    // A project nobody trusts does not choose what programs are.
    world.policy("wall = \"container\"\nweaken = [\"PR7\"]\n");
    world.write(
        "project/stockade.toml",
        "version = 1\n[container]\nimage = \"tiny\"\n",
    );
    let refused = world.sh("true").expect_code(125);
    assert!(
        refused.stderr.contains("choose the image"),
        "{}",
        refused.stderr
    );
}

/// A hostile archive is refused, and nothing of it stays.
#[test]
fn an_image_that_leads_out_is_refused() {
    if !image::can_be_made() {
        return skip(
            "an_image_that_leads_out",
            "busybox",
            "there is no static busybox",
        );
    }
    let world = World::new();
    let layout = image::layout(&world, &[("opt/out", "-> ../../../../etc")]);
    let refused = image_command(&world, &["import", layout.to_str().unwrap(), "tiny"]);
    let refused = refused.expect_code(125);
    assert!(refused.stderr.contains("links out"), "{}", refused.stderr);
    assert!(refused.stderr.contains("remedy:"), "{}", refused.stderr);
    let kept = world.home.join(".local/state/stockade/images");
    for part in ["names", "trees", "partial"] {
        assert_eq!(fs::read_dir(kept.join(part)).unwrap().count(), 0, "{part}");
    }
    assert!(image_command(&world, &["list"]).ok().contains("no images"));
}
