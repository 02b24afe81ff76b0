//! `stockade copy`: files in and out of a sandbox that stays, and nothing
//! outside that a hostile sandbox could steer.

#[allow(dead_code, reason = "other files use the rest")]
mod staying;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use staying::Staying;

/// Every path below a directory with mode, time and content or target.
fn tree(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut look = vec![root.to_owned()];
    while let Some(path) = look.pop() {
        let status = fs::symlink_metadata(&path).unwrap();
        let below = path.strip_prefix(root).unwrap().display().to_string();
        let content = match () {
            () if status.is_dir() => {
                look.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
                String::new()
            }
            () if status.is_symlink() => format!("-> {}", fs::read_link(&path).unwrap().display()),
            () => format!("{:?}", fs::read(&path).unwrap()),
        };
        let mode = status.permissions().mode() & 0o7777;
        let time = if status.is_symlink() {
            0
        } else {
            status.mtime()
        };
        lines.push(format!("{below} {mode:o} {time} {content}"));
    }
    lines.sort();
    lines
}

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let staying = Staying::new("copy", &[]);
    let outside = staying.world.outside();
    let from = outside.join("from");
    fs::create_dir_all(from.join("empty")).unwrap();
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/b/large"), vec![7; 1_000_000]).unwrap();
    fs::write(from.join("a/name with \n and é"), "text").unwrap();
    fs::write(from.join("a/none"), "").unwrap();
    fs::write(from.join("a/run"), "#!/bin/sh\necho ran").unwrap();
    fs::set_permissions(from.join("a/run"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(from.join("a/b"), fs::Permissions::from_mode(0o500)).unwrap();
    let mut touch = Command::new("touch");
    touch
        .args(["-d", "2001-02-03", "a/run", "a"])
        .current_dir(&from);
    assert!(touch.status().unwrap().success());
    let name = &staying.name;
    let copied = staying.stockade(&[
        "copy",
        "--json",
        from.to_str().unwrap(),
        &format!("{name}:/tmp"),
    ]);
    let copied: Value = serde_json::from_str(&copied.ok()).unwrap();
    assert_eq!(
        (&copied["files"], &copied["directories"]),
        (&4.into(), &4.into())
    );
    assert_eq!(
        staying
            .sh("/tmp/from/a/run; cat /tmp/from/a/n*e*d*; stat -c %Y /tmp/from/a")
            .ok(),
        format!("ran\ntext{}", fs::metadata(from.join("a")).unwrap().mtime())
    );
    let back = outside.join("back");
    let inside = format!("{name}:/tmp/from");
    staying
        .stockade(&["cp", &inside, back.to_str().unwrap()])
        .expect_code(0);
    let without_root = |root: &Path| tree(root).into_iter().skip(1).collect::<Vec<_>>();
    assert_eq!(without_root(&back), without_root(&from));
    // Into a directory that is there, under its own name; and never over anything.
    let target = outside.join("target");
    fs::create_dir(&target).unwrap();
    staying
        .stockade(&["copy", &inside, target.to_str().unwrap()])
        .expect_code(0);
    assert_eq!(without_root(&target.join("from")), without_root(&from));
    let refused = staying
        .stockade(&["copy", &inside, target.to_str().unwrap()])
        .expect_code(125);
    assert!(
        refused.stderr.contains("cannot be made"),
        "{}",
        refused.stderr
    );
    for both in [["a", "b"], [inside.as_str(), inside.as_str()]] {
        let refused = staying
            .stockade(&["copy", both[0], both[1]])
            .expect_code(125);
        assert!(refused.stderr.contains("NAME:PATH"), "{}", refused.stderr);
    }
    fs::set_permissions(from.join("a/b"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn what_comes_out_steers_nothing_outside() {
    let staying = Staying::new("hostile", &[]);
    let world = &staying.world;
    let (name, project) = (&staying.name, &world.project);
    let victim = world.outside().join("victim");
    fs::write(&victim, "mine").unwrap();
    let made = format!(
        "mkdir -p /tmp/t/.git/hooks /tmp/t/deep /tmp/t/.vscode && cd /tmp/t && \
         ln -s {0} link && ln -s / deep/up && mkfifo pipe && echo x > .git/hooks/pre-commit && \
         chmod +x .git/hooks/pre-commit && echo y > plain && chmod 755 plain && \
         echo '{{}}' > .vscode/tasks.json",
        victim.display()
    );
    staying.sh(&made).ok();
    let inside = format!("{name}:/tmp/t");
    let to = project.join("copied");
    let copied = staying
        .stockade(&["copy", &inside, to.to_str().unwrap()])
        .expect_code(1);
    for (path, why) in [
        ("copied/link", "it is a link"),
        ("copied/deep/up", "it is a link"),
        ("copied/pipe", "no file"),
        ("copied/.git/hooks/pre-commit", "--held"),
        ("copied/.vscode/tasks.json", "--held"),
    ] {
        let told = copied.stderr.lines().find(|line| line.contains(path));
        let told = told.unwrap_or_else(|| panic!("{path} in {}", copied.stderr));
        assert!(told.contains("left out") && told.contains(why), "{told}");
        assert!(fs::symlink_metadata(project.join(path)).is_err(), "{path}");
    }
    let plain = fs::metadata(to.join("plain")).unwrap();
    assert_eq!(plain.permissions().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    let held = world.outside().join("held");
    staying
        .stockade(&["copy", "--held", &inside, held.to_str().unwrap()])
        .expect_code(1);
    assert!(held.join(".git/hooks/pre-commit").exists());
    // A link where the copy is to be is no way out of there either.
    symlink(&victim, world.outside().join("trap")).unwrap();
    let trap = world.outside().join("trap");
    let file = format!("{name}:/tmp/t/plain");
    staying
        .stockade(&["copy", &file, trap.to_str().unwrap()])
        .expect_code(125);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    // And it is bounded.
    staying.sh("head -c 3000000 /dev/zero > /tmp/large").ok();
    let (from, to) = (format!("{name}:/tmp/large"), world.outside().join("large"));
    let options = [
        "copy",
        "--max-bytes",
        "1000000",
        &from,
        to.to_str().unwrap(),
    ];
    let refused = staying.stockade(&options).expect_code(125);
    assert!(refused.stderr.contains("--max-bytes"), "{}", refused.stderr);
    assert!(fs::metadata(&to).unwrap().len() <= 1_000_000);
    staying.exec(&["true"]).expect_code(0);
}

#[test]
fn what_is_denied_inside_is_denied_to_a_copy() {
    let staying = Staying::new("denied", &[]);
    let secret = staying.world.write(".ssh/id_ed25519", "secret");
    let (name, outside) = (&staying.name, staying.world.outside());
    let from = format!("{name}:{}", secret.display());
    let to = outside.join("key");
    let refused = staying
        .stockade(&["copy", &from, to.to_str().unwrap()])
        .expect_code(125);
    assert!(
        refused.stderr.contains("No such file"),
        "{}",
        refused.stderr
    );
    let to = format!("{name}:/usr/planted");
    let refused = staying
        .stockade(&["copy", secret.to_str().unwrap(), &to])
        .expect_code(125);
    assert!(refused.stderr.contains("ead-only"), "{}", refused.stderr);
    // A git hook in the live project is held as if a command had written it.
    staying.sh("git init -q .").ok();
    let hook = format!("{name}:.git/hooks/pre-commit");
    staying.stockade(&["copy", secret.to_str().unwrap(), &hook]);
    assert!(!staying.world.project.join(".git/hooks/pre-commit").exists());
    let absent = staying
        .stockade(&["copy", "nobody:/tmp/x", "x"])
        .expect_code(125);
    assert!(
        absent.stderr.contains("no sandbox called"),
        "{}",
        absent.stderr
    );
}
