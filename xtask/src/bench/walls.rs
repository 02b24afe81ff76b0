//! `cargo xtask bench walls`: what the other walls cost, against what people use for them today.

use super::machines::Machines;
use super::meter;
use super::qemu;
use super::report;
use super::rounds;
use super::rows::{Figure, Limit, Row};
use crate::kernel_package;
use crate::packages::{self, Escalation, Purpose};
use crate::shell;
use crate::user::{self, Scratch, User};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Measure the container wall against runc on the same root file system, gVisor against runsc
/// alone, commands in sandboxes that stay, machines against bare Firecracker, and machines of QEMU that
/// go on from a saved state against the same that boot.
///
/// Builds the release binary, and needs root, because control groups of these machines are root's.
/// Takes about four minutes. Fails when a bar is missed, unless --quick.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: report::Common,
}

/// A home, a project, an image of one static program, and the same as a bundle for runc.
struct Bench {
    scratch: Scratch,
    stockade: PathBuf,
    quick: bool,
}

type Measure = fn(&Bench) -> Result<Row>;

const ROWS: &[(&str, Measure)] = &[
    ("start of a container", Bench::start),
    ("exec in a container", Bench::exec_in_container),
    ("exec behind the process wall", Bench::exec_in_process),
    ("run behind gVisor", Bench::run_in_gvisor),
    ("exec behind gVisor", Bench::exec_in_gvisor),
    ("command of a pool behind the process wall", |bench| {
        bench.command_of_pool("the process wall", &[], bench.rounds())
    }),
    ("command of a pool behind gVisor", |bench| {
        bench.command_of_pool("gVisor", &IN_GVISOR, bench.few_rounds())
    }),
    ("memory of idle sandboxes", Bench::memory),
    ("start of a machine", |bench| bench.machines()?.start()),
    ("restore of a machine", |bench| bench.machines()?.restore()),
    ("memory of idle machines", |bench| {
        bench.machines()?.memory()
    }),
    ("first command in a machine of QEMU", |bench| {
        let place = fresh(bench.scratch.path())?;
        qemu::Machines::prepare(place, bench.few_rounds())?.first_command()
    }),
    ("memory of idle machines of QEMU", Bench::memory_of_machines),
    ("command of a pool in a machine of QEMU", |bench| {
        bench.build_machine()?;
        bench.command_of_pool("a machine of QEMU", &IN_MACHINE, bench.few_rounds())
    }),
];

/// Options that put a command on the image.
const ON_IMAGE: [&str; 4] = ["--wall", "container", "--image", "tiny"];
/// Options that put a command behind gVisor, on the host's directories.
const IN_GVISOR: [&str; 4] = ["--wall", "gvisor", "--workspace", "discard"];
/// Options that put a command into a small machine.
const IN_MACHINE: [&str; 4] = ["--wall", "microvm", "--memory", "556MiB"];
/// Sandboxes that idle while their memory is measured.
const IDLE: usize = 5;
const BUSYBOX: &str = "/usr/bin/busybox";
const RUNC: &str = "/usr/sbin/runc";
const QEMU: &str = "qemu-system-x86_64";
const RUNSC: &str = "/usr/bin/runsc";
const DIRECTORIES: [&str; 9] = [
    "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "var",
];

pub fn run(options: &Options) -> Result<()> {
    if !user::is_root() {
        bail!("the control groups of the container wall need root\n  remedy: run it as root");
    }
    let bench = shell::phase("prepare", || Bench::prepare(options.common.quick))?;
    let machine = report::machine();
    println!("{machine}");
    let mut rows = Vec::new();
    let wanted = ROWS.iter().filter(|(name, _)| options.common.wants(name));
    for (name, measure) in wanted {
        let row = shell::phase(name, || measure(&bench))?;
        report::print(std::slice::from_ref(&row));
        rows.push(row);
    }
    report::conclude(&rows, &machine, &options.common)
}

