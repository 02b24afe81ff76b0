//! The two machines of the egress benchmark, the peers on one of them, and how a client is started
//! behind each.

use crate::bench::contenders;
use crate::bench::meter;
use crate::shell;
use crate::user::{Scratch, User};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The origin's name and address; only /etc/hosts of the benchmark knows it.
pub const HOST: &str = "origin.bench";
const ADDRESS: &str = "93.184.216.34";
/// The secret that Stockade attaches and scrubs.
const TOKEN: &str = "bench-token-0123456789abcdef0123456789abcdef";

/// Who is between the client and the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nobody.
    Direct,
    Stockade,
    Squid,
    SquidBump,
    Tinyproxy,
    Mitmproxy,
    /// mitmproxy told to leave TLS and everything else alone.
    MitmproxyTunnel,
    Srt,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Stockade => "stockade",
            Self::Squid => "squid",
            Self::SquidBump => "squid ssl-bump",
            Self::Tinyproxy => "tinyproxy",
            Self::Mitmproxy | Self::MitmproxyTunnel => "mitmproxy",
            Self::Srt => "srt",
        }
    }

    fn port(self) -> Option<u16> {
        match self {
            Self::Squid => Some(3129),
            Self::SquidBump => Some(3132),
            Self::Tinyproxy => Some(3130),
            Self::Mitmproxy => Some(3131),
            Self::MitmproxyTunnel => Some(3133),
            Self::Direct | Self::Stockade | Self::Srt => None,
        }
    }
}

/// What a client measured, and what the process between used meanwhile.
pub struct Measured {
    pub report: Value,
    /// CPU time in seconds; none where nobody is between, or it is not known who.
    pub cpu_seconds: Option<f64>,
    /// Resident memory of Stockade's egress process at the end, in bytes.
    pub resident_bytes: Option<u64>,
}

pub struct Arena {
    pub user: User,
    pub scratch: Scratch,
    pub stockade: PathBuf,
    load: PathBuf,
    srt: PathBuf,
    project: PathBuf,
    peers: Vec<(Way, Child)>,
    origin: Child,
}

/// Builds what is measured and both ends of the load.
pub fn build() -> Result<()> {
    // The namespaces of the benchmark have no way to the registry.
    contenders::download_peers()?;
    let package = ["build", "--quiet", "--release", "--package"];
    shell::run(shell::cargo().args(package).arg("stockade"))?;
    shell::run(
        shell::cargo()
            .args(package)
            .args(["stockade-testkit", "--bin", "stockade-load"]),
    )?;
    let example = ["stockade-policy", "--example", "decision"];
    shell::run(shell::cargo().args(package).args(example))
}

impl Arena {
    /// Joins the two machines and starts the origin and the peers. This process must have a
    /// network and mounts of its own.
    pub fn new() -> Result<Self> {
        let user = User::ordinary()?;
        let scratch = Scratch::new(&user.home, "stockade-egress-bench")?;
        let release = shell::target_directory().join("release");
        let load = scratch.install(&release.join("stockade-load"))?;
        let stockade = scratch.install(&release.join("stockade"))?;
        let origin_directory = scratch.directory_of(&user, "origin")?;
        let origin = start_origin(&load, &origin_directory)?;
        join(&scratch, &origin)?;
        let project = scratch.directory_of(&user, "project")?;
        let mut arena = Self {
            srt: contenders::install_peers(&scratch)?
                .srt_program()
                .to_owned(),
            user,
            scratch,
            stockade,
            load,
            project,
            peers: Vec::new(),
            origin,
        };
        arena.write_policies()?;
        arena.start_peers()?;
        Ok(arena)
    }

    pub fn authority(&self) -> PathBuf {
        self.scratch.path().join("origin/authority.pem")
    }

    /// Starts the load's client with these arguments behind `way` and takes its report.
    pub fn client(&self, way: Way, home: Home, arguments: &[&str]) -> Result<Measured> {
        let mut command = match way {
            Way::Stockade => {
                let mut command = self.stockade_with(home);
                command.args(["run", "--"]).arg(&self.load);
                command
            }
            Way::Srt => {
                let mut command = self.user.command("node");
                command
                    .arg(&self.srt)
                    .arg("--settings")
                    .arg(self.scratch.path().join("srt.json"));
                command.arg("--").arg(&self.load);
                command
            }
            _ => self.user.command(&self.load),
        };
        if let Some(port) = way.port() {
            command.env("HTTPS_PROXY", format!("http://127.0.0.1:{port}"));
        }
        command.args(arguments).current_dir(&self.project);
        let between = self
            .peers
            .iter()
            .find(|(peer, _)| *peer == way)
            .map(|(_, child)| child.id());
        measured(&mut command, way, between)
    }

    /// The `stockade` command with the policy of this home.
    pub fn stockade_with(&self, home: Home) -> Command {
        let mut command = self.user.command(&self.stockade);
        command
            .env("HOME", self.home(home))
            .env("BENCH_TOKEN", TOKEN)
            .current_dir(&self.project);
        command
    }

