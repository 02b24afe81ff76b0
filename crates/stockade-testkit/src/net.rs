//! A small internet for tests: a namespace with origins, resolvers and sinks,
//! and beside it the machine on which Stockade runs.
//!
//! The two network namespaces are joined by a cable. Everything that leaves
//! the machine ends in `stockade-origin`, which writes down what reaches it,
//! so that a test can also show that nothing did. Works for root and, in a
//! user namespace of its own, for an ordinary user.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Finished, World, is_root};

/// Where `*.test` names lead unless a test says otherwise.
pub const ORIGIN: &str = "93.184.216.34";
/// The resolver of the small internet: the one address from which its answers
/// come, and an answer from another one is no answer.
pub const RESOLVER: &str = "192.0.2.1:53";
/// The machine's own address.
pub const MACHINE: &str = "192.0.2.2";

/// The small internet; gone when dropped.
#[derive(Debug)]
pub struct Internet {
    holder: Child,
    /// Its closing tells the holder to end.
    _rope: ChildStdin,
    directory: PathBuf,
}

const SCRIPT: &str = r#"
set -eu
PATH=$PATH:/usr/sbin:/sbin
ip link set lo up
# The origin waits in its own namespace until it has a network.
exec 3<&0
unshare -n "$1" "$2" <&3 &
origin=$!
trap 'kill $origin 2>/dev/null || :' EXIT
while ! [ -e "$2/born" ]; do sleep 0.01; done
ip link add host0 type veth peer name net0 netns $origin
ip addr add 192.0.2.2/24 dev host0
ip -6 addr add 2001:db8:1::2/64 dev host0 nodad
ip link set host0 up
nsenter -t $origin -n sh -eu -c '
  ip link set lo up
  ip addr add 192.0.2.1/24 dev net0
  ip -6 addr add 2001:db8:1::1/64 dev net0 nodad
  ip link set net0 up
  for net in 93.184.0.0/16 8.8.0.0/16 10.0.0.0/8 169.254.0.0/16 100.64.0.0/10 \
             172.16.0.0/12 192.168.0.0/16 203.0.113.0/24 198.51.100.0/24; do
    ip route add local $net dev lo
  done
  for net in 2606:2800::/32 fd00::/16 64:ff9b::/96; do ip -6 route add local $net dev lo; done'
ip route add default via 192.0.2.1
ip -6 route add default via 2001:db8:1::1
: > "$2/connected"
# Ends when the test does.
cat > /dev/null
"#;

impl Internet {
    /// Starts it, with a zone in which `origin.test` and everything below
    /// `test` that [`Internet::zone`] adds is known.
    pub fn start(world: &World) -> Self {
        let directory = world.outside().join("internet");
        fs::create_dir_all(directory.join("git")).expect("a directory can be made");
        fs::write(directory.join("zone.json"), "{}").expect("a zone can be written");
        let mut unshare = Command::new("unshare");
        if !is_root() {
            // The capabilities are for `ip`; they end where a program is
            // executed without being handed on.
            unshare.args(["--map-current-user", "--keep-caps"]);
        }
        unshare.args(["-n", "sh", "-c", SCRIPT, "sh"]);
        unshare.arg(origin()).arg(&directory).stdin(Stdio::piped());
        let mut holder = unshare.spawn().expect("unshare starts");
        let rope = holder.stdin.take().expect("standard input is a pipe");
        let internet = Self {
            holder,
            _rope: rope,
            directory,
        };
        internet.wait_for("connected");
        internet.wait_for("listening");
        internet.zone("origin.test", &[ORIGIN]);
        internet
    }

    /// Adds a name with its addresses, each of either family.
    pub fn zone(&self, name: &str, addresses: &[&str]) {
        self.zone_value(name, json!({ "addresses": addresses }));
    }

    /// Adds a name whose answer changes with each query; the last one stays.
    pub fn zone_sequence(&self, name: &str, answers: &[&[&str]]) {
        self.zone_value(name, json!({ "sequence": answers }));
    }

    /// Adds an alias.
    pub fn zone_alias(&self, name: &str, target: &str) {
        self.zone_value(name, json!({ "alias": target }));
    }

    fn zone_value(&self, name: &str, value: Value) {
        let path = self.directory.join("zone.json");
        let text = fs::read_to_string(&path).expect("the zone can be read");
        let mut zone: Value = serde_json::from_str(&text).expect("the zone is JSON");
        zone[name] = value;
        let new = self.directory.join("zone.new");
        fs::write(&new, zone.to_string()).expect("the zone can be written");
        fs::rename(new, path).expect("the zone can be replaced");
    }