impl Bench {
    fn prepare(quick: bool) -> Result<Self> {
        packages::ensure(Purpose::WallsBenchmark, Escalation::Refuse)?;
        shell::run(shell::cargo().args(["build", "--quiet", "--release", "-p", "stockade"]))?;
        let scratch = Scratch::new(Path::new("/var/tmp"), "stockade-walls-bench")?;
        let bench = Self {
            scratch,
            stockade: shell::target_directory().join("release/stockade"),
            quick,
        };
        for name in [
            "home",
            "home/project",
            "bundle",
            "stay",
            "gvisor",
            "layout/blobs/sha256",
        ] {
            fs::create_dir_all(bench.at(name))?;
        }
        bench.write_layout()?;
        let layout = bench.at("layout");
        shell::run(
            bench
                .product(&["image", "import"])
                .arg(layout)
                .arg("tiny")
                .stdout(Stdio::null()),
        )?;
        bench.write_bundle("bundle", &["true"])?;
        bench.write_bundle("stay", &["sleep", "1000"])?;
        bench.write_gvisor_bundle()?;
        Ok(bench)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// The product with these arguments, in the project.
    fn product(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.stockade);
        command.args(arguments).current_dir(self.at("home/project"));
        command
            .env("HOME", self.at("home"))
            .env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::null());
        command
    }

    /// With a snapshot of their own, so that each row can be measured alone.
    fn machines(&self) -> Result<Machines> {
        let place = fresh(self.scratch.path())?;
        Machines::prepare(place, self.few_rounds())
    }

    fn start(&self) -> Result<Row> {
        let name = "container on an image, start to end of `true`";
        let row = rounds::interleaved(name, &["stockade", "runc"], self.rounds(), |index| {
            let mut command = match index {
                0 => self.product(&[&["run", "--quiet"], &ON_IMAGE[..], &["--", "true"]].concat()),
                _ => self.runc(&["run", "--bundle"], "true"),
            };
            timed(&mut command)
        })?;
        Ok(row.demand_of("runc", Limit::AtMost(0.25)))
    }

    /// In a sandbox that is there already, on both sides.
    fn exec_in_container(&self) -> Result<Row> {
        let _running = Running::start(self, &ON_IMAGE, 1)?;
        let mut stay = self.runc(&["run", "--detach", "--bundle"], "stay");
        shell::run(
            stay.stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )?;
        let name = "exec of `true` in a container that runs";
        let row = rounds::interleaved(name, &["stockade", "runc"], self.rounds(), |index| {
            let mut command = match index {
                0 => self.product(&["exec", "idle0", "--", "true"]),
                _ => {
                    let mut runc = Command::new(RUNC);
                    runc.args(["exec", &id("stay"), "true"]);
                    runc
                }
            };
            timed(&mut command)
        });
        shell::run(Command::new(RUNC).args(["delete", "--force", &id("stay")]))?;
        Ok(row?.demand_of("runc", Limit::AtMost(0.25)))
    }

    fn exec_in_process(&self) -> Result<Row> {
        let _running = Running::start(self, &[], 1)?;
        let name = "exec of `true` behind the process wall, against a run of its own";
        let row = rounds::interleaved(name, &["stockade", "run"], self.rounds(), |index| {
            let mut command = match index {
                0 => self.product(&["exec", "idle0", "--", "true"]),
                _ => self.product(&["run", "--quiet", "--", "true"]),
            };
            timed(&mut command)
        })?;
        Ok(row.demand_of("run", Limit::AtMost(0.7)))
    }

    /// What Stockade adds to what gVisor takes itself. Both are started by an ordinary user: bare
    /// runsc of root keeps rights that nothing behind a wall has, and saves starting itself again.
    fn run_in_gvisor(&self) -> Result<Row> {
        let user = User::ordinary()?;
        let home = self.scratch.directory_of(&user, "ordinary")?;
        let stockade = self.scratch.install(&self.stockade)?;
        let policy = home.join(".config/stockade/stockade.toml");
        for made in ["project", "runsc", ".config/stockade"] {
            fs::create_dir_all(home.join(made))?;
        }
        // Not every machine lets an ordinary user have control groups.
        fs::write(policy, "version = 1\nweaken = [\"PR7\"]\n")?;
        user.give(&home)?;
        let name = "run behind gVisor, start to end of `true`";
        let row = rounds::interleaved(name, &["stockade", "runsc"], self.few_rounds(), |index| {
            let mut command = match index {
                0 => {
                    let mut command = user.command(&stockade);
                    command
                        .args(["run", "--quiet"])
                        .args(IN_GVISOR)
                        .args(["--", "true"]);
                    command
                }
                _ => self.runsc(&user, &home.join("runsc")),
            };
            command.env("HOME", &home);
            timed(command.current_dir(home.join("project")))
        })?;
        Ok(row.demand_of("runsc", Limit::AtMost(1.15)))
    }

    fn exec_in_gvisor(&self) -> Result<Row> {
        let _running = Running::start(self, &IN_GVISOR, 1)?;
        let name = "exec of `true` behind gVisor, against a run of its own";
        rounds::interleaved(name, &["stockade", "run"], self.few_rounds(), |index| {
            let mut command = match index {
                0 => self.product(&["exec", "idle0", "--", "true"]),
                _ => self.product(&[&["run", "--quiet"], &IN_GVISOR[..], &["--", "true"]].concat()),
            };
            timed(&mut command)
        })
    }

    /// A command in a sandbox that waited for it, until nothing of it is left; the pool is full again
    /// before the next is measured.
    fn command_of_pool(&self, wall: &str, options: &[&str], rounds: usize) -> Result<Row> {
        let _running = Running { bench: self };
        let start = [&["start", "--name", "pool", "--pool", "1"], options].concat();
        shell::run(self.product(&start).stdout(Stdio::null()))?;
        let name = format!("`true` in a sandbox of a pool behind {wall}, against a run of its own");
        rounds::interleaved(&name, &["stockade", "run"], rounds, |index| {
            while shell::capture(&mut self.product(&["list"]))?
                .matches(" ready ")
                .count()
                != 1
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut command = match index {
                0 => self.product(&["exec", "pool", "--", "true"]),
                _ => self.product(&[&["run", "--quiet"], options, &["--", "true"]].concat()),
            };
            timed(&mut command)
        })
    }

    /// What one more sandbox adds; of pages that processes share, its part.
    fn memory(&self) -> Result<Row> {
        let name = "memory of one of five idle sandboxes, shared pages divided";
        let mut row = Row::new(name, "MiB");
        let contenders = [
            ("process", &[][..]),
            ("container", &ON_IMAGE[..]),
            ("gvisor, without gVisor itself", &IN_GVISOR[..]),
        ];
        for (contender, options) in contenders {
            let running = Running::start(self, options, IDLE)?;
            let processes = running.processes()?.into_iter().filter(|pid| {
                let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
                !program.ends_with("runsc")
            });
            let bytes: u64 = processes.filter_map(meter::proportional_bytes).sum();
            row.figures.push(Figure {
                contender,
                rounds: vec![bytes as f64 / IDLE as f64 / f64::from(1 << 20)],
            });
        }
        Ok(row
            .demand_at_most("process", 4.0)
            .demand_at_most("container", 4.0)
            .demand_at_most("gvisor, without gVisor itself", 4.0))
    }

    /// What one more machine adds besides QEMU, whose memory is the machine's.
    fn memory_of_machines(&self) -> Result<Row> {
        let name = "memory of one of five idle machines of QEMU, without QEMU itself";
        self.build_machine()?;
        let running = Running::start(self, &IN_MACHINE, IDLE)?;
        let processes = running.processes()?;
        let is_qemu = |pid: &&u32| {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            program.file_name().is_some_and(|name| name == QEMU)
        };
        if processes.iter().filter(is_qemu).count() != IDLE {
            bail!("the machines did not come up");
        }
        let others = processes.iter().filter(|pid| !is_qemu(pid));
        let bytes: u64 = others.copied().filter_map(meter::proportional_bytes).sum();
        let mut row = Row::new(name, "MiB");
        row.figures.push(Figure {
            contender: "microvm",
            rounds: vec![bytes as f64 / IDLE as f64 / f64::from(1 << 20)],
        });
        Ok(row.demand_at_most("microvm", 4.0))
    }

    fn build_machine(&self) -> Result<()> {
        let package = kernel_package::ensure()?;
        let mut build = self.product(&["vm", "build", "--kernel-package"]);
        shell::run(build.arg(package).stdout(Stdio::null()))
    }

    fn rounds(&self) -> usize {
        if self.quick { 5 } else { 60 }
    }

    /// For what takes a large part of a second.
    fn few_rounds(&self) -> usize {
        if self.quick { 3 } else { 20 }
    }

    /// runsc by itself, with the settings that Stockade uses.
    fn runsc(&self, user: &User, state: &Path) -> Command {
        let mut runsc = user.command(RUNSC);
        runsc.args(["--rootless", "--ignore-cgroups", "--platform=systrap"]);
        runsc.args(["--network=none", "--host-uds=open", "--overlay2=none"]);
        runsc.arg("--root").arg(state).args(["run", "--bundle"]);
        runsc.arg(self.at("gvisor")).arg(id("gvisor"));
        runsc
    }

    /// The host's directories, read-only, with a private /tmp.
    fn write_gvisor_bundle(&self) -> Result<()> {
        let mount =
            |to: &str, kind: &str| json!({ "destination": to, "type": kind, "source": kind });
        let namespaces = ["pid", "mount", "ipc", "uts"].map(|kind| json!({ "type": kind }));
        let config = json!({
            "ociVersion": "1.0.2",
            "root": { "path": "/", "readonly": true },
            "process": {
                "user": { "uid": 0, "gid": 0 }, "args": ["/usr/bin/true"],
                "env": ["PATH=/usr/bin"], "cwd": "/", "noNewPrivileges": true,
            },
            "mounts": [mount("/proc", "proc"), mount("/dev", "tmpfs"), mount("/tmp", "tmpfs")],
            "linux": { "namespaces": namespaces },
        });
        Ok(fs::write(
            self.at("gvisor/config.json"),
            config.to_string(),
        )?)
    }

    /// runc with these arguments, a bundle and a name that ends like this.
    fn runc(&self, arguments: &[&str], name: &str) -> Command {
        let bundle = if name == "stay" { "stay" } else { "bundle" };
        let mut runc = Command::new(RUNC);
        runc.args(arguments).arg(self.at(bundle)).arg(id(name));
        runc
    }

    /// An OCI layout of one layer.
    fn write_layout(&self) -> Result<()> {
        let root = self.at("layer");
        for directory in DIRECTORIES {
            fs::create_dir_all(root.join(directory))?;
        }
        fs::copy(BUSYBOX, root.join("usr/bin/busybox"))?;
        for name in ["sh", "sleep", "true"] {
            std::os::unix::fs::symlink("busybox", root.join("usr/bin").join(name))?;
        }
        std::os::unix::fs::symlink("usr/bin", root.join("bin"))?;
        let layer = self.at("layer.tar");
        shell::run(
            Command::new("tar")
                .arg("-C")
                .arg(&root)
                .arg("-cf")
                .arg(&layer)
                .arg("."),
        )?;
        let layer = fs::read(layer)?;
        let (descriptor, digest) = self.put("application/vnd.oci.image.layer.v1.tar", &layer)?;
        let machine = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            _ => "arm64",
        };
        let config = json!({
            "architecture": machine, "os": "linux", "config": { "Env": ["PATH=/usr/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [digest] },
        });
        let kind = "application/vnd.oci.image.config.v1+json";
        let (config, _) = self.put(kind, config.to_string().as_bytes())?;
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [descriptor] });
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let (manifest, _) = self.put(kind, manifest.to_string().as_bytes())?;
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(self.at("layout/index.json"), index.to_string())?;
        fs::write(
            self.at("layout/oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        Ok(())
    }

    fn put(&self, kind: &str, bytes: &[u8]) -> Result<(Value, String)> {
        let file = self.at("blob");
        fs::write(&file, bytes)?;
        let sum = shell::capture(Command::new("sha256sum").arg(&file))?;
        let hex = sum.split(' ').next().context("sha256sum said something")?;
        fs::rename(&file, self.at("layout/blobs/sha256").join(hex))?;
        let digest = format!("sha256:{hex}");
        let descriptor = json!({ "mediaType": kind, "digest": digest, "size": bytes.len() });
        Ok((descriptor, digest))
    }

    /// What `runc spec` writes, on the same root file system and with the same project.
    fn write_bundle(&self, name: &str, command: &[&str]) -> Result<()> {
        let bundle = self.at(name);
        shell::run(Command::new(RUNC).args(["spec", "--bundle"]).arg(&bundle))?;
        let file = bundle.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
        let trees = self.at("home/.local/state/stockade/images/trees");
        let tree = fs::read_dir(trees)?
            .next()
            .context("the image is there")??;
        config["root"]["path"] = json!(tree.path().join("root"));
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(command);
        config["process"]["env"] = json!(["PATH=/usr/bin"]);
        fs::write(file, config.to_string())?;
        Ok(())
    }
}

