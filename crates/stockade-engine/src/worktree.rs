//! Finds the git directory of a linked work tree (git-worktree(1)).
//!
//! There `.git` is a file that names a directory outside the project, in which
//! git must write. A command can write that file, so it proves nothing: what it
//! names is granted only when that directory, where no run of this project can
//! write, names this project in turn. Nothing here follows a link or runs git.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, openat2, statat};
use stockade_policy::merge::Worktree;
use stockade_policy::path::{AbsolutePath, PATH_BYTES_MAX};
use stockade_sys::rustix;

use crate::regular;

/// Longest pointer file that is read, in bytes.
const POINTER_BYTES_MAX: u64 = PATH_BYTES_MAX as u64 + 64;
/// Where git keeps the data of a repository (gitrepository-layout(5)); it is
/// written by every command that changes something.
const WRITTEN: [&str; 4] = ["objects", "refs", "logs", "reftable"];

/// What the `.git` of a project says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing outside the project.
    Nothing,
    Linked(Worktree),
    /// A pointer that is not followed, and why, as a line for the user.
    Refused(String),
}

/// Looks at the project `root`, whose links are resolved.
pub fn linked(root: &AbsolutePath) -> Found {
    let Ok(pointer) = root.join(".git") else {
        return Found::Nothing;
    };
    let Some(text) = read(&pointer) else {
        return Found::Nothing;
    };
    let target = text
        .strip_prefix(b"gitdir: ")
        .and_then(|target| pointer.link_target(line(target)));
    let Some(own) = target else {
        return Found::Refused(format!("{pointer} names no git directory that can be read"));
    };
    if own.is_within(root) {
        return Found::Nothing;
    }
    match proven(root, &pointer, &own) {
        Ok(worktree) => Found::Linked(worktree),
        Err(why) => Found::Refused(format!(
            "{pointer} names {own} as its git directory, which is not granted: {why}"
        )),
    }
}

/// Checks that the directory is a linked work tree's own, and that it and its
/// repository say so themselves.
fn proven(
    root: &AbsolutePath,
    pointer: &AbsolutePath,
    own: &AbsolutePath,
) -> Result<Worktree, &'static str> {
    let above = own.parent().ok_or("it is no linked work tree's")?;
    let common = above.parent().ok_or("it is no linked work tree's")?;
    if above.file_name() != Some(b"worktrees") {
        return Err("it is no linked work tree's; run in the repository that it belongs to");
    }
    if root.is_within(&common) || common.is_within(root) {
        return Err("one lies in the other");
    }
    let owner = status(root, FileType::Directory)
        .ok_or("the project cannot be read")?
        .st_uid;
    for directory in [&common, &above, own] {
        match status(directory, FileType::Directory) {
            Some(status) if status.st_uid == owner => {}
            Some(_) => return Err("it belongs to somebody else than the project"),
            None => return Err("it is no directory, or reached through a link"),
        }
    }
    let back = below(own, "gitdir")?;
    if pointed(&back).as_ref() != Some(pointer) {
        return Err("it does not name this project in turn");
    }
    let shared = below(own, "commondir")?;
    if pointed(&shared).as_ref() != Some(&common) {
        return Err("it does not belong to the repository above it");
    }
    let is_repository = [
        ("HEAD", FileType::RegularFile),
        ("objects", FileType::Directory),
    ];
    for (name, kind) in is_repository {
        if status(&below(&common, name)?, kind).is_none() {
            return Err("the directory above it is no repository");
        }
    }
    let mut written = vec![own.clone()];
    for name in WRITTEN {
        let part = below(&common, name)?;
        if status(&part, FileType::Directory).is_some_and(|status| status.st_uid == owner) {
            written.push(part);
        }
    }
    Ok(Worktree {
        common,
        written,
        pointers: vec![back, shared],
    })
}

fn below(directory: &AbsolutePath, name: &str) -> Result<AbsolutePath, &'static str> {
    directory.join(name).map_err(|_| "its path is too long")
}

/// Where a pointer file leads, from the directory that it lies in.
fn pointed(file: &AbsolutePath) -> Option<AbsolutePath> {
    file.link_target(line(&read(file)?))
}

fn line(text: &[u8]) -> &[u8] {
    let end = text
        .iter()
        .rposition(|byte| !matches!(byte, b'\n' | b'\r'))
        .map_or(0, |last| last + 1);
    &text[..end]
}

/// The content of a small regular file that no link leads to.
fn read(path: &AbsolutePath) -> Option<Vec<u8>> {
    regular::read(path.as_path(), regular::WITHOUT_LINKS, POINTER_BYTES_MAX)
}

