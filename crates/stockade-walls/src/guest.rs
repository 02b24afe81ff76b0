//! What the launcher executes in the command's place: what starts a kernel of
//! its own, or an OCI runtime.
//!
//! The launcher builds the same view, namespaces and filter as around any
//! process. What it executes in the end passes two descriptors on, which the
//! agent within needs: its channel (3), and itself (4).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use stockade_launch::wire;
use stockade_policy::network::machine::Crossings;
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{self, GUEST_DIRECTORY, GuestKernel, Machine, Plan, RuntimeKind};
use stockade_vm::qemu::{self, Forward, Start};

use crate::oci;

/// Name of the one container; nothing outside sees it.
const CONTAINER: &str = "stockade";

/// The program, its arguments and who it is; `None` where the launcher starts
/// the command itself. `counter_khz` is for a machine that boots.
pub(crate) fn executed(plan: &Plan, counter_khz: u32) -> Option<wire::Guest> {
    let own = Some((plan.uid, plan.gid));
    let (arguments, own_user_namespace) = match &plan.guest.as_ref()?.kernel {
        // It mounts, so it would make itself a namespace in which it may, and
        // start itself once more in there, which takes as long as all that
        // Stockade does.
        GuestKernel::Gvisor(_) => (gvisor(plan), own),
        GuestKernel::Machine(machine) => (qemu(plan, machine, counter_khz), None),
        // So does this, and it takes no other for one than that in which it is
        // root.
        GuestKernel::Hosts(it) => (runtime(it.kind), own),
    };
    Some(wire::Guest {
        arguments,
        own_user_namespace,
    })
}

/// The bundle's configuration; `None` where there is no bundle.
pub(crate) fn config(plan: &Plan, environment: &[(Vec<u8>, Vec<u8>)]) -> Option<Vec<u8>> {
    match &plan.guest.as_ref()?.kernel {
        GuestKernel::Gvisor(_) | GuestKernel::Hosts(_) => {
            Some(oci::config(plan, environment).to_string().into_bytes())
        }
        GuestKernel::Machine(_) => None,
    }
}

/// Numbers of the agent's channel and of what comes with it: the agent's program
/// or, for a machine that has it in its image, a saved state.
const CHANNEL: u32 = 3;
const STATE: u32 = 4;

/// The machine, whose root is the view.
fn qemu(plan: &Plan, machine: &Machine, counter_khz: u32) -> Vec<Vec<u8>> {
    let [kernel, initramfs] =
        ["kernel", "initramfs"].map(|name| Path::new(GUEST_DIRECTORY).join(name));
    let start = match machine.saved {
        Some(_) => Start::Restore {
            state: STATE,
            channel: CHANNEL,
        },
        None => Start::Boot {
            image: qemu::Image {
                kernel: &kernel,
                initramfs: &initramfs,
                mark: machine.mark(),
            },
            channel: CHANNEL,
        },
    };
    let root = plan.view_root();
    // A plan with more than there can be was refused.
    let crossings = plan.network.as_ref().and_then(Crossings::of);
    let published = crossings.unwrap_or_default().published;
    let forwards: Vec<Forward> = published
        .iter()
        .map(|one| Forward {
            port: one.port,
            card_port: one.card_port,
        })
        .collect();
    let arguments = qemu::arguments(&qemu::Machine {
        forwards: &forwards,
        start,
        root: root.as_ref().map_or(Path::new("/"), AbsolutePath::as_path),
        counter_khz,
        ..alike(machine, plan.network.is_some())
    });
    let program = machine.program.as_bytes().to_vec();
    let arguments = arguments.into_iter().map(OsStringExt::into_vec);
    std::iter::once(program).chain(arguments).collect()
}

/// What starts a machine that is saved, to be gone on from by machines of this
/// plan. It is executed in `directory`, where kernel and initial file system
/// are; its temporary directory is shown to it, and nobody ever looks.
pub fn to_save(
    machine: &Machine,
    network: bool,
    directory: &Path,
    counter_khz: u32,
) -> Vec<OsString> {
    let arguments = qemu::arguments(&qemu::Machine {
        start: Start::Save {
            image: qemu::Image {
                kernel: &directory.join("kernel"),
                initramfs: &directory.join("initramfs"),
                mark: machine.mark(),
            },
            socket: Path::new("/tmp/agent"),
        },
        root: Path::new("/tmp"),
        counter_khz,
        ..alike(machine, network)
    });
    let program = OsString::from_vec(machine.program.as_bytes().to_vec());
    std::iter::once(program).chain(arguments).collect()
}

/// What is the same of the machine that is saved and those that are restored.
fn alike(machine: &Machine, network: bool) -> qemu::Machine<'_> {
    qemu::Machine {
        accelerator: match machine.accelerator {
            plan::Accelerator::Kvm => qemu::Accelerator::Kvm,
            plan::Accelerator::Tcg => qemu::Accelerator::Tcg,
        },
        memory: machine.memory,
        processors: machine.processors,
        counter_khz: 0,
        start: Start::Restore {
            state: STATE,
            channel: CHANNEL,
        },
        root: Path::new("/"),
        network,
        forwards: &[],
    }
}

/// An OCI runtime. Places are those of `stockade-launch/src/view/runtime.rs`.
fn runtime(kind: RuntimeKind) -> Vec<Vec<u8>> {
    let of_kind: &[&str] = match kind {
        // That it may make no group is no error to it, in a user namespace.
        RuntimeKind::Runc => &[],
        RuntimeKind::Crun => &["--cgroup-manager=disabled"],
    };
    let words = ["/runtime", "--root=/tmp"].iter().chain(of_kind).chain(&[
        "run",
        "--bundle=/bundle",
        "--preserve-fds=2",
        CONTAINER,
    ]);
    words.map(|word| word.as_bytes().to_vec()).collect()
}

/// gVisor's own settings. The network of the host that it is given is the
/// launcher's: empty, or with listeners of the egress process alone.
fn gvisor(plan: &Plan) -> Vec<Vec<u8>> {
    let network = match plan.network {
        Some(_) => "host",
        None => "none",
    };
    let words = [
        format!("{GUEST_DIRECTORY}/runsc"),
        "--rootless".to_owned(),
        "--ignore-cgroups".to_owned(),
        "--platform=systrap".to_owned(),
        format!("--network={network}"),
        // Sockets of the view are those that the policy offers.
        "--host-uds=open".to_owned(),
        // What is written goes where the view says, and not to a layer of its own.
        "--overlay2=none".to_owned(),
        format!("--root={GUEST_DIRECTORY}/state"),
        "run".to_owned(),
        format!("--bundle={GUEST_DIRECTORY}"),
        "--pass-fd=3:3".to_owned(),
        "--exec-fd=4".to_owned(),
        CONTAINER.to_owned(),
    ];
    words.map(String::into_bytes).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_is_where_the_machines_network_has_it() {
        let gateway = format!(",host={},", stockade_policy::plan::GUEST_PROXY_HOST);
        assert!(qemu::USER_NETWORK.contains(&gateway));
    }
}
