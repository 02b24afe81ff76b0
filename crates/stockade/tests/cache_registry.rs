//! pip and npm against a registry on this machine's loopback: the second run
//! has from the cache what the first one fetched, and what one project does to
//! its cache reaches no other.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use stockade_testkit::{Finished, World, skip};

/// Packs one package in both formats into the current directory. The wheel is
/// not compressed, so that its text can be found in a cache.
const PACK: &str = r#"
import base64, hashlib, io, json, tarfile, zipfile
info = "demo_pkg-1.0.dist-info/"
with zipfile.ZipFile("wheel", "w") as wheel:
    wheel.writestr("demo_pkg.py", "SAYS = 'genuine'\n")
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL",
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "demo_pkg.py,,\n" + "".join(
        info + name + ",,\n" for name in ("METADATA", "WHEEL", "RECORD")))
manifest = {"name": "demo-pkg", "version": "1.0.0", "main": "index.js"}
with tarfile.open("tarball", "w:gz") as tarball:
    for name, text in (("package.json", json.dumps(manifest)),
                       ("index.js", "module.exports = 'genuine';\n")):
        entry = tarfile.TarInfo("package/" + name)
        entry.size = len(text)
        tarball.addfile(entry, io.BytesIO(text.encode()))
content = open("tarball", "rb").read()
print("sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode())
"#;
const PYTHON: &str = "/usr/bin/python3";
const WHEEL: &str = "/files/demo_pkg-1.0-py3-none-any.whl";
const TARBALL: &str = "/demo-pkg/-/demo-pkg-1.0.0.tgz";

/// A registry that counts what is fetched; it ends with the test's process.
struct Registry {
    port: u16,
    /// Paths of the requests so far.
    seen: Arc<Mutex<Vec<String>>>,
}

/// What is at each path.
type Pages = HashMap<String, (&'static str, Vec<u8>)>;

impl Registry {
    fn start(world: &World) -> Self {
        let place = world.outside().join("packages");
        fs::create_dir(&place).unwrap();
        let mut pack = Command::new(PYTHON);
        let packed = pack
            .args(["-c", PACK])
            .current_dir(&place)
            .output()
            .unwrap();
        let integrity = Finished::of(packed).ok();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let index = format!("<!DOCTYPE html><a href=\"{WHEEL}\">demo</a>");
        let manifest = serde_json::json!({
            "name": "demo-pkg",
            "dist-tags": { "latest": "1.0.0" },
            "versions": { "1.0.0": {
                "name": "demo-pkg",
                "version": "1.0.0",
                "main": "index.js",
                "dist": {
                    "tarball": format!("http://127.0.0.1:{port}{TARBALL}"),
                    "integrity": integrity,
                },
            } },
        });
        let read = |name: &str| fs::read(place.join(name)).unwrap();
        let octets = "application/octet-stream";
        let pages = Arc::new(Pages::from([
            ("/simple/demo-pkg/".to_owned(), ("text/html", index.into())),
            (WHEEL.to_owned(), (octets, read("wheel"))),
            (
                "/demo-pkg".to_owned(),
                ("application/json", manifest.to_string().into()),
            ),
            (TARBALL.to_owned(), (octets, read("tarball"))),
        ]));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = seen.clone();
        // Without a date pip keeps nothing.
        let mut date = Command::new("date");
        let date = date
            .args(["-u", "+%a, %d %b %Y %H:%M:%S GMT"])
            .env("LC_ALL", "C");
        let date: Arc<str> = Finished::of(date.output().unwrap()).ok().into();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (pages, noted, date) = (pages.clone(), noted.clone(), date.clone());
                std::thread::spawn(move || {
                    // A client may close at any moment.
                    let _closed = answer(stream, &pages, &noted, &date).is_err();
                });
            }
        });
        Self { port, seen }
    }

    /// How often a path was asked for.
    fn fetched(&self, path: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|one| *one == path).count()
    }
}

/// Answers one request. Packages may be kept, as real registries say; what
/// lists them may not.
fn answer(
    stream: TcpStream,
    pages: &Pages,
    seen: &Mutex<Vec<String>>,
    date: &str,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    seen.lock().unwrap().push(path.to_owned());
    let nothing = ("text/plain", b"nothing is here\n".to_vec());
    let (status, (kind, body)) = match pages.get(path) {
        Some(page) => ("200 OK", page),
        None => ("404 Not Found", &nothing),
    };
    let keep = match *kind == "application/octet-stream" {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\nDate: {date}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Cache-Control: {keep}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)
}

/// A package manager and how it is asked for the package.
struct Manager {
    program: &'static str,
    /// `PORT` stands for the registry's.
    install: &'static str,
    /// Prints what the installed package says.
    says: &'static str,
    /// Takes the installed package away.
    remove: &'static str,
    /// What is fetched.
    package: &'static str,
    cache: &'static str,
}

