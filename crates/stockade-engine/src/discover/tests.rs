//! Tests of discovery: the rules of the search, and planted files.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use super::*;

/// `home` holds a project `p` with the directories `p/a/b`.
struct Fixture {
    scratch: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join("home/p/a/b")).unwrap();
        Self { scratch }
    }

    fn at(&self, relative: &str) -> PathBuf {
        fs::canonicalize(self.scratch.path())
            .unwrap()
            .join(relative)
    }

    fn write(&self, relative: &str) {
        fs::write(self.at(relative), relative).unwrap();
    }

    fn find(&self, start: &str) -> Result<Project, DiscoverError> {
        find_project(&absolute(&self.at(start)), &absolute(&self.at("home")))
    }

    #[track_caller]
    fn check(&self, start: &str, root: &str, policy_file: Option<&str>) -> Vec<String> {
        let project = self.find(start).unwrap();
        assert_eq!(project.root, absolute(&self.at(root)));
        let found = project.policy_file.map(|source| source.path);
        assert_eq!(found, policy_file.map(|path| absolute(&self.at(path))));
        project.notes
    }
}

fn absolute(path: &Path) -> AbsolutePath {
    AbsolutePath::parse(path.as_os_str().as_bytes()).unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether ownership can be given away here; says so when not.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can give a file to another user");
    }
    is_root
}

#[test]
fn nearest_policy_file_then_nearest_repository_then_the_directory() {
    let fixture = Fixture::new();
    fixture.check("home/p/a/b", "home/p/a/b", None);
    fs::create_dir(fixture.at("home/p/.git")).unwrap();
    fixture.check("home/p/a/b", "home/p", None);
    fixture.write("home/p/a/.git");
    fixture.check("home/p/a/b", "home/p/a", None);
    fixture.write("home/p/stockade.toml");
    fixture.check("home/p/a/b", "home/p", Some("home/p/stockade.toml"));
    fixture.write("home/p/a/b/stockade.toml");
    fixture.check("home/p/a/b", "home/p/a/b", Some("home/p/a/b/stockade.toml"));
    let source = fixture.find("home/p").unwrap().policy_file.unwrap();
    assert_eq!(
        (source.layer, source.content),
        (Layer::Project, b"home/p/stockade.toml".to_vec())
    );
}

#[test]
fn home_and_what_is_above_it_are_never_found() {
    let fixture = Fixture::new();
    for place in ["home", "."] {
        fixture.write(&format!("{place}/stockade.toml"));
        fs::create_dir(fixture.at(&format!("{place}/.git"))).unwrap();
    }
    fixture.check("home/p/a/b", "home/p/a/b", None);
    fixture.check("home", "home", None);
    symlink("home", fixture.at("link")).unwrap();
    let linked = find_project(
        &absolute(&fixture.at("home/p")),
        &absolute(&fixture.at("link")),
    );
    assert_eq!(linked.unwrap().root, absolute(&fixture.at("home/p")));
    let root = find_project(&AbsolutePath::root(), &absolute(&fixture.at("home"))).unwrap();
    assert_eq!((root.root, root.policy_file), (AbsolutePath::root(), None));
}

#[test]
fn a_start_through_a_link_belongs_to_where_it_leads() {
    let fixture = Fixture::new();
    fixture.write("home/p/stockade.toml");
    symlink("home/p/a", fixture.at("link")).unwrap();
    fixture.check("link", "home/p", Some("home/p/stockade.toml"));
}

#[test]
fn directories_in_which_everyone_creates_files_end_the_search() {
    for mode in [0o1777, 0o777, 0o1770] {
        let fixture = Fixture::new();
        fixture.write("home/p/stockade.toml");
        fs::create_dir(fixture.at("home/p/.git")).unwrap();
        set_mode(&fixture.at("home/p"), mode);
        let notes = fixture.check("home/p/a/b", "home/p/a/b", None);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("others may create files"), "{notes:?}");
        fixture.check("home/p", "home/p", None);
    }
}

#[test]
fn directories_of_other_users_end_the_search() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.write("home/p/stockade.toml");
    chown(fixture.at("home/p"), Some(65534), None).unwrap();
    let notes = fixture.check("home/p/a", "home/p/a", None);
    assert!(notes[0].contains("user 65534 owns"), "{notes:?}");
}