    /// Certificate (PEM) of the authority that signed all origins'.
    pub fn authority(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// Where `https://any.test/git/` finds bare repositories.
    pub fn git_root(&self) -> PathBuf {
        self.directory.join("git")
    }

    /// Writes the user's policy, with this internet's resolver and roots
    /// before it. `network` are lines below `[network]`, `rest` further tables.
    pub fn policy(&self, world: &World, network: &str, rest: &str) {
        world.policy(&format!(
            "[network]\nresolvers = [\"{RESOLVER}\"]\nroots = [\"{}\"]\n{network}\n{rest}",
            self.authority().display()
        ));
    }

    /// `command`, to be run on the machine beside the internet.
    pub fn on_machine(&self, command: &Command) -> Command {
        self.entered(self.holder.id(), command)
    }

    /// `command`, to be run among the origins.
    pub fn among_origins(&self, command: &Command) -> Command {
        let origin = fs::read_to_string(self.directory.join("born")).expect("the origin was born");
        let origin = origin.trim().parse().expect("it wrote its process id");
        self.entered(origin, command)
    }

    fn entered(&self, process: u32, command: &Command) -> Command {
        let mut entered = Command::new("nsenter");
        entered.arg("-t").arg(process.to_string()).arg("-n");
        if !is_root() {
            entered.args(["-U", "--preserve-credentials"]);
        }
        entered.arg("--").arg(command.get_program());
        entered.args(command.get_args()).env_clear();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                entered.env(name, value);
            }
        }
        if let Some(directory) = command.get_current_dir() {
            entered.current_dir(directory);
        }
        entered
    }

    /// The `stockade` command on the machine beside the internet.
    pub fn stockade(&self, world: &World) -> Command {
        self.on_machine(&world.stockade())
    }

    /// `stockade run OPTIONS -- ARGV`, finished, with empty standard input.
    pub fn run<A: AsRef<OsStr>>(&self, world: &World, options: &[&str], argv: &[A]) -> Finished {
        let mut command = world.stockade();
        command.arg("run").args(options).arg("--").args(argv);
        let mut command = self.on_machine(&command);
        command.stdin(Stdio::null());
        Finished::of(command.output().expect("nsenter starts"))
    }

    /// A shell script inside.
    pub fn sh(&self, world: &World, script: &str) -> Finished {
        self.run(world, &[], &["sh", "-c", script])
    }

    /// Everything that reached the internet so far, in order.
    pub fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.directory.join("log.jsonl")).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines.collect()
    }

    /// The entries of one kind: `connect`, `request`, `dns`, `udp`, `data`.
    pub fn seen(&self, kind: &str) -> Vec<Value> {
        let mut log = self.log();
        log.retain(|entry| entry["kind"] == kind);
        log
    }

    /// Whether these bytes as text are anywhere in what reached the internet.
    pub fn saw_text(&self, text: &str) -> bool {
        let log = fs::read_to_string(self.directory.join("log.jsonl")).unwrap_or_default();
        log.contains(text)
    }

    /// Forgets what was seen.
    pub fn forget(&self) {
        let log = self.directory.join("log.jsonl");
        fs::File::create(log).expect("the log can be emptied");
    }

    fn wait_for(&self, mark: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.directory.join(mark).exists() {
            assert!(
                Instant::now() < deadline,
                "the small internet has no {mark}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        let _gone = self.holder.kill().is_err();
        let _reaped = self.holder.wait().is_err();
    }
}

/// The program that plays the internet: `STOCKADE_ORIGIN`, else the one that
/// cargo built beside this test.
fn origin() -> PathBuf {
    if let Some(path) = std::env::var_os("STOCKADE_ORIGIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a process knows its executable");
    let built = test
        .parent()
        .and_then(Path::parent)
        .map(|directory| directory.join("stockade-origin"));
    let path = built.expect("tests lie in target/*/deps");
    assert!(
        path.exists(),
        "build it first: cargo build -p stockade-testkit --bin stockade-origin"
    );
    path
}

/// Writes to a child's standard input and closes it.
pub fn feed(child: &mut Child, bytes: &[u8]) {
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    let _closed = stdin.write_all(bytes).is_err();
}
