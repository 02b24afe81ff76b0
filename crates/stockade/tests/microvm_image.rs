//! The microVM wall on an image: QEMU is a program of the host, and what is
//! behind it has the image's directories and nothing of the host's.

mod machines;

use std::collections::BTreeSet;
use std::fs;

use machines::{POLICY, machines_of, nothing_is_left, stockade, with_image};
use serde_json::Value;
use stockade_testkit::net::Internet;
use stockade_testkit::{World, image, is_root, skip};

const IMAGE: &str = "[container]\nimage = \"tiny\"\n";

/// A world whose commands run on the small image, in a machine.
fn on_image(test: &str) -> Option<World> {
    if !image::can_be_made() {
        skip(test, "busybox", "there is no static busybox");
        return None;
    }
    let world = with_image(test)?;
    image::import(&world, &[("etc/shadow", "the image's\n")]);
    world.policy(&format!("{POLICY}{IMAGE}"));
    Some(world)
}

#[test]
fn the_directories_of_an_image_are_the_system_in_a_machine() {
    let Some(world) = on_image("the_directories_of_an_image_are_the_system_in_a_machine") else {
        return;
    };
    world.write("project/file", "mine\n");
    world.outside_sh("git init -q .").ok();
    let report = world.outside().join("report.json");
    let options = ["--report", report.to_str().unwrap()];
    let script = "cat /etc/os-release /etc/shadow file; echo $TINY $PATH; echo more >> file; \
        echo own > new; stat -c %a new; id -u; pwd; echo $HOME; \
        echo evil > .git/hooks/post-checkout; touch /usr/bin/x /etc/x /x";
    let run = world.run(&options, &["sh", "-c", script]);
    let own = stockade_sys::rustix::process::geteuid().as_raw();
    let (project, home) = (world.project.display(), world.home.display());
    let expected =
        format!("NAME=tiny\nthe image's\nmine\nyes /usr/bin\n644\n{own}\n{project}\n{home}\n");
    assert_eq!(run.stdout, expected, "{}", run.stderr);
    for part in ["/usr/bin/x: Read-only", "/etc/x: Read-only"] {
        assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
    }
    assert_eq!(
        fs::read_to_string(world.project.join("file")).unwrap(),
        "mine\nmore\n"
    );
    assert_eq!(world.outside_sh("stat -c %u new").ok(), own.to_string());
    // A name that is guarded is no more made there than from any view.
    assert!(!world.project.join(".git/hooks/post-checkout").exists());
    // The state saw no view, so this one too goes on from it.
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("restored from a saved state"), "{report}");
    let explained = stockade(&world, &["explain", "--json", "--", "true"]).ok();
    let plan: Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(plan["image"]["name"], "tiny");
    assert!(explained.contains("\"guest.root\""), "{explained}");
    nothing_is_left(&world);
}

/// Neither the host's system nor the root in which QEMU stands is in the machine,
/// by whatever name, and from the outside it is seen why: what QEMU exports lies
/// below that root.
#[test]
fn nothing_of_qemus_own_root_is_in_a_machine_on_an_image() {
    let Some(world) = on_image("nothing_of_qemus_own_root_is_in_a_machine") else {
        return;
    };
    stockade(&world, &["start", "--name", "box"]).ok();
    let exec = |script: &str| stockade(&world, &["exec", "box", "--", "sh", "-c", script]);
    let seen = exec(
        "for path in /usr/sbin /usr/share /lib64 /container /run/stockade-guest /etc/ld.so.cache \
         /../container /../usr/share /proc/1/root/usr/share /etc/../../usr/share \
         /usr/bin/qemu-system-x86_64; do test -e $path && echo $path; done; \
         ln -s ../../../../../../../../container/usr/share up; ls up/ 2>/dev/null; \
         cat /etc/shadow; ls -A /; ls -A /usr /usr/..",
    )
    .ok();
    let mut names = BTreeSet::from([
        "bin", "dev", "etc", "home", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var",
    ]);
    // The directories above the project and the home are the run's.
    let above = [&world.project, &world.home].map(|path| path.components().nth(1).unwrap());
    let above = above.map(|part| part.as_os_str().to_str().unwrap().to_owned());
    names.extend(above.iter().map(|name| &**name));
    let listed = names.into_iter().collect::<Vec<_>>().join("\n");
    assert_eq!(
        seen,
        format!("the image's\n{listed}\n/usr:\nbin\n\n/usr/..:\n{listed}")
    );
    let machines = machines_of(&world);
    let [machine] = machines[..] else {
        panic!("one machine runs");
    };
    let arguments = fs::read_to_string(format!("/proc/{machine}/cmdline")).unwrap();
    assert!(arguments.contains(",path=/container\0"), "{arguments:?}");
    if is_root() {
        let root = format!("/proc/{machine}/root");
        let found: BTreeSet<_> = fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with("lib") && !name.ends_with("bin"))
            .collect();
        let expected = ["container", "dev", "etc", "proc", "run", "usr"];
        assert_eq!(found, expected.map(str::to_owned).into());
    }
    stockade(&world, &["stop", "box"]).ok();
    nothing_is_left(&world);
}

/// The processor's device is there for QEMU, which says itself whether it runs the
/// machine.
#[test]
fn the_processor_is_asked_for_a_machine_on_an_image_too() {
    let Some(world) = on_image("the_processor_is_asked_for_a_machine_on_an_image_too") else {
        return;
    };
    let run = world.run(&["--accelerator", "kvm"], &["cat", "/etc/os-release"]);
    if run.code == Some(0) {
        assert_eq!(run.stdout, "NAME=tiny\n");
    } else {
        let refused = run.expect_code(125);
        let mut because = vec!["it said: ", "asks for KVM, and /dev/kvm cannot be opened"];
        because.retain(|because| refused.stderr.contains(because));
        assert_eq!(because.len(), 1, "{}", refused.stderr);
    }
    nothing_is_left(&world);
}

#[test]
fn writes_wait_for_review_on_an_image_in_a_machine() {
    let Some(world) = on_image("writes_wait_for_review_on_an_image_in_a_machine") else {
        return;
    };
    let script = "echo new > new; mkdir -p .git/hooks; echo evil > .git/hooks/post-checkout";
    world
        .run(&["--workspace", "review"], &["sh", "-c", script])
        .expect_code(0);
    assert!(!world.project.join("new").exists());
    let held = stockade(&world, &["diff"]);
    assert!(held.stdout.contains("post-checkout"), "{held:?}");
    stockade(&world, &["apply"]);
    assert_eq!(
        fs::read_to_string(world.project.join("new")).unwrap(),
        "new\n"
    );
    assert!(!world.project.join(".git/hooks/post-checkout").exists());
    nothing_is_left(&world);
}

#[test]
fn an_image_in_a_machine_reaches_what_is_allowed_and_nothing_else() {
    let Some(world) = on_image("an_image_in_a_machine_reaches_what_is_allowed") else {
        return;
    };
    let internet = Internet::start(&world);
    internet.policy(&world, "allow = [\"origin.test\"]", "");
    let file = world.home.join(".config/stockade/stockade.toml");
    let network = fs::read_to_string(&file).unwrap();
    let (version, network) = network.split_once('\n').unwrap();
    fs::write(&file, format!("{version}\n{POLICY}{IMAGE}{network}")).unwrap();
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
    nothing_is_left(&world);
}
