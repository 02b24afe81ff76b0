//! Whether this machine has a Firecracker that works. No wall uses it yet.

use std::path::Path;

use stockade_vm::firecracker::probe::{Part, Unusable, judge, try_machine};

use super::program;

/// Where both programs are looked for.
const PLACES: [&str; 2] = ["/usr/bin", "/usr/local/bin"];
const REMEDY: &str = "put `firecracker` and `jailer` of one release of \
                      https://github.com/firecracker-microvm/firecracker into /usr/local/bin";

/// Finds both programs, judges their versions, and starts the smallest machine in
/// a directory of this name, which is removed. What was seen, or why not.
pub fn tried(directory: &Path) -> Result<String, Unusable> {
    let (firecracker, version) = found("firecracker", "Firecracker v")?;
    judge(Part::Firecracker, &version)?;
    let (jailer, of_jailer) = found("jailer", "Jailer v")?;
    judge(Part::Jailer, &of_jailer)?;
    try_machine(
        directory,
        &firecracker,
        &jailer,
        stockade_agent_image::GUEST,
    )?;
    let place = firecracker.display();
    Ok(format!("{place} {version}; the smallest machine ran in it"))
}

fn found(name: &str, prefix: &str) -> Result<(std::path::PathBuf, String), Unusable> {
    program::found(name, &PLACES, prefix, None).map_err(|reason| Unusable {
        reason,
        remedy: REMEDY.to_owned(),
    })
}
