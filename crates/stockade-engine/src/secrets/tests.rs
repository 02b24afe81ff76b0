//! Tests of reading and keeping secrets.

use super::store::{Entry, Place, Store};
use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::SystemTime;
use stockade_policy::network::rules::{Attach, Mode, Target};
use stockade_policy::plan::Rule;
use stockade_policy::value::HostReach;

const SECRET: &str = "s3cret-value-of-this-test";

struct Fixture {
    directory: tempfile::TempDir,
    places: Places,
    project: AbsolutePath,
}

fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    // Links on the way are refused, and the temporary directory may be one.
    let root = directory.path().canonicalize().unwrap();
    let path = |name: &str| {
        let path = root.join(name);
        fs::create_dir(&path).unwrap();
        AbsolutePath::parse(path.to_str().unwrap()).unwrap()
    };
    Fixture {
        places: Places {
            home: path("home"),
            state: AbsolutePath::parse(root.join("state").to_str().unwrap()).unwrap(),
            configuration: path("configuration"),
        },
        project: path("project"),
        directory,
    }
}

impl Fixture {
    fn file(&self, name: &str, content: &str, mode: u32) -> AbsolutePath {
        let path = self.directory.path().canonicalize().unwrap().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        AbsolutePath::parse(path.to_str().unwrap()).unwrap()
    }

    fn read(&self, source: Source) -> Result<String, String> {
        let mut read = self.read_all(&[source])?;
        match read.remove(0) {
            SecretSource::Value(value) => Ok(value.reveal().to_owned()),
            SecretSource::Mint(_) => Err("minted".to_owned()),
        }
    }

    fn read_all(&self, sources: &[Source]) -> Result<Vec<SecretSource>, String> {
        let bindings: Vec<_> = sources.iter().map(binding).collect();
        read(&bindings, &self.project, &self.places).map_err(|error| error.to_string())
    }
}

fn binding(source: &Source) -> Binding {
    Binding {
        rule: Rule {
            id: "credential[0]".to_owned(),
            origin: "stockade.toml:1".to_owned(),
            reason: String::new(),
        },
        name: "mine".to_owned(),
        source: source.clone(),
        host: Target::Host {
            reach: HostReach::Exact,
            name: "api.test".to_owned(),
        },
        ports: Vec::new(),
        methods: Vec::new(),
        paths: Vec::new(),
        mode: Mode::Attach,
        form: Attach::Basic {
            user: String::new(),
        },
        variable: None,
        scrub: true,
        plaintext: false,
        expires_unix: None,
    }
}

fn command(script: &str) -> Source {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned);
    Source::Command {
        argv: argv.to_vec(),
    }
}

#[test]
fn a_variable_that_is_not_set_is_named_with_its_remedy() {
    let variable = "STOCKADE_TEST_NOT_SET".to_owned();
    let error = fixture().read(Source::Env { variable }).unwrap_err();
    assert!(error.contains("`mine`") && error.contains("STOCKADE_TEST_NOT_SET"));
    assert!(error.contains("remedy: set"), "{error}");
    // Cargo sets this one for every test.
    let variable = "CARGO_PKG_NAME".to_owned();
    let value = fixture().read(Source::Env { variable });
    assert_eq!(value.as_deref(), Ok("stockade-engine"));
}

#[test]
fn a_private_file_is_read_without_its_line_end() {
    let fixture = fixture();
    let path = fixture.file("token", &format!("{SECRET}\n"), 0o600);
    assert_eq!(fixture.read(Source::File { path }).as_deref(), Ok(SECRET));
}

#[test]
fn a_file_that_others_can_read_is_refused_with_the_remedy() {
    let fixture = fixture();
    for mode in [0o640, 0o604, 0o620] {
        let path = fixture.file("token", SECRET, mode);
        let error = fixture.read(Source::File { path }).unwrap_err();
        assert!(error.contains("chmod 600"), "{error}");
        assert!(!error.contains(SECRET));
    }
}

#[test]
fn a_file_that_could_be_another_one_is_refused() {
    let fixture = fixture();
    let path = fixture.file("real", SECRET, 0o600);
    let link = fixture
        .directory
        .path()
        .canonicalize()
        .unwrap()
        .join("link");
    symlink(path.as_path(), &link).unwrap();
    let source = |path: &std::path::Path| Source::File {
        path: AbsolutePath::parse(path.to_str().unwrap()).unwrap(),
    };
    let error = fixture.read(source(&link)).unwrap_err();
    assert!(error.contains("symbolic link"), "{error}");
    let error = fixture.read(source(fixture.project.as_path())).unwrap_err();
    assert!(error.contains("not a regular file"), "{error}");
    let missing = fixture.project.as_path().join("none");
    let error = fixture.read(source(&missing)).unwrap_err();
    assert!(error.contains("does not exist"), "{error}");
    fs::hard_link(path.as_path(), fixture.project.as_path().join("second")).unwrap();
    let error = fixture.read(source(path.as_path())).unwrap_err();
    assert!(error.contains("hard link"), "{error}");
}

#[test]
fn the_first_line_of_a_command_is_the_secret() {
    let fixture = fixture();
    let script = format!("echo {SECRET}; echo more; echo noise >&2; pwd >/dev/null");
    assert_eq!(fixture.read(command(&script)).as_deref(), Ok(SECRET));
    assert_eq!(fixture.read(command("pwd")).as_deref(), Ok("/"));
}

