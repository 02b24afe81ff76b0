//! What the benchmark of the walls measures of QEMU's machines: the same machine,
//! booted and gone on with from a saved state, until a command in it has ended.
//! Nothing of a sandbox is around it, so that the two differ in nothing else.
//!
//! `qemu DIRECTORY build PACKAGE` makes an image of a kernel package, `save` a state
//! of it, and `boot` and `restore` print microseconds.

use std::error::Error;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use stockade_agent::machine::{Birth, ENTROPY_BYTES, Limits};
use stockade_agent::wire::{Request, Status, encode};
use stockade_agent_image::IMAGE;
use stockade_sys::counter;
use stockade_testkit::agent::{Session, spec};
use stockade_testkit::machine::QEMU;
use stockade_vm::qemu::{self, Accelerator, Start};
use stockade_vm::saved;
use stockade_vm::source::Source;
use stockade_vm::store::{InUse, Store};

const NAME: &str = "default";
/// In MiB.
const MEMORY: u32 = 300;
const STATE: &str = "state";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let (directory, what) = match &words[..] {
        [directory, what, ..] => (Path::new(directory), what),
        _ => return Err("qemu DIRECTORY build PACKAGE|save|boot|restore".into()),
    };
    if !directory.exists() {
        DirBuilder::new().mode(0o700).create(directory)?;
    }
    let store = Store::open(File::open(directory)?.as_fd())?;
    if let (Some("build"), Some(package)) = (what.to_str(), words.get(2)) {
        store.build(&Source::Package(package.into()), NAME, IMAGE)?;
        return Ok(());
    }
    let used = store.use_image(NAME, IMAGE)?;
    let state = directory.join(STATE);
    match what.to_str() {
        Some("save") => save(directory, &used),
        Some("boot") => {
            let start = Start::Boot {
                image: image(&used),
                channel: 3,
            };
            first_command(start, None)
        }
        Some("restore") => {
            let start = Start::Restore {
                state: 4,
                channel: 3,
            };
            first_command(start, Some(&state))
        }
        _ => Err("not one of these".into()),
    }
}

fn image(used: &InUse) -> qemu::Image<'_> {
    qemu::Image {
        kernel: &used.kernel,
        initramfs: &used.initramfs,
        mark: "example",
    }
}

fn machine(start: Start<'_>) -> qemu::Machine<'_> {
    qemu::Machine {
        accelerator: Accelerator::Tcg,
        memory: MEMORY,
        processors: 1,
        counter_khz: match start {
            Start::Boot { .. } | Start::Save { .. } => counter::ticks_per_millisecond(),
            Start::Restore { .. } => 0,
        },
        start,
        root: Path::new("/"),
        network: false,
        forwards: &[],
    }
}

fn save(directory: &Path, used: &InUse) -> Result<()> {
    let socket = directory.join("agent");
    let start = Start::Save {
        image: image(used),
        socket: &socket,
    };
    let mut qemu = Command::new(QEMU)
        .args(qemu::arguments(&machine(start)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .current_dir(directory)
        .spawn()?;
    let monitor = qemu.stdout.take().zip(qemu.stdin.take());
    let (from, to) = monitor.ok_or("it has no monitor")?;
    let saved = saved::save(from, to, &format!("cat >{STATE}"));
    if saved.is_err() {
        qemu.kill()?;
    }
    qemu.wait()?;
    Ok(saved?)
}

/// From nothing until `true` has ended in the machine.
fn first_command(start: Start<'_>, state: Option<&Path>) -> Result<()> {
    let machine = machine(start);
    let begun = Instant::now();
    let (mut qemu, channel) = spawn(&machine, state)?;
    let mut session = Session::begin(channel);
    session.wait_for_hello();
    let task = session.exec(&spec(b"true\0"));
    let status = session.finish(task).status;
    let took = begun.elapsed();
    session.send(0, &Request::Shutdown);
    qemu.wait()?;
    match status {
        Some(Status::Exited(0)) => println!("{}", took.as_micros()),
        other => return Err(format!("true ended with {other:?}").into()),
    }
    Ok(())
}

fn spawn(machine: &qemu::Machine<'_>, state: Option<&Path>) -> Result<(Child, UnixStream)> {
    let (channel, theirs) = UnixStream::pair()?;
    let own = std::fs::metadata("/proc/self")?;
    let birth = Birth {
        entropy: [7; ENTROPY_BYTES],
        seconds: i64::try_from(std::time::UNIX_EPOCH.elapsed()?.as_secs())?,
        nanoseconds: 0,
        uid: own.uid(),
        gid: own.gid(),
        umask: 0o022,
        name: b"example",
        private: b"/tmp\0",
        filter: RULES.as_flattened(),
        offers: &[],
        limits: Limits {
            processes: Some(512),
            open_files: Some(1024),
            file_bytes: None,
            cpu_seconds: None,
        },
        disk_bytes: 64 << 20,
        disk_inodes: 10_000,
    };
    let mut frame = [0; 256];
    let length = encode(0, &birth, &mut frame).map_err(|error| error.to_string())?;
    (&channel).write_all(&frame[..length])?;
    let state = match state {
        Some(state) => File::open(state)?,
        None => File::open("/dev/null")?,
    };
    let script = r#"exec 3<&0 4<&1 </dev/null >/dev/null; exec "$0" "$@""#;
    let qemu = Command::new("/bin/sh")
        .args(["-c", script, QEMU])
        .args(qemu::arguments(machine))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(state))
        .spawn()?;
    Ok((qemu, channel))
}

/// Of x86-64, keyctl(2) is refused (ENOSYS), which the agent tries, and everything
/// else permitted.
const RULES: [[u8; 8]; 4] = [
    [0x20, 0, 0, 0, 0, 0, 0, 0],
    [0x15, 0, 0, 1, 250, 0, 0, 0],
    [0x06, 0, 0, 0, 38, 0, 5, 0],
    [0x06, 0, 0, 0, 0, 0, 0xff, 0x7f],
];