    /// The certificates that a client behind `way` has to trust.
    pub fn roots(&self, way: Way) -> PathBuf {
        match way {
            Way::Stockade => "/run/stockade/ca.pem".into(),
            Way::SquidBump => self.scratch.path().join("squid-ca.pem"),
            Way::Mitmproxy => self.scratch.path().join("mitmproxy/mitmproxy-ca-cert.pem"),
            _ => self.authority(),
        }
    }

    fn home(&self, home: Home) -> PathBuf {
        self.scratch.path().join(match home {
            Home::Nothing => "home-nothing",
            Home::Tunnel => "home-tunnel",
            Home::Inspect => "home-inspect",
        })
    }

    fn write_policies(&self) -> Result<()> {
        let program = format!("[filesystem]\nread = [\"system\", {:?}]\n", self.load);
        let roots = format!("[network]\nroots = [{:?}]\n", self.authority());
        let tunnel = format!("allow = [\"{HOST}:9001\", \"{HOST}:9002\"]\n");
        let inspect = format!(
            "[[network.rule]]\nhost = \"{HOST}\"\nmethods = [\"GET\"]\npaths = [\"/items/*\"]\n\
             [[credential]]\nname = \"bench\"\nhost = \"{HOST}\"\nfrom = {{ env = \"BENCH_TOKEN\" }}\n\
             attach = {{ header = \"Authorization\", format = \"Bearer {{}}\" }}\n"
        );
        for (home, text) in [
            (Home::Nothing, program.clone()),
            (Home::Tunnel, format!("{program}{roots}{tunnel}")),
            (Home::Inspect, format!("{program}{roots}{inspect}")),
        ] {
            let directory = self.home(home).join(".config/stockade");
            fs::create_dir_all(&directory)?;
            fs::write(
                directory.join("stockade.toml"),
                format!("version = 1\n{text}"),
            )?;
            self.user.give(&self.home(home))?;
        }
        let settings = format!(
            r#"{{"network":{{"allowedDomains":["{HOST}"],"deniedDomains":[]}},
                "filesystem":{{"denyRead":[],"allowWrite":["."],"denyWrite":[]}}}}"#
        );
        Ok(fs::write(self.scratch.path().join("srt.json"), settings)?)
    }

    fn start_peers(&mut self) -> Result<()> {
        self.start_squids()?;
        let scratch = self.scratch.path().to_owned();
        let tiny = scratch.join("tinyproxy.conf");
        let lines = "Port 3130\nListen 127.0.0.1\nTimeout 600\nMaxClients 100\nLogLevel Critical\n";
        fs::write(&tiny, lines)?;
        let tiny = tiny.display().to_string();
        self.start(Way::Tinyproxy, "tinyproxy", &["-d", "-c", &tiny])?;

        let mitm = ["-q", "--listen-host", "127.0.0.1", "--set"];
        let authority = self.authority();
        let trusted = format!("ssl_verify_upstream_trusted_ca={}", authority.display());
        let store = self.scratch.directory_of(&self.user, "mitmproxy")?;
        let store = format!("confdir={}", store.display());
        let inspect = [trusted.as_str(), "--listen-port", "3131", "--set", &store];
        self.start(Way::Mitmproxy, "mitmdump", &[&mitm[..], &inspect].concat())?;
        let tunnel = [
            store.as_str(),
            "--listen-port",
            "3133",
            "--ignore-hosts",
            ".*",
        ];
        self.start(
            Way::MitmproxyTunnel,
            "mitmdump",
            &[&mitm[..], &tunnel].concat(),
        )
    }

    /// One squid that tunnels and one that looks into TLS.
    fn start_squids(&mut self) -> Result<()> {
        let scratch = self.scratch.path().to_owned();
        let at = |name: &str| scratch.join(name).display().to_string();
        make_authority(&scratch)?;
        self.user.give(&scratch.join("squid-ca.pem"))?;
        let helper = "/usr/lib/squid/security_file_certgen";
        let store = at("home-nothing/ssl_db");
        let mut make = self.user.command(helper);
        make.args(["-c", "-s", &store, "-M", "4MB"]);
        shell::run(make.stdout(Stdio::null()))?;

        let common = "http_access allow all\ncache deny all\naccess_log none\n\
                      cache_log /dev/null\ncache_store_log none\npid_filename none\n\
                      netdb_filename none\nshutdown_lifetime 1 second\nvisible_hostname bench\n";
        let tunnel = format!("http_port 127.0.0.1:3129\n{common}");
        fs::write(scratch.join("squid.conf"), tunnel)?;
        let bump = format!(
            "http_port 127.0.0.1:3132 ssl-bump cert={} generate-host-certificates=on \
             dynamic_cert_mem_cache_size=4MB\nsslcrtd_program {helper} -s {store} -M 4MB\n\
             ssl_bump bump all\ntls_outgoing_options cafile={}\n{common}",
            at("squid-ca.pem"),
            self.authority().display(),
        );
        fs::write(scratch.join("bump.conf"), bump)?;
        let squid = "/usr/sbin/squid";
        self.start(Way::Squid, squid, &["-N", "-f", &at("squid.conf")])?;
        self.start(Way::SquidBump, squid, &["-N", "-f", &at("bump.conf")])
    }

    /// Starts a proxy and waits until it listens.
    fn start(&mut self, way: Way, program: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self.user.command(program);
        command
            .args(arguments)
            .current_dir(&self.project)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().with_context(|| shell::shown(&command))?;
        self.peers.push((way, child));
        let port = way.port().context("a proxy has a port")?;
        wait_until(&format!("{} listens", way.name()), || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let children = self.peers.iter_mut().map(|(_, child)| child);
        for child in children.chain([&mut self.origin]) {
            let _gone = child.kill().is_err();
            let _reaped = child.wait().is_err();
        }
    }
}

