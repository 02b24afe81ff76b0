//! Whether this machine can start a virtual one.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use stockade_policy::facts::MachineFacts;
use stockade_policy::path::{AbsolutePath, printable};
use stockade_policy::plan::Machine;
use stockade_vm::store::{InUse, Store};

use super::gvisor::is_trusted;

/// Where QEMU is looked for: not in the caller's PATH, which may lead to places
/// that a sandbox can write.
const PLACES: [&str; 2] = ["/usr/bin", "/usr/local/bin"];
const PROGRAM: &str = "qemu-system-x86_64";
const REMEDY: &str = "`apt install qemu-system-x86`, and `stockade vm build` once";
/// The image that is used.
const IMAGE: &str = "default";

/// What there is before anybody has looked.
pub fn not_looked_for() -> MachineFacts {
    missing("it was not looked for")
}

fn missing(reason: impl Into<String>) -> MachineFacts {
    MachineFacts::Missing {
        reason: reason.into(),
        remedy: REMEDY.to_owned(),
    }
}

/// Looks for QEMU, asks its version, and verifies the image, which stays as long
/// as the second value lives.
pub fn found(state: BorrowedFd<'_>) -> (MachineFacts, Option<InUse>) {
    match look(state) {
        Ok((machine, used)) => (MachineFacts::Found(machine), Some(used)),
        Err(reason) => (missing(reason), None),
    }
}

fn look(state: BorrowedFd<'_>) -> Result<(Machine, InUse), String> {
    let places = PLACES.iter().map(|place| Path::new(place).join(PROGRAM));
    let program = places
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .next();
    let program =
        program.ok_or_else(|| format!("there is no {PROGRAM} in {}", PLACES.join(", ")))?;
    is_trusted(&program)?;
    let version = version(&program)?;
    let store = Store::open(state).map_err(|error| error.to_string())?;
    let used = store.use_image(IMAGE, stockade_agent_image::IMAGE);
    let used = used.map_err(|error| error.to_string())?;
    let absolute = |path: &Path| {
        AbsolutePath::parse(path.as_os_str().as_bytes()).map_err(|error| error.to_string())
    };
    let machine = Machine {
        program: absolute(&program)?,
        version,
        image: used.image.name.clone(),
        release: used.image.release.clone(),
        kernel: absolute(&used.kernel)?,
        kernel_digest: used.image.kernel.clone(),
        initramfs: absolute(&used.initramfs)?,
        initramfs_digest: used.image.initramfs.clone(),
        memory: 0,
    };
    Ok((machine, used))
}

fn version(program: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{} cannot be executed: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let named = text
        .lines()
        .find_map(|line| line.strip_prefix("QEMU emulator version "));
    let version = named.and_then(|named| named.split(' ').next());
    match version {
        Some(version) => Ok(printable(version.as_bytes()).to_string()),
        None => Err(format!("{} does not say its version", program.display())),
    }
}