/// What stands at a path that no link leads to, when it is of this kind.
fn status(path: &AbsolutePath, kind: FileType) -> Option<Stat> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = openat2(
        CWD,
        path.as_path(),
        flags,
        Mode::empty(),
        regular::WITHOUT_LINKS,
    )
    .ok()?;
    let status = statat(&handle, c"", AtFlags::EMPTY_PATH).ok()?;
    (FileType::from_raw_mode(status.st_mode) == kind).then_some(status)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;

    struct Scratch(tempfile::TempDir);

    impl Scratch {
        /// A repository `main` and its work tree `wt`, as git lays them out.
        fn new() -> Self {
            let scratch = Self(tempfile::tempdir().unwrap());
            for directory in ["objects", "refs", "worktrees/wt"] {
                std::fs::create_dir_all(scratch.at("main/.git").join(directory)).unwrap();
            }
            std::fs::create_dir(scratch.at("wt")).unwrap();
            scratch.write("main/.git/HEAD", "ref: refs/heads/main\n");
            scratch.write("main/.git/worktrees/wt/commondir", "../..\n");
            let back = format!("{}\n", scratch.at("wt/.git").display());
            scratch.write("main/.git/worktrees/wt/gitdir", &back);
            scratch.point(&scratch.at("main/.git/worktrees/wt"));
            scratch
        }

        fn at(&self, path: &str) -> std::path::PathBuf {
            self.0.path().canonicalize().unwrap().join(path)
        }

        fn write(&self, path: &str, text: &str) {
            std::fs::write(self.at(path), text).unwrap();
        }

        fn point(&self, target: &Path) {
            self.write("wt/.git", &format!("gitdir: {}\n", target.display()));
        }

        fn found(&self) -> Found {
            linked(&AbsolutePath::parse(self.at("wt").as_os_str().as_bytes()).unwrap())
        }

        fn refused(&self, why: &str) {
            match self.found() {
                Found::Refused(text) => assert!(text.contains(why), "{text}"),
                other => panic!("{why}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_work_tree_that_is_named_in_turn_is_linked() {
        let scratch = Scratch::new();
        let Found::Linked(worktree) = scratch.found() else {
            panic!("{:?}", scratch.found());
        };
        let relative = |path: &AbsolutePath| {
            let path = path
                .as_path()
                .strip_prefix(scratch.at("main/.git"))
                .unwrap();
            path.to_str().unwrap().to_owned()
        };
        let written: Vec<String> = worktree.written.iter().map(relative).collect();
        assert_eq!(written, ["worktrees/wt", "objects", "refs"]);
        let pointers: Vec<String> = worktree.pointers.iter().map(relative).collect();
        assert_eq!(pointers, ["worktrees/wt/gitdir", "worktrees/wt/commondir"]);
        // Relative pointers (worktree.useRelativePaths) say the same.
        scratch.write("wt/.git", "gitdir: ../main/.git/worktrees/wt\n");
        scratch.write("main/.git/worktrees/wt/gitdir", "../../../../wt/.git\n");
        assert_eq!(scratch.found(), Found::Linked(worktree));
    }

    #[test]
    fn pointers_that_prove_nothing_are_refused() {
        let scratch = Scratch::new();
        scratch.write("main/.git/worktrees/wt/gitdir", "/elsewhere/.git\n");
        scratch.refused("does not name this project in turn");
        let scratch = Scratch::new();
        scratch.write("main/.git/worktrees/wt/commondir", "../../..\n");
        scratch.refused("does not belong to the repository above it");
        let scratch = Scratch::new();
        std::fs::remove_file(scratch.at("main/.git/HEAD")).unwrap();
        scratch.refused("no repository");
        let scratch = Scratch::new();
        scratch.point(&scratch.at("main/.git"));
        scratch.refused("no linked work tree's");
        scratch.point(Path::new("/worktrees"));
        scratch.refused("no linked work tree's");
        scratch.write("wt/.git", "gitdir: ../../../../../../../../../etc\n");
        scratch.refused("no linked work tree's");
        scratch.write("wt/.git", "nonsense\n");
        scratch.refused("names no git directory");
        scratch.write("wt/.git", "gitdir: /a\0b\n");
        scratch.refused("names no git directory");
    }

    #[test]
    fn a_link_on_the_way_is_refused() {
        let scratch = Scratch::new();
        std::os::unix::fs::symlink(scratch.at("main"), scratch.at("link")).unwrap();
        scratch.point(&scratch.at("link/.git/worktrees/wt"));
        scratch.refused("reached through a link");
        let scratch = Scratch::new();
        let moved = scratch.at("main/.git/elsewhere");
        std::fs::rename(scratch.at("main/.git/objects"), &moved).unwrap();
        std::os::unix::fs::symlink(&moved, scratch.at("main/.git/objects")).unwrap();
        scratch.refused("no repository");
    }

    #[test]
    fn what_leads_nowhere_outside_says_nothing() {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.at("wt/inside")).unwrap();
        scratch.point(&scratch.at("wt/inside"));
        assert_eq!(scratch.found(), Found::Nothing);
        std::fs::remove_file(scratch.at("wt/.git")).unwrap();
        assert_eq!(scratch.found(), Found::Nothing);
        std::os::unix::fs::symlink(scratch.at("main/.git"), scratch.at("wt/.git")).unwrap();
        assert_eq!(scratch.found(), Found::Nothing);
        std::fs::remove_file(scratch.at("wt/.git")).unwrap();
        std::fs::create_dir(scratch.at("wt/.git")).unwrap();
        assert_eq!(scratch.found(), Found::Nothing);
    }
}
