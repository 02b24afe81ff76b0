//! What the tests of real clients share: a home with the clients' sources, an
//! internet, and running many clients in one sandbox with one line of result
//! for each.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use stockade_testkit::net::Internet;
use stockade_testkit::{Finished, World, has_program, is_root, skip};

/// Longer than any client needs on a loaded machine, and shorter than any of
/// their own timeouts: who takes longer hangs.
const HANGS_AFTER: &str = "100";

/// What `timeout` (timeout(1)) ends with when it had to end the command.
const HUNG: i32 = 124;

/// A home, the internet beside it, and the clients' sources in the project.
pub struct Range {
    pub world: World,
    pub internet: Internet,
}

/// How one client ended.
#[derive(Debug)]
pub struct Ended {
    pub client: String,
    pub code: i32,
    /// Both streams, line ends as ` | `.
    pub said: String,
}

impl Range {
    pub fn new() -> Self {
        let world = World::new();
        let internet = Internet::start(&world);
        let sources: [(&str, &str); 11] = [
            ("get_urllib.py", include_str!("../clients/get_urllib.py")),
            (
                "get_requests.py",
                include_str!("../clients/get_requests.py"),
            ),
            ("get_httpx.py", include_str!("../clients/get_httpx.py")),
            ("get_socket.py", include_str!("../clients/get_socket.py")),
            ("get_fetch.mjs", include_str!("../clients/get_fetch.mjs")),
            ("get_https.mjs", include_str!("../clients/get_https.mjs")),
            ("get.go", include_str!("../clients/get.go")),
            ("Get.java", include_str!("../clients/Get.java")),
            ("websocket.py", include_str!("../clients/websocket.py")),
            ("grpc_unary.py", include_str!("../clients/grpc_unary.py")),
            ("dev_server.mjs", include_str!("../clients/dev_server.mjs")),
        ];
        for (name, text) in sources {
            world.write(world.project.join(name), text);
        }
        fs::copy(internet.authority(), world.project.join("ca.pem")).expect("it can be copied");
        Self { world, internet }
    }

    /// The user's policy; see [`Internet::policy`].
    pub fn policy(&self, network: &str, rest: &str) {
        self.internet.policy(&self.world, network, rest);
    }

    /// Lines of a policy that give tools the origins' authority by the
    /// variables that their manuals name, as their user would.
    pub fn trusting(&self) -> String {
        let file = self.world.project.join("ca.pem");
        let set: Vec<String> = [
            "CURL_CA_BUNDLE",
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "NODE_EXTRA_CA_CERTS",
            "GIT_SSL_CAINFO",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        ]
        .iter()
        .map(|name| format!("{name} = \"{}\"", file.display()))
        .collect();
        format!("[environment]\nset = {{ {} }}", set.join(", "))
    }

    /// Runs each shell command inside, one after the other in one sandbox.
    #[track_caller]
    pub fn run_each(&self, options: &[&str], commands: &[(String, String)]) -> Vec<Ended> {
        let mut script = String::from(
            "each() {\n  name=$1; shift\n  said=$(timeout -k 5 \"$LIMIT\" sh -c \"$1\" 2>&1 </dev/null); code=$?\n  \
             printf '\\n%s\\t%s\\t%s\\n' \"$name\" \"$code\" \"$(printf %s \"$said\" | tr '\\n\\t' '| ')\"\n}\n",
        );
        script += &format!("LIMIT={HANGS_AFTER}\n");
        for (name, command) in commands {
            let quoted = command.replace('\'', r"'\''");
            script += &format!("each '{name}' '{quoted}'\n");
        }
        let finished = self
            .internet
            .run(&self.world, options, &["sh", "-c", &script]);
        let ended: Vec<Ended> = finished.stdout.lines().filter_map(ended).collect();
        assert_eq!(ended.len(), commands.len(), "{finished:?}");
        ended
    }

    /// A program among the origins, ended with the returned guard.
    pub fn server(&self, command: &Command) -> Server {
        let mut entered = self.internet.among_origins(command);
        entered.stdin(Stdio::null()).stdout(Stdio::null());
        Server(entered.spawn().expect("nsenter starts"))
    }

    /// A command on the machine beside the internet, finished.
    pub fn outside(&self, command: &Command) -> Finished {
        let mut entered = self.internet.on_machine(command);
        entered.stdin(Stdio::null());
        Finished::of(entered.output().expect("nsenter starts"))
    }
}

/// Ends its program when dropped.
pub struct Server(pub std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM first: a database ends its own processes on it.
        let mut kill = Command::new("kill");
        let _gone = kill.arg(self.0.id().to_string()).status().is_err();
        for _ in 0..500 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _gone = self.0.kill().is_err();
        let _reaped = self.0.wait().is_err();
    }
}

fn ended(line: &str) -> Option<Ended> {
    let mut parts = line.splitn(3, '\t');
    Some(Ended {
        client: parts.next()?.to_owned(),
        code: parts.next()?.parse().ok()?,
        said: parts.next()?.to_owned(),
    })
}

/// Every client ended well and said this.
#[track_caller]
pub fn all_said(ended: &[Ended], text: &str) {
    let wrong: Vec<&Ended> = ended
        .iter()
        .filter(|one| one.code != 0 || !one.said.contains(text))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every client failed by itself, in time, and without a word of an origin.
#[track_caller]
pub fn all_refused(ended: &[Ended]) {
    let wrong: Vec<&Ended> = ended
        .iter()
        .filter(|one| [0, HUNG].contains(&one.code) || one.said.contains("origin /"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether a program or a file that a test needs is there; else the test says
/// what it leaves out.
#[track_caller]
pub fn there(test: &str, needed: &str) -> bool {
    let found = match needed.starts_with('/') {
        true => Path::new(needed).exists(),
        false => has_program(needed),
    };
    if !found {
        skip(test, needed, &format!("there is no {needed}"));
    }
    found
}

/// `program` as somebody who is not root: some servers refuse to be.
pub fn as_nobody(program: &str) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
    command
}
