//! What git's index holds, read against what git itself made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::*;

/// A repository made by the real git, with a configuration of its own.
struct Made {
    scratch: tempfile::TempDir,
    root: PathBuf,
}

impl Made {
    fn new(options: &[&str]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(scratch.path()).unwrap().join("repository");
        fs::create_dir(&root).unwrap();
        let made = Self { scratch, root };
        made.git(&[&["init", "-q"], options].concat());
        made
    }

    fn git(&self, arguments: &[&str]) {
        git(&self.root, arguments);
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn roots(&self) -> Vec<AbsolutePath> {
        vec![absolute(&self.root)]
    }

    fn look_up(&self, name: &str) -> HiddenMatch {
        let path = self.root.join(name);
        let directory = path.is_dir();
        let mut hidden = [HiddenMatch::new(absolute(&path), directory, 0)];
        look_up(&mut hidden, &self.roots());
        let [found] = hidden;
        found
    }

    /// What stands in, as `name kind content`.
    fn committed(&self, name: &str) -> Vec<String> {
        match self.look_up(name).cover {
            Cover::Committed(entries) => entries
                .iter()
                .map(|entry| {
                    let [name, content] = [&entry.name, &entry.content];
                    let [name, content] = [name, content].map(|text| String::from_utf8_lossy(text));
                    format!("{name} {:?} {content}", entry.kind)
                })
                .collect(),
            other => vec![format!("{other:?}")],
        }
    }
}

fn git(directory: &Path, arguments: &[&str]) {
    let status = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "git {arguments:?}");
}

fn absolute(path: &Path) -> AbsolutePath {
    AbsolutePath::parse(path.as_os_str().as_bytes()).unwrap()
}

/// Not what was committed last, and not what the file is now.
#[test]
fn the_index_is_what_stands_in() {
    for options in [&[][..], &["--object-format=sha256"]] {
        let made = Made::new(options);
        made.write("sub/.env", "first");
        made.git(&["add", "."]);
        made.git(&["commit", "-qm", "x"]);
        made.write("sub/.env", "staged");
        made.git(&["add", "."]);
        made.write("sub/.env", "secret");
        for version in ["2", "3", "4"] {
            made.git(&["update-index", "--index-version", version]);
            assert_eq!(made.committed("sub/.env"), [" File staged"], "{version}");
        }
        assert_eq!(
            made.look_up("sub/.env").in_repository.as_deref(),
            Some(&b"sub/.env"[..])
        );
    }
}

#[test]
fn a_blob_is_found_in_a_pack_also_as_a_delta() {
    let made = Made::new(&[]);
    let text = |seed: u32| -> String {
        (0..4000_u32)
            .map(|line| format!("{line} {}\n", line.wrapping_mul(2_654_435_761)))
            .collect::<String>()
            .replace("77 ", &format!("{seed} changed "))
    };
    for seed in 0..6 {
        made.write(&format!("key{seed}"), text(seed));
        made.git(&["add", "."]);
        made.git(&["commit", "-qm", "x"]);
    }
    made.git(&["gc", "-q", "--aggressive"]);
    let packs = fs::read_dir(made.root.join(".git/objects/pack")).unwrap();
    assert!(packs.count() >= 2, "the objects are in a pack");
    let whole: u64 = (0..6).map(|seed| text(seed).len() as u64).sum();
    let pack = fs::read_dir(made.root.join(".git/objects/pack"))
        .unwrap()
        .flatten()
        .find(|entry| entry.path().extension().is_some_and(|kind| kind == "pack"))
        .unwrap();
    assert!(pack.metadata().unwrap().len() < whole / 6, "as deltas");
    for seed in 0..6 {
        let expected = format!(" File {}", text(seed));
        assert!(
            made.committed(&format!("key{seed}")) == [expected],
            "key{seed}"
        );
    }
}

#[test]
fn a_directory_stands_in_with_all_that_is_tracked_below() {
    let made = Made::new(&[]);
    made.write("keys/a", "A");
    made.write("keys/deep/b", "B");
    made.write("keys-other", "not below");
    std::os::unix::fs::symlink("a", made.root.join("keys/link")).unwrap();
    let run = made.root.join("keys/run");
    made.write("keys/run", "R");
    fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    made.git(&["add", "."]);
    made.write("keys/untracked", "secret");
    assert_eq!(
        made.committed("keys"),
        [
            "a File A",
            "deep/b File B",
            "link Link a",
            "run Executable R"
        ]
    );
}

