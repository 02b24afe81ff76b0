//! What a layer changes is listed exactly, and applied only over the tree that
//! it was made over.

mod layers;

use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use layers::{World, again, assert_same, observe, open};
use rustix::fs::{FileType, Mode, XattrFlags};
use stockade_sys::rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use stockade_workspace::apply::{
    self, ApplyError, Conflict, ConflictReason, OnConflict, Outcome, Ownership, Request, Stamp,
};
use stockade_workspace::change::{Change, ChangeKind, Changes};
use stockade_workspace::diff::diff;
use stockade_workspace::journal::Journal;
use stockade_workspace::stack::Stack;
use stockade_workspace::unified::{Difference, difference};

const INSIDE: &str = "STOCKADE_TEST_INSIDE";

/// The directories of a world, open.
struct Open {
    upper: File,
    base: File,
    preimages: File,
    journal: File,
}

impl Open {
    fn new(world: &World) -> Self {
        Self {
            upper: open(&world.at("upper")),
            base: open(&world.at("base")),
            preimages: open(&world.at("preimages")),
            journal: open(&world.at("journal")),
        }
    }

    fn stamp(&self) -> Stamp {
        Stamp::take(self.journal.as_fd(), "stamp").unwrap()
    }

    fn diff(&self) -> Changes {
        diff(&[self.upper.as_fd()], self.base.as_fd()).unwrap()
    }

    fn apply(
        &self,
        selected: &dyn Fn(&Change) -> bool,
        stamp: Option<Stamp>,
        on_conflict: OnConflict,
    ) -> Result<Outcome, ApplyError> {
        let layers: [BorrowedFd<'_>; 1] = [self.upper.as_fd()];
        let request = Request {
            layers: &layers,
            base: self.base.as_fd(),
            preimages: self.preimages.as_fd(),
            stamp,
            own: &[],
            ownership: Ownership::Consume,
            on_conflict,
            progress: &|_, _| {},
        };
        let mut journal = Journal::open(self.journal.as_fd(), "journal").unwrap();
        apply::apply(&self.diff(), selected, &request, &mut journal)
    }
}

fn inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    assert!(
        again(name, &[])
            .status()
            .expect("cannot run unshare")
            .success()
    );
    false
}

fn world() -> World {
    World::new(Path::new("/var/tmp"))
}

/// One line for each change, as a reader would write it down.
fn lines(changes: &Changes) -> Vec<String> {
    let line = |change: &Change| {
        let path = String::from_utf8_lossy(&change.path);
        let word = match &change.kind {
            ChangeKind::Created => "created",
            ChangeKind::Modified => "modified",
            ChangeKind::Deleted => "deleted",
            ChangeKind::Renamed { from } => {
                return format!("renamed {path} from {}", String::from_utf8_lossy(from));
            }
            ChangeKind::Replaced => "replaced",
            ChangeKind::Recreated => "recreated",
        };
        let aspects = [
            (change.aspects.content, " content"),
            (change.aspects.mode, " mode"),
            (change.aspects.attributes, " attributes"),
            (change.aspects.links, " links"),
        ];
        let aspects: String = aspects
            .iter()
            .filter(|one| one.0)
            .map(|one| one.1)
            .collect();
        let link = change.linked_to.as_ref().map_or(String::new(), |to| {
            format!(" = {}", String::from_utf8_lossy(to))
        });
        format!("{word} {path}{aspects}{link}")
    };
    changes.iter().map(line).collect()
}

