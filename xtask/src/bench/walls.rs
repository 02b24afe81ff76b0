//! `cargo xtask bench walls`: what the other walls cost, against what people use for them today.

use super::report;
use super::rounds;
use super::rows::{Limit, Row};
use crate::packages::{self, Escalation, Purpose};
use crate::shell;
use crate::user::{self, Scratch};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Measure the container wall against runc on the same root file system.
///
/// Builds the release binary, and needs root, because control groups of these machines are root's.
/// Takes about a minute. Fails when a bar is missed, unless --quick.
#[derive(clap::Args)]
pub struct Options {
    /// Also write all figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fewer rounds, to see that it works; bars are printed but do not count.
    #[arg(long)]
    quick: bool,
}

/// A home, a project, an image of one static program, and the same as a bundle for runc.
struct Bench {
    scratch: Scratch,
    stockade: PathBuf,
    quick: bool,
}

const BUSYBOX: &str = "/usr/bin/busybox";
const RUNC: &str = "/usr/sbin/runc";
const DIRECTORIES: [&str; 9] = [
    "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "var",
];

pub fn run(options: &Options) -> Result<()> {
    if !user::is_root() {
        bail!("the control groups of the container wall need root\n  remedy: run it as root");
    }
    let bench = shell::phase("prepare", || Bench::prepare(options.quick))?;
    let machine = report::machine();
    println!("{machine}");
    let rows = shell::phase("container", || Ok(vec![bench.start()?]))?;
    report::print(&rows);
    report::conclude(&rows, &machine, options.json.as_deref(), options.quick)
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
        for name in ["home", "home/project", "bundle", "layout/blobs/sha256"] {
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
        bench.write_bundle()?;
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

    fn start(&self) -> Result<Row> {
        let rounds = if self.quick { 5 } else { 60 };
        let name = "container on an image, start to end of `true`";
        let mut number = 0;
        let row = rounds::interleaved(name, &["stockade", "runc"], rounds, |index| {
            let mut command = match index {
                0 => self.product(&[
                    "run",
                    "--quiet",
                    "--wall",
                    "container",
                    "--image",
                    "tiny",
                    "--",
                    "true",
                ]),
                _ => {
                    number += 1;
                    let mut runc = Command::new(RUNC);
                    runc.args(["run", "--bundle"]).arg(self.at("bundle"));
                    runc.arg(format!("stockade-bench-{}-{number}", std::process::id()));
                    runc
                }
            };
            timed(&mut command)
        })?;
        Ok(row.demand_of("runc", Limit::AtMost(0.25)))
    }

    /// An OCI layout of one layer.
    fn write_layout(&self) -> Result<()> {
        let root = self.at("layer");
        for directory in DIRECTORIES {
            fs::create_dir_all(root.join(directory))?;
        }
        fs::copy(BUSYBOX, root.join("usr/bin/busybox"))?;
        for name in ["sh", "true"] {
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
    fn write_bundle(&self) -> Result<()> {
        let bundle = self.at("bundle");
        shell::run(Command::new(RUNC).args(["spec", "--bundle"]).arg(&bundle))?;
        let file = bundle.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
        let trees = self.at("home/.local/state/stockade/images/trees");
        let tree = fs::read_dir(trees)?
            .next()
            .context("the image is there")??;
        config["root"]["path"] = json!(tree.path().join("root"));
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(["true"]);
        config["process"]["env"] = json!(["PATH=/usr/bin"]);
        fs::write(file, config.to_string())?;
        Ok(())
    }
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