#[test]
fn what_is_not_tracked_is_only_named() {
    let made = Made::new(&[]);
    made.write("tracked", "x");
    made.git(&["add", "."]);
    made.write(".env", "secret");
    let found = made.look_up(".env");
    assert_eq!(found.cover, Cover::Empty);
    assert_eq!(found.in_repository.as_deref(), Some(&b".env"[..]));
    // Without a repository there is nothing to say.
    let plain = tempfile::tempdir().unwrap();
    let root = absolute(&fs::canonicalize(plain.path()).unwrap());
    fs::write(plain.path().join(".env"), "").unwrap();
    let mut hidden = [HiddenMatch::new(root.join(".env").unwrap(), false, 0)];
    look_up(&mut hidden, &[root]);
    assert_eq!(hidden[0].in_repository, None);
}

/// A conflict, an announced file, a missing or altered object, a split index:
/// there nothing stands in, and nothing looks deserted.
#[test]
fn what_is_not_understood_is_sealed() {
    let made = Made::new(&[]);
    made.write("announced", "x");
    made.git(&["add", "-N", "announced"]);
    assert_eq!(made.committed("announced"), ["Sealed"]);
    made.write("keys/x", "content");
    made.git(&["add", "keys"]);
    assert_eq!(made.committed("keys"), ["x File content"]);
    let object = made
        .root
        .join(".git/objects/6b/584e8ece562ebffc15d38808cd6b98fc3d97ea");
    let other = made
        .root
        .join(".git/objects/58/7be6b4c3f93f93c489c0111bba5596147a26cb");
    made.write("other", "x\n");
    made.git(&["add", "other"]);
    fs::remove_file(&object).unwrap();
    fs::copy(other, &object).unwrap();
    assert_eq!(made.committed("keys"), ["Sealed"], "another blob");
    fs::remove_file(&object).unwrap();
    assert_eq!(made.committed("keys"), ["Sealed"], "no object");
    made.write("second", "y");
    made.git(&["add", "second"]);
    assert_eq!(made.committed("second"), [" File y"]);
    made.git(&["update-index", "--split-index"]);
    assert_eq!(made.committed("second"), ["Sealed"], "split index");
    fs::write(
        made.root.join(".git/index"),
        b"DIRC\0\0\0\x02\xff\xff\xff\xff",
    )
    .unwrap();
    assert_eq!(made.committed("second"), ["Sealed"], "cut short");
}

#[test]
fn pointers_are_followed_only_where_they_are_granted() {
    let made = Made::new(&[]);
    made.write("sub/.env", "content");
    made.git(&["add", "."]);
    made.git(&["commit", "-qm", "x"]);
    made.git(&["worktree", "add", "-q", "linked"]);
    assert_eq!(made.committed("linked/sub/.env"), [" File content"]);
    // The same work tree, when the repository lies outside of what is granted.
    let linked = absolute(&made.root.join("linked"));
    let path = linked.join("sub/.env").unwrap();
    let mut hidden = [HiddenMatch::new(path, false, 0)];
    look_up(&mut hidden, std::slice::from_ref(&linked));
    assert_eq!(
        (&hidden[0].cover, &hidden[0].in_repository),
        (&Cover::Empty, &None)
    );

    // Objects that are borrowed from elsewhere.
    let elsewhere = made.scratch.path().join("elsewhere");
    let source = made.root.to_str().unwrap();
    git(
        made.scratch.path(),
        &[
            "clone",
            "-q",
            "--shared",
            source,
            elsewhere.to_str().unwrap(),
        ],
    );
    let borrowing = absolute(&fs::canonicalize(&elsewhere).unwrap());
    let of = |roots: &[AbsolutePath]| {
        let path = borrowing.join("sub/.env").unwrap();
        let mut hidden = [HiddenMatch::new(path, false, 0)];
        look_up(&mut hidden, roots);
        hidden[0].is_committed()
    };
    assert!(!of(std::slice::from_ref(&borrowing)));
    assert!(of(&[borrowing.clone(), absolute(&made.root)]));

    // A link in place of the index or of an object directory leads nowhere.
    for name in ["index", "objects"] {
        let place = made.root.join(".git").join(name);
        let moved = made.scratch.path().join(name);
        fs::rename(&place, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &place).unwrap();
        assert!(!made.look_up("sub/.env").is_committed(), "{name}");
        fs::remove_file(&place).unwrap();
        fs::rename(&moved, &place).unwrap();
    }
    assert_eq!(made.committed("sub/.env"), [" File content"]);
}

/// An index may say anything about names; only such as can be made beneath the
/// hidden directory do.
#[test]
fn names_that_lead_elsewhere_are_not_plain() {
    for name in [
        &b".."[..],
        b"../x",
        b"a/../../x",
        b"a//b",
        b"",
        b"./a",
        b"/etc/x",
        b"a/",
    ] {
        assert!(!is_plain(name), "{name:?}");
    }
    assert!(!is_plain(&[b'x'; 256]) && is_plain(b"a/b.c/..d"));
}