/// Sandboxes that stay, stopped when dropped.
struct Running<'a> {
    bench: &'a Bench,
}

impl<'a> Running<'a> {
    /// Starts sandboxes called `idle0` and so on.
    fn start(bench: &'a Bench, options: &[&str], count: usize) -> Result<Self> {
        let running = Self { bench };
        for number in 0..count {
            let name = format!("idle{number}");
            let arguments = [&["start", "--name", &name], options].concat();
            shell::run(bench.product(&arguments).stdout(Stdio::null()))?;
        }
        Ok(running)
    }

    /// Every process of these sandboxes and of their supervisors.
    fn processes(&self) -> Result<Vec<u32>> {
        let home = format!("HOME={}", self.bench.at("home").display());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            found.push(pid);
        }
        // Supervisors by what they were started with, and all that is below them.
        let mut own: Vec<u32> = Vec::new();
        for &pid in &found {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let of_home = environment
                .split(|&byte| byte == 0)
                .any(|one| one == home.as_bytes());
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            if of_home && program == self.bench.stockade {
                own.push(pid);
            }
        }
        let mut next = 0;
        while let Some(&pid) = own.get(next) {
            let children = format!("/proc/{pid}/task/{pid}/children");
            let children = fs::read_to_string(children).unwrap_or_default();
            for child in children
                .split_ascii_whitespace()
                .filter_map(|one| one.parse().ok())
            {
                if !own.contains(&child) {
                    own.push(child);
                }
            }
            next += 1;
        }
        Ok(own)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut stop = self.bench.product(&["stop", "--all"]);
        // The next measurement says more clearly what is wrong.
        let _stopped = stop.stdout(Stdio::null()).status().is_ok();
    }
}

/// A directory that is not there yet.
fn fresh(directory: &Path) -> Result<PathBuf> {
    for number in 0.. {
        let place = directory.join(format!("machines{number}"));
        match fs::create_dir(&place) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return Ok(made.map(|()| place)?),
        }
    }
    bail!("no name is free")
}

/// The name of a container of runc.
fn id(name: &str) -> String {
    format!("stockade-bench-{}-{name}", std::process::id())
}

fn timed(command: &mut Command) -> Result<Duration> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let started = Instant::now();
    let output = command.output()?;
    let took = started.elapsed();
    if !output.status.success() {
        bail!("it failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(took)
}