const PIP: Manager = Manager {
    program: "/usr/bin/pip3",
    install: "/usr/bin/pip3 install --quiet --retries 0 --disable-pip-version-check --no-deps \
              --trusted-host 127.0.0.1 -i http://127.0.0.1:PORT/simple --target site demo-pkg",
    says: "/usr/bin/python3 -c 'import sys; sys.path.insert(0, \"site\"); import demo_pkg; \
           print(demo_pkg.SAYS)'",
    remove: "rm -rf site",
    package: WHEEL,
    cache: "$PIP_CACHE_DIR",
};

const NPM: Manager = Manager {
    program: "/usr/bin/npm",
    install: "npm install --silent --fetch-retries 0 --no-audit --no-fund --ignore-scripts \
              --registry http://127.0.0.1:PORT demo-pkg",
    says: "node -p 'require(\"demo-pkg\")'",
    remove: "rm -rf node_modules package.json package-lock.json",
    package: TARBALL,
    cache: "$npm_config_cache",
};

impl Manager {
    fn is_there(&self, test: &str) -> bool {
        let there = Path::new(self.program).exists() && Path::new(PYTHON).exists();
        if !there {
            skip(test, self.program, &format!("no {}", self.program));
        }
        there
    }

    /// Installs afresh in a fresh sandbox.
    fn install(&self, world: &World, project: &Path, registry: &Registry) -> Finished {
        let install = self.install.replace("PORT", &registry.port.to_string());
        let script = format!("{} && {install} && {}", self.remove, self.says);
        inside(world, project, &script)
    }
}

fn inside(world: &World, project: &Path, script: &str) -> Finished {
    let mut command = world.stockade();
    command
        .current_dir(project)
        .args(["run", "--wall-time", "5m", "--", "sh", "-c", script])
        .stdin(Stdio::null());
    Finished::of(command.output().unwrap())
}

fn prepared(manager: &Manager, test: &str) -> Option<(World, Registry)> {
    if !manager.is_there(test) {
        return None;
    }
    let world = World::new();
    let registry = Registry::start(&world);
    world.policy(&format!("[network]\nhost_ports = [{}]\n", registry.port));
    Some((world, registry))
}

fn project(world: &World, name: &str) -> PathBuf {
    let project = world.home.join(name);
    fs::create_dir(&project).unwrap();
    project
}

fn second_run_is_served(manager: &Manager, test: &str) {
    let Some((world, registry)) = prepared(manager, test) else {
        return;
    };
    for _ in 0..2 {
        let installed = manager.install(&world, &world.project, &registry);
        assert_eq!(installed.ok(), "genuine");
        assert_eq!(registry.fetched(manager.package), 1);
    }
    // The control: it was the cache, and the registry would have been asked.
    let mut clear = world.stockade();
    let cleared = clear.args(["cache", "clear"]).output().unwrap();
    Finished::of(cleared).expect_code(0);
    let installed = manager.install(&world, &world.project, &registry);
    assert_eq!(installed.ok(), "genuine");
    assert_eq!(registry.fetched(manager.package), 2);
}

fn poison_stays_where_it_is(manager: &Manager, test: &str) {
    let Some((world, registry)) = prepared(manager, test) else {
        return;
    };
    let installed = manager.install(&world, &world.project, &registry);
    assert_eq!(installed.ok(), "genuine");
    // The hostile project has a cache of its own, and ruins it.
    let hostile = project(&world, "hostile");
    let installed = manager.install(&world, &hostile, &registry);
    assert_eq!(installed.ok(), "genuine");
    assert_eq!(registry.fetched(manager.package), 2);
    let poison = format!(
        "cd {} && find . -type f -exec chmod u+w {{}} + && \
         grep -rlZ . . | LC_ALL=C xargs -0 sed -i 's/genuine/hostile/g; s/\\x1f\\x8b/\\x1f\\x8c/g'",
        manager.cache
    );
    inside(&world, &hostile, &poison).expect_code(0);
    // The control: there it has an effect.
    let spoilt = manager.install(&world, &hostile, &registry);
    let is_fetched_again = registry.fetched(manager.package) > 2;
    assert!(
        spoilt.stdout.trim() != "genuine" || is_fetched_again,
        "{spoilt:?}"
    );
    let fetched = registry.fetched(manager.package);
    let installed = manager.install(&world, &world.project, &registry);
    assert_eq!(installed.ok(), "genuine");
    assert_eq!(registry.fetched(manager.package), fetched);
    let third = project(&world, "third");
    assert_eq!(manager.install(&world, &third, &registry).ok(), "genuine");
    assert_eq!(registry.fetched(manager.package), fetched + 1);
    // Nor do the caller's own programs get any of it.
    assert!(!world.home.join(".npm").exists() && !world.home.join(".cache/pip").exists());
}

#[test]
fn a34_pip_fetches_once() {
    second_run_is_served(&PIP, "a34_pip_fetches_once");
}

#[test]
fn a34_npm_fetches_once() {
    second_run_is_served(&NPM, "a34_npm_fetches_once");
}

#[test]
fn b28_a_cache_of_pip_that_one_project_ruined_is_no_other_projects() {
    poison_stays_where_it_is(&PIP, "b28_a_cache_of_pip");
}

#[test]
fn b28_a_cache_of_npm_that_one_project_ruined_is_no_other_projects() {
    poison_stays_where_it_is(&NPM, "b28_a_cache_of_npm");
}