#[test]
fn a_project_file_is_regular_and_bounded() {
    let fixture = Fixture::new();
    let path = fixture.at("home/p/stockade.toml");
    let refusal = || fixture.find("home/p/a").unwrap_err().to_string();

    symlink("/etc/passwd", &path).unwrap();
    assert!(refusal().contains("symbolic link"));
    fs::remove_file(&path).unwrap();

    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(refusal().contains("not a regular file"));
    fs::remove_file(&path).unwrap();

    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(refusal().contains("not a regular file"));
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert!(refusal().contains("not a regular file"));
    fs::remove_dir(&path).unwrap();

    let most = usize::try_from(POLICY_BYTES_MAX).unwrap();
    fs::write(&path, vec![b'#'; most]).unwrap();
    assert_eq!(
        fixture
            .find("home/p")
            .unwrap()
            .policy_file
            .unwrap()
            .content
            .len(),
        most
    );
    fs::write(&path, vec![b'#'; most + 1]).unwrap();
    assert!(matches!(
        fixture.find("home/p"),
        Err(DiscoverError::Oversized { .. })
    ));
}

#[test]
fn a_missing_start_is_an_error() {
    let fixture = Fixture::new();
    let error = fixture.find("home/gone").unwrap_err().to_string();
    assert!(
        error.contains("home/gone") && error.contains("No such file"),
        "{error}"
    );
}

#[test]
fn the_users_file_may_be_a_link_but_only_to_a_private_file() {
    let fixture = Fixture::new();
    let configuration = fixture.at("home/.config/stockade");
    let places = Places {
        home: absolute(&fixture.at("home")),
        state: absolute(&fixture.at("state")),
        configuration: absolute(&configuration),
    };
    assert_eq!(user_file(&places).unwrap(), None);
    fs::create_dir_all(&configuration).unwrap();
    assert_eq!(user_file(&places).unwrap(), None);
    fixture.write("home/p/dotfile");
    symlink(
        fixture.at("home/p/dotfile"),
        configuration.join(POLICY_FILE_NAME),
    )
    .unwrap();
    set_mode(&fixture.at("home/p/dotfile"), 0o644);
    let source = user_file(&places).unwrap().unwrap();
    assert_eq!(source.resolved, absolute(&fixture.at("home/p/dotfile")));
    assert_eq!(source.layer, Layer::User);
    for mode in [0o664, 0o646] {
        set_mode(&fixture.at("home/p/dotfile"), mode);
        assert!(
            user_file(&places)
                .unwrap_err()
                .to_string()
                .contains("chmod go-w")
        );
    }
    set_mode(&fixture.at("home/p/dotfile"), 0o644);
    if is_root() {
        chown(fixture.at("home/p/dotfile"), Some(65534), None).unwrap();
        assert!(
            user_file(&places)
                .unwrap_err()
                .to_string()
                .contains("user 65534 owns it")
        );
    }
    fs::remove_file(fixture.at("home/p/dotfile")).unwrap();
    assert!(
        user_file(&places).is_err(),
        "a dangling link is not the same as no file"
    );
}

#[test]
fn the_organisations_file_and_directory_are_roots_alone() {
    let fixture = Fixture::new();
    let directory = absolute(&fixture.at("home/p"));
    assert_eq!(
        organisation_file_in(&absolute(&fixture.at("none"))).unwrap(),
        None
    );
    if !is_root() {
        assert!(
            organisation_file_in(&directory)
                .unwrap_err()
                .to_string()
                .contains("owns it")
        );
        return;
    }
    set_mode(&fixture.at("home/p"), 0o755);
    assert_eq!(organisation_file_in(&directory).unwrap(), None);
    fixture.write("home/p/stockade.toml");
    set_mode(&fixture.at("home/p/stockade.toml"), 0o644);
    assert!(organisation_file_in(&directory).unwrap().is_some());
    set_mode(&fixture.at("home/p"), 0o775);
    assert!(organisation_file_in(&directory).is_err());
    set_mode(&fixture.at("home/p"), 0o755);
    chown(fixture.at("home/p/stockade.toml"), Some(65534), None).unwrap();
    assert!(organisation_file_in(&directory).is_err());
}