#[test]
fn a_command_that_fails_is_named_and_not_quoted() {
    let fixture = fixture();
    for (script, reason) in [
        (format!("echo {SECRET} >&2; exit 3"), "exit status: 3"),
        ("true".to_owned(), "nothing"),
        ("kill -9 $$".to_owned(), "signal: 9"),
        (
            "head -c 100000 /dev/zero | tr '\\0' a".to_owned(),
            "more than",
        ),
    ] {
        let error = fixture.read(command(&script)).unwrap_err();
        assert!(
            error.contains("`/bin/sh`") && error.contains(reason),
            "{error}"
        );
        assert!(!error.contains(SECRET));
    }
}

#[test]
fn a_command_of_the_project_is_not_run() {
    let fixture = fixture();
    let program = fixture.project.as_path().join("op");
    fs::write(&program, "#!/bin/sh\necho planted\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let link = fixture.directory.path().join("op");
    symlink(&program, &link).unwrap();
    for name in [program.as_path(), link.as_path(), "project/op".as_ref()] {
        let argv = vec![name.to_str().unwrap().to_owned()];
        let error = fixture.read(Source::Command { argv }).unwrap_err();
        let is_explained = error.contains("in the project") || error.contains("absolute");
        assert!(is_explained, "{error}");
    }
    let argv = vec!["stockade-no-such-program".to_owned()];
    let error = fixture.read(Source::Command { argv }).unwrap_err();
    assert!(error.contains("not in PATH"), "{error}");
}

#[test]
fn minted_secrets_are_handed_on_in_parts() {
    let fixture = fixture();
    let file = |name: &str| Source::File {
        path: fixture.file(name, name, 0o600),
    };
    let sources = [
        Source::OAuth2 {
            token_url: "https://auth.test/token".to_owned(),
            client_id: "id".to_owned(),
            client_secret: None,
            refresh_token: Some(Box::new(file("refresh"))),
            scopes: Vec::new(),
        },
        Source::AwsSts {
            endpoint: "https://sts.test".to_owned(),
            region: "eu-west-1".to_owned(),
            access_key_id: Box::new(file("id")),
            secret_access_key: Box::new(file("key")),
            role: "arn:aws:iam::1:role/x".to_owned(),
            policy: None,
            seconds: 900,
        },
    ];
    let read = fixture.read_all(&sources).unwrap();
    let parts = |source: &SecretSource| match source {
        SecretSource::Mint(parts) => parts.iter().map(|part| part.reveal().to_owned()).collect(),
        SecretSource::Value(_) => Vec::new(),
    };
    assert_eq!(parts(&read[0]), ["refresh"]);
    assert_eq!(parts(&read[1]), ["id", "key"]);
}

/// The keyring is tested by a program of its own, in which a session bus can
/// be chosen; here there may be one of the developer's.
fn has_no_bus() -> bool {
    std::env::var_os("DBUS_SESSION_BUS_ADDRESS").is_none()
        && std::env::var_os("XDG_RUNTIME_DIR").is_none()
}

#[test]
fn the_file_store_keeps_replaces_and_forgets() {
    if !has_no_bus() {
        println!("skipped: this session has a bus, on which there may be a keyring");
        return;
    }
    let fixture = fixture();
    let state = StateDirectory::open(&fixture.places).unwrap();
    let store = Store::open(state);
    let text = |text: &str| SecretText::new(text.to_owned());
    assert_eq!(store.list().unwrap(), []);
    for value in ["first-value", SECRET] {
        let place = store
            .set("github", &text(value), SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(place, Place::File);
    }
    let mode = fs::metadata(store.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let entry = Entry {
        name: "github".to_owned(),
        place: Place::File,
        stored: Some("1970-01-01T00:00:00.000Z".to_owned()),
    };
    assert_eq!(store.list().unwrap(), [entry]);
    let name = "github".to_owned();
    assert_eq!(
        fixture.read(Source::Keyring { name }).as_deref(),
        Ok(SECRET)
    );
    assert!(store.remove("github").unwrap() && !store.remove("github").unwrap());
    let name = "github".to_owned();
    let error = fixture.read(Source::Keyring { name }).unwrap_err();
    assert!(error.contains("stockade secret set github"), "{error}");
}

#[test]
fn bad_names_and_values_are_not_stored() {
    let fixture = fixture();
    let store = Store::open(StateDirectory::open(&fixture.places).unwrap());
    let good = SecretText::new(SECRET.to_owned());
    let long = "a".repeat(65);
    for name in ["", "a b", "../a", "a\n", long.as_str()] {
        assert!(
            store.set(name, &good, SystemTime::now()).is_err(),
            "{name:?}"
        );
    }
    let empty = SecretText::new(String::new());
    assert!(store.set("a", &empty, SystemTime::now()).is_err());
}

#[test]
fn a_damaged_or_open_store_gives_nothing_away() {
    if !has_no_bus() {
        println!("skipped: this session has a bus, on which there may be a keyring");
        return;
    }
    let fixture = fixture();
    let store = Store::open(StateDirectory::open(&fixture.places).unwrap());
    fs::write(store.file(), format!("{{\"version\":1,\"{SECRET}\":[]}}")).unwrap();
    fs::set_permissions(store.file(), fs::Permissions::from_mode(0o600)).unwrap();
    let error = store.get("a").unwrap_err().to_string();
    assert!(
        error.contains("remove it") && !error.contains(SECRET),
        "{error}"
    );
    fs::set_permissions(store.file(), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(store.get("a"), Err(SecretError::State(_))));
}