#[test]
fn every_kind_of_change_is_listed_and_nothing_else() {
    if !inside("every_kind_of_change_is_listed_and_nothing_else") {
        return;
    }
    let world = world();
    let base = world.at("base");
    for directory in ["dir", "again", "same", "to-file"] {
        fs::create_dir(base.join(directory)).unwrap();
    }
    for name in [
        "edit",
        "mode",
        "gone",
        "old-name",
        "dir/x",
        "again/y",
        "same/z",
        "to-file/v",
        "to-dir",
        "mark",
        "linked",
        "opened",
    ] {
        fs::write(base.join(name), format!("text of {name}\n")).unwrap();
    }
    {
        let view = world.mount(&["upper"], true);
        let at = |name: &str| view.0.join(name);
        fs::write(at("edit"), "other\n").unwrap();
        fs::set_permissions(at("mode"), Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(at("gone")).unwrap();
        fs::rename(at("old-name"), at("new-name")).unwrap();
        fs::remove_dir_all(at("dir")).unwrap();
        fs::remove_dir_all(at("again")).unwrap();
        fs::create_dir(at("again")).unwrap();
        fs::remove_dir_all(at("to-file")).unwrap();
        fs::write(at("to-file"), "").unwrap();
        fs::remove_file(at("to-dir")).unwrap();
        fs::create_dir(at("to-dir")).unwrap();
        let mark = open(&at("mark"));
        rustix::fs::fsetxattr(&mark, "user.note", b"1", XattrFlags::empty()).unwrap();
        fs::hard_link(at("linked"), at("second")).unwrap();
        symlink("/etc/passwd", at("link")).unwrap();
        fs::create_dir(at("empty")).unwrap();
        // Brought up into the layer, but as it was.
        fs::OpenOptions::new()
            .append(true)
            .open(at("opened"))
            .unwrap();
        fs::write(at("same/new"), "").unwrap();
        fs::remove_file(at("same/new")).unwrap();
    }
    let open = Open::new(&world);
    assert_eq!(
        lines(&open.diff()),
        [
            "recreated again",
            "deleted again/y",
            "deleted dir",
            "deleted dir/x",
            "modified edit content",
            "created empty",
            "deleted gone",
            "created link",
            "modified linked links",
            "modified mark attributes",
            "modified mode mode",
            "renamed new-name from old-name",
            "created second = linked",
            "replaced to-dir",
            "replaced to-file",
            "deleted to-file/v",
        ]
    );
}

#[test]
fn text_is_compared_by_lines_and_the_rest_by_size() {
    if !inside("text_is_compared_by_lines_and_the_rest_by_size") {
        return;
    }
    let world = world();
    fs::write(world.at("base/text"), "one\ntwo\n").unwrap();
    fs::write(world.at("base/data"), b"\0one").unwrap();
    {
        let view = world.mount(&["upper"], true);
        fs::write(view.0.join("text"), "one\nthree\n").unwrap();
        fs::write(view.0.join("data"), b"\0other").unwrap();
    }
    let open = Open::new(&world);
    let changes = open.diff();
    let whole = Stack::new(&[open.upper.as_fd()], open.base.as_fd()).unwrap();
    let below = Stack::new(&[], open.base.as_fd()).unwrap();
    let of = |path: &[u8]| difference(changes.get(path).unwrap(), &whole, &below).unwrap();
    let text = "--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n";
    assert_eq!(of(b"text"), Difference::Text(text.into()));
    let sizes = Difference::Binary {
        before: Some(4),
        after: Some(6),
    };
    assert_eq!(of(b"data"), sizes);
}

/// A world in which a command changed much, and then somebody outside did.
fn contested() -> (World, Stamp) {
    let world = world();
    for directory in ["gone", "touched", "moved-away"] {
        fs::create_dir(world.at("base").join(directory)).unwrap();
    }
    for name in [
        "edited",
        "removed",
        "fine",
        "gone/x",
        "touched/y",
        "moved-away/z",
    ] {
        fs::write(world.at("base").join(name), name).unwrap();
    }
    let stamp = Open::new(&world).stamp();
    {
        let view = world.mount(&["upper"], true);
        for name in ["edited", "removed", "fine", "made", "moved-away/z"] {
            fs::write(view.0.join(name), "by the command").unwrap();
        }
        fs::remove_dir_all(view.0.join("gone")).unwrap();
        fs::remove_dir_all(view.0.join("touched")).unwrap();
    }
    fs::write(world.at("base/edited"), "by somebody").unwrap();
    fs::remove_file(world.at("base/removed")).unwrap();
    fs::write(world.at("base/made"), "by somebody").unwrap();
    fs::write(world.at("base/touched/theirs"), "by somebody").unwrap();
    fs::rename(world.at("base/moved-away"), world.at("base/elsewhere")).unwrap();
    (world, stamp)
}

#[test]
fn a_tree_that_changed_meanwhile_is_left_as_it_is() {
    if !inside("a_tree_that_changed_meanwhile_is_left_as_it_is") {
        return;
    }
    let (world, stamp) = contested();
    let open = Open::new(&world);
    let before = observe(&world.at("base"));
    let error = open
        .apply(&|_| true, Some(stamp), OnConflict::Refuse)
        .unwrap_err();
    let ApplyError::Conflicts(conflicts) = &error else {
        panic!("{error}");
    };
    let conflict = |path: &str, reason| Conflict {
        path: path.into(),
        reason,
    };
    assert_eq!(
        conflicts[..],
        [
            conflict("edited", ConflictReason::Changed),
            conflict("made", ConflictReason::Changed),
            conflict("moved-away", ConflictReason::Removed),
            conflict("removed", ConflictReason::Removed),
            conflict("touched/theirs", ConflictReason::Changed),
        ]
    );
    assert!(error.to_string().contains("--skip-conflicts"), "{error}");
    assert_same("nothing was applied", &before, &observe(&world.at("base")));
}

#[test]
fn what_does_not_conflict_can_be_applied_alone() {
    if !inside("what_does_not_conflict_can_be_applied_alone") {
        return;
    }
    let (world, stamp) = contested();
    let open = Open::new(&world);
    let outcome = open
        .apply(&|_| true, Some(stamp), OnConflict::Skip)
        .unwrap();
    let applied: Vec<_> = outcome
        .applied
        .iter()
        .map(|path| String::from_utf8_lossy(path))
        .collect();
    assert_eq!(applied, ["fine", "gone", "gone/x", "touched/y"]);
    let read = |name: &str| fs::read_to_string(world.at("base").join(name)).unwrap();
    assert_eq!(read("fine"), "by the command");
    for name in ["edited", "made", "touched/theirs"] {
        assert_eq!(read(name), "by somebody");
    }
    assert!(!world.at("base/moved-away").exists() && !world.at("base/removed").exists());
    assert_eq!(read("elsewhere/z"), "moved-away/z");
}

#[test]
fn a_directory_stays_for_what_in_it_was_not_selected() {
    if !inside("a_directory_stays_for_what_in_it_was_not_selected") {
        return;
    }
    let world = world();
    fs::create_dir(world.at("base/ci")).unwrap();
    for name in ["ci/held", "ci/free"] {
        fs::write(world.at("base").join(name), name).unwrap();
    }
    let stamp = Open::new(&world).stamp();
    {
        let view = world.mount(&["upper"], true);
        fs::remove_dir_all(view.0.join("ci")).unwrap();
        fs::create_dir_all(view.0.join("new/deep")).unwrap();
        fs::write(view.0.join("new/deep/held"), "").unwrap();
        fs::write(view.0.join("new/deep/free"), "").unwrap();
    }
    let open = Open::new(&world);
    let free = |change: &Change| !change.path.ends_with(b"held");
    open.apply(&free, Some(stamp), OnConflict::Refuse).unwrap();
    assert!(world.at("base/ci/held").exists() && !world.at("base/ci/free").exists());
    assert!(world.at("base/new/deep/free").exists() && !world.at("base/new/deep/held").exists());
    assert_eq!(
        lines(&open.diff()),
        ["deleted ci", "deleted ci/held", "created new/deep/held"]
    );
    // And the rest, later, is no conflict with the first part.
    fs::remove_dir_all(world.at("preimages")).unwrap();
    fs::create_dir(world.at("preimages")).unwrap();
    Open::new(&world)
        .apply(&|_| true, Some(stamp), OnConflict::Refuse)
        .unwrap();
    assert!(!world.at("base/ci").exists() && world.at("base/new/deep/held").exists());
}

#[test]
fn what_steers_an_overlay_never_reaches_the_tree() {
    if !inside("what_steers_an_overlay_never_reaches_the_tree") {
        return;
    }
    let world = world();
    fs::write(world.at("base/file"), "").unwrap();
    {
        let view = world.mount(&["upper"], true);
        fs::create_dir(view.0.join("dir")).unwrap();
        fs::rename(view.0.join("file"), view.0.join("dir/file")).unwrap();
        for name in ["dir", "dir/file"] {
            let file = open(&view.0.join(name));
            // The kernel refuses it or keeps it under another name.
            let _refused =
                rustix::fs::fsetxattr(&file, "user.overlay.opaque", b"y", XattrFlags::empty())
                    .is_err();
            rustix::fs::fsetxattr(&file, "user.mine", b"1", XattrFlags::empty()).unwrap();
        }
    }
    // As if a command had got round the filter.
    fs::write(world.at("upper/dir/set"), "").unwrap();
    fs::set_permissions(world.at("upper/dir/set"), Permissions::from_mode(0o6755)).unwrap();
    let open = Open::new(&world);
    open.apply(&|_| true, None, OnConflict::Refuse).unwrap();
    for name in ["dir", "dir/file"] {
        let mut names = vec![0u8; 1024];
        let file = layers::open(&world.at("base").join(name));
        let length = rustix::fs::flistxattr(&file, &mut names[..]).unwrap();
        assert_eq!(&names[..length], b"user.mine\0", "{name}");
    }
    let mode = fs::metadata(world.at("base/dir/set")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn what_a_layer_hides_the_tree_under_stays_in_it() {
    if !inside("what_a_layer_hides_the_tree_under_stays_in_it") {
        return;
    }
    let world = world();
    fs::create_dir(world.at("base/again")).unwrap();
    fs::write(world.at("base/other"), "a file").unwrap();
    let view = world.mount(&["upper"], true);
    fs::remove_dir(view.0.join("again")).unwrap();
    fs::remove_file(view.0.join("other")).unwrap();
    for name in ["again", "other"] {
        fs::create_dir_all(view.0.join(name).join("inner")).unwrap();
        fs::write(view.0.join(name).join("inner/file"), name).unwrap();
        fs::write(view.0.join(name).join("left"), name).unwrap();
    }
    drop(view);
    let open = Open::new(&world);
    let inner = |change: &Change| {
        change
            .path
            .split(|byte| *byte == b'/')
            .any(|name| name == b"inner")
    };
    open.apply(&inner, None, OnConflict::Refuse).unwrap();
    let view = world.mount(&["upper"], false);
    for name in ["again", "other"] {
        for root in [&view.0, &world.at("base")] {
            let text = fs::read_to_string(root.join(name).join("inner/file"));
            assert_eq!(text.unwrap(), name, "{}", root.display());
        }
        assert!(!world.at("base").join(name).join("left").exists());
        assert!(view.0.join(name).join("left").exists());
    }
}

#[test]
fn names_of_one_file_stay_one_where_one_cannot_be_moved() {
    if !inside("names_of_one_file_stay_one_where_one_cannot_be_moved") {
        return;
    }
    let world = world();
    fs::create_dir(world.at("base/again")).unwrap();
    let view = world.mount(&["upper"], true);
    fs::remove_dir(view.0.join("again")).unwrap();
    fs::create_dir_all(view.0.join("again")).unwrap();
    fs::create_dir_all(view.0.join("new")).unwrap();
    fs::write(view.0.join("again/one"), "a file").unwrap();
    for other in ["new/two", "three"] {
        fs::hard_link(view.0.join("again/one"), view.0.join(other)).unwrap();
    }
    drop(view);
    let open = Open::new(&world);
    open.apply(&|_| true, None, OnConflict::Refuse).unwrap();
    let inode = |path: &str| fs::metadata(world.at("base").join(path)).unwrap().ino();
    assert_eq!(inode("again/one"), inode("three"));
    assert_eq!(inode("again/one"), inode("new/two"));
}

#[test]
fn a_link_in_the_place_of_a_directory_stays_in_the_layer() {
    if !inside("a_link_in_the_place_of_a_directory_stays_in_the_layer") {
        return;
    }
    let world = world();
    fs::create_dir_all(world.at("base/was/inner")).unwrap();
    let view = world.mount(&["upper"], true);
    fs::remove_dir_all(view.0.join("was")).unwrap();
    symlink("was", view.0.join("was")).unwrap();
    drop(view);
    let open = Open::new(&world);
    let inner = |change: &Change| change.path == b"was/inner";
    open.apply(&inner, None, OnConflict::Refuse).unwrap();
    assert!(world.at("base/was").is_dir());
    assert!(!world.at("base/was/inner").exists());
    assert!(world.at("upper/was").is_symlink());
}

#[test]
fn a_device_in_a_layer_is_refused() {
    let world = world();
    let upper = open(&world.at("upper"));
    let device = rustix::fs::makedev(1, 3);
    let made = rustix::fs::mknodat(
        &upper,
        "null",
        FileType::CharacterDevice,
        Mode::RUSR,
        device,
    );
    if made.is_err() {
        eprintln!("skipped: only root makes devices");
        return;
    }
    let error = diff(&[upper.as_fd()], open(&world.at("base")).as_fd()).unwrap_err();
    assert!(error.to_string().contains("null is a device"), "{error}");
}

#[test]
fn a_store_on_another_file_system_gives_the_same() {
    if !inside("a_store_on_another_file_system_gives_the_same") {
        return;
    }
    let world = world();
    for name in ["upper", "preimages"] {
        let place = world.at(name);
        mount("tmpfs", &place, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
    }
    fs::create_dir_all(world.at("base/old/tree")).unwrap();
    for name in ["old/tree/x", "edit", "gone"] {
        fs::write(world.at("base").join(name), name).unwrap();
    }
    let start = observe(&world.at("base"));
    // Made by hand: an overlay's work directory must be beside its layer.
    let upper = world.at("upper");
    fs::create_dir_all(upper.join("new/deep")).unwrap();
    fs::write(upper.join("new/deep/file"), "text").unwrap();
    let sparse = File::create(upper.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, b"end", 60 << 20).unwrap();
    fs::write(upper.join("edit"), "edited").unwrap();
    fs::hard_link(upper.join("edit"), upper.join("edit too")).unwrap();
    symlink("new", upper.join("link")).unwrap();
    let handle = open(&upper);
    for name in ["old", "gone"] {
        rustix::fs::mknodat(&handle, name, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }
    let mut expected = observe(&upper);
    expected.retain(|_, state| state.kind != "device");
    let open = Open::new(&world);
    open.apply(&|_| true, None, OnConflict::Refuse).unwrap();
    let after = observe(&world.at("base"));
    assert_same("the tree is what the layer showed", &expected, &after);
    let blocks = fs::metadata(world.at("base/sparse")).unwrap().blocks();
    assert!(blocks < 1024, "{blocks} blocks of 512 bytes");
    let kept = observe(&world.at("preimages"));
    for name in ["old/tree/x", "edit", "gone"] {
        assert_eq!(kept[Path::new(name)], start[Path::new(name)]);
    }
    for name in ["upper", "preimages"] {
        // The directories are still open here.
        unmount(world.at(name), UnmountFlags::DETACH).unwrap();
    }
}

/// Runs outside namespaces: for an ordinary user the modes are in the way.
#[test]
fn closed_directories_are_listed_and_applied() {
    let world = world();
    fs::create_dir_all(world.at("base/closed/inner")).unwrap();
    fs::write(world.at("base/closed/inner/file"), "old").unwrap();
    let close = |path: &str, mode| {
        fs::set_permissions(world.at(path), Permissions::from_mode(mode)).unwrap()
    };
    close("base/closed/inner", 0o000);
    close("base/closed", 0o100);
    fs::create_dir_all(world.at("upper/closed/inner")).unwrap();
    fs::write(world.at("upper/closed/inner/file"), "new").unwrap();
    fs::create_dir(world.at("upper/made")).unwrap();
    fs::write(world.at("upper/made/unreadable"), "text").unwrap();
    close("upper/made/unreadable", 0o000);
    close("upper/made", 0o000);
    close("upper/closed/inner", 0o000);
    close("upper/closed", 0o500);
    let open = Open::new(&world);
    let expected = [
        "modified closed mode",
        "modified closed/inner/file",
        "created made",
        "created made/unreadable",
    ];
    let listed: Vec<_> = lines(&open.diff())
        .iter()
        .map(|line| line.replace(" content", ""))
        .collect();
    assert_eq!(listed, expected);
    let mode = |path: &str| fs::symlink_metadata(world.at(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("base/closed"), mode("upper/made")), (0o100, 0));
    open.apply(&|_| true, None, OnConflict::Refuse).unwrap();
    assert_eq!((mode("base/closed"), mode("base/made")), (0o500, 0));
    close("base/closed", 0o700);
    close("base/made", 0o700);
    assert_eq!(
        (mode("base/closed/inner"), mode("base/made/unreadable")),
        (0, 0)
    );
    close("base/closed/inner", 0o700);
    assert_eq!(
        fs::read_to_string(world.at("base/closed/inner/file")).unwrap(),
        "new"
    );
    let parent = layers::open(world.scratch.path());
    for name in ["base", "upper", "preimages"] {
        apply::remove(parent.as_fd(), name.as_bytes()).unwrap();
    }
}

#[test]
fn removing_takes_any_depth() {
    let world = world();
    let upper = world.at("upper");
    let mut deep = open(&upper);
    for _ in 0..3000 {
        rustix::fs::mkdirat(&deep, "d", Mode::RWXU).unwrap();
        deep = File::from(
            rustix::fs::openat(&deep, "d", rustix::fs::OFlags::RDONLY, Mode::empty()).unwrap(),
        );
    }
    let error = diff(&[open(&upper).as_fd()], open(&world.at("base")).as_fd()).unwrap_err();
    assert!(error.to_string().contains("too deep"), "{error}");
    apply::remove(open(world.scratch.path()).as_fd(), b"upper").unwrap();
    assert!(!upper.exists());
}