/// Which policy Stockade gets.
#[derive(Clone, Copy)]
pub enum Home {
    /// No network.
    Nothing,
    /// Raw tunnels to two ports.
    Tunnel,
    /// One host, inspected, with a credential.
    Inspect,
}

/// An authority for squid: key and certificate in one file, `squid-ca.pem`.
fn make_authority(scratch: &Path) -> Result<()> {
    let (both, certificate) = (
        scratch.join("squid-ca.pem"),
        scratch.join("certificate.pem"),
    );
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt"]);
    openssl.args([
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=squid",
        "-days",
        "2",
    ]);
    openssl
        .arg("-keyout")
        .arg(&both)
        .arg("-out")
        .arg(&certificate);
    shell::run(openssl.stderr(Stdio::null()))?;
    let mut content = fs::read(&both)?;
    content.extend(fs::read(&certificate)?);
    Ok(fs::write(both, content)?)
}

fn start_origin(load: &Path, directory: &Path) -> Result<Child> {
    let mut command = Command::new("unshare");
    command
        .arg("--net")
        .arg(load)
        .arg("origin")
        .arg(directory)
        .stdin(Stdio::piped());
    let child = command.spawn()?;
    wait_until("the origin listens", || {
        directory.join("listening").exists()
    })?;
    Ok(child)
}

/// The cable between this network and the origin's.
fn join(scratch: &Scratch, origin: &Child) -> Result<()> {
    let script = format!(
        "set -eu; PATH=$PATH:/usr/sbin:/sbin\n\
         ip link set lo up\n\
         ip link add host0 type veth peer name net0 netns {0}\n\
         ip addr add 192.0.2.2/24 dev host0; ip link set host0 up\n\
         nsenter -t {0} -n sh -euc 'ip link set lo up; ip addr add 192.0.2.1/24 dev net0; \
         ip link set net0 up; ip route add local {ADDRESS}/32 dev lo'\n\
         ip route add default via 192.0.2.1\n",
        origin.id()
    );
    shell::run(Command::new("sh").args(["-c", &script]))?;
    let hosts = scratch.path().join("hosts");
    fs::write(&hosts, format!("127.0.0.1 localhost\n{ADDRESS} {HOST}\n"))?;
    shell::run(
        Command::new("mount")
            .args(["--bind"])
            .arg(&hosts)
            .arg("/etc/hosts"),
    )
}

fn wait_until(what: &str, done: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        if Instant::now() > deadline {
            bail!("timed out: {what}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Runs a client that stays until its standard input ends, so that the process between can still be
/// looked at when its report is there.
fn measured(command: &mut Command, way: Way, between: Option<u32>) -> Result<Measured> {
    let before = between.map(cpu_seconds);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| shell::shown(command))?;
    let mut stdout = BufReader::new(child.stdout.take().context("no standard output")?);
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    let egress = match way {
        Way::Stockade => egress_of(child.id())?,
        _ => None,
    };
    let cpu = match (between, before, egress) {
        (Some(process), Some(before), _) => Some(cpu_seconds(process) - before),
        (_, _, Some(process)) => Some(cpu_seconds(process)),
        _ => None,
    };
    let resident = egress.and_then(meter::resident_bytes);
    drop(child.stdin.take());
    let status = child.wait()?;
    let Ok(report) = serde_json::from_str(&line) else {
        let mut message = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut message)?;
        }
        bail!(
            "{} ended with {status}: {line}{message}",
            shell::shown(command)
        );
    };
    Ok(Measured {
        report,
        cpu_seconds: cpu,
        resident_bytes: resident,
    })
}

/// Stockade's egress process below `first`.
fn egress_of(first: u32) -> Result<Option<u32>> {
    let is_egress = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"egress")
    };
    Ok(meter::descendants(first)?.into_iter().find(is_egress))
}

/// CPU time of a process and of those below it, ended threads included (proc_pid_stat(5)).
fn cpu_seconds(process: u32) -> f64 {
    const TICKS_A_SECOND: f64 = 100.0;
    let processes = meter::descendants(process).unwrap_or_default();
    let ticks = processes.iter().filter_map(|process| {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name, which may hold anything, ends with the last parenthesis.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(number(11)? + number(12)?)
    });
    ticks.sum::<u64>() as f64 / TICKS_A_SECOND
}
