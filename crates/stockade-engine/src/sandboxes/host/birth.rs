//! What a machine is told when it begins: what makes it this one.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};
use stockade_agent::machine::{Birth, ENTROPY_BYTES, Limits, Offer, push_offer};
use stockade_policy::network::machine::Crossings;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Action, GuestKernel, Instruction, Plan};
use stockade_sys::rustix;

use crate::sandboxes::link::Link;

/// Temporary directories that become the machine's own memory, unless something
/// else of the view is below them.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// More open files than this no kernel grants (`fs.nr_open`).
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Tells the machine of this plan.
pub(super) fn introduce(link: &mut Link, plan: &Plan) -> io::Result<()> {
    let mut entropy = [0; ENTROPY_BYTES];
    // So few bytes come whole (getrandom(2)).
    if getrandom(&mut entropy, GetRandomFlags::empty())? != ENTROPY_BYTES {
        return Err(io::Error::other("the kernel gives no random numbers"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_err(io::Error::other)?;
    let name = plan.guest.as_ref().map_or("", |guest| &guest.host_name);
    let mut private = Vec::new();
    for path in TEMPORARY.iter().filter(|path| is_alone(plan, path)) {
        private.extend_from_slice(path.as_bytes());
        private.push(0);
    }
    let crossings = crossings(plan);
    link.introduce(&Birth {
        entropy,
        seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: now.subsec_nanos(),
        uid: plan.uid,
        gid: plan.gid,
        umask: plan.umask,
        name: if name.is_empty() {
            b"sandbox"
        } else {
            name.as_bytes()
        },
        private: &private,
        filter: &filter(plan),
        limits: Limits {
            // What carries offers is one that the command did not start.
            processes: plan
                .limits
                .processes
                .map(|most| most.saturating_add(crossings.processes())),
            open_files: plan.limits.open_files.map(|most| most.min(OPEN_FILES_MAX)),
            file_bytes: plan.limits.file_bytes,
            cpu_seconds: plan.limits.cpu_seconds,
        },
        offers: &offers(&crossings)?,
        disk_bytes: plan.limits.disk_bytes.min(memory(plan) / 2),
        disk_inodes: plan.limits.disk_inodes,
    });
    Ok(())
}

/// What of the plan's offers goes into the machine, and out of it.
fn crossings(plan: &Plan) -> Crossings {
    // A plan with more than there can be was refused.
    let crossings = plan.network.as_ref().and_then(Crossings::of);
    crossings.unwrap_or_default()
}

/// The same as the agent takes it.
fn offers(crossings: &Crossings) -> io::Result<Vec<u8>> {
    let ports = crossings.host_ports.iter().map(|&port| Offer::Port(port));
    let published = crossings.published.iter().map(|one| Offer::Published {
        card_port: one.card_port,
        port: one.port,
    });
    let sockets = crossings.sockets.iter().map(|one| Offer::Socket {
        path: one.inside.as_bytes(),
        port: one.port,
    });
    let mut block = Vec::new();
    for offer in ports.chain(published).chain(sockets) {
        push_offer(&mut block, &offer).map_err(|_| io::Error::other("an offer is too long"))?;
    }
    Ok(block)
}

/// Memory of the machine, in bytes. What is in private directories is there.
fn memory(plan: &Plan) -> u64 {
    match plan.guest.as_ref().map(|guest| &guest.kernel) {
        Some(GuestKernel::Machine(machine)) => u64::from(machine.memory) << 20,
        _ => 0,
    }
}

/// The rules of system calls that the plan has around the machine: within it,
/// they are around each command. A plan without any is no machine's, and none
/// starts.
fn filter(plan: &Plan) -> Vec<u8> {
    let programs = plan.steps.iter().filter_map(|step| match &step.action {
        Action::Seccomp { program } => Some(program),
        _ => None,
    });
    let bytes = |one: &Instruction| {
        let [code_low, code_high] = one.code.to_le_bytes();
        let [a, b, c, d] = one.operand.to_le_bytes();
        [
            code_low,
            code_high,
            one.jump_true,
            one.jump_false,
            a,
            b,
            c,
            d,
        ]
    };
    programs.flatten().flat_map(bytes).collect()
}

/// Whether a path is a private directory with nothing else of the view below.
fn is_alone(plan: &Plan, path: &str) -> bool {
    let Ok(path) = AbsolutePath::parse(path) else {
        return false;
    };
    let below = |other: &AbsolutePath| *other != path && other.is_within(&path);
    plan.grants
        .iter()
        .any(|grant| grant.private && grant.path == path)
        && !plan.grants.iter().any(|grant| below(&grant.path))
        && !below(&plan.command.directory)
}
