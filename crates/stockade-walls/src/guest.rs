//! What a plan with a kernel of the command's own makes the launcher execute.
//!
//! The launcher builds the same view, namespaces and filter as around any
//! process; what it executes in the end is the program that starts the kernel.
//! That passes two descriptors on, which the agent within needs: its channel
//! (3), and itself (4).

use stockade_policy::plan::{GUEST_DIRECTORY, GuestKernel, Plan};

use crate::oci;

/// Name of the one container; nothing outside sees it.
const CONTAINER: &str = "stockade";

/// The program and its arguments; `None` where the command runs on the host's
/// kernel.
pub(crate) fn arguments(plan: &Plan) -> Option<Vec<Vec<u8>>> {
    match &plan.guest.as_ref()?.kernel {
        GuestKernel::Gvisor(_) => Some(gvisor(plan)),
    }
}

/// The bundle's configuration; `None` where there is no bundle.
pub(crate) fn config(plan: &Plan, environment: &[(Vec<u8>, Vec<u8>)]) -> Option<Vec<u8>> {
    match &plan.guest.as_ref()?.kernel {
        GuestKernel::Gvisor(_) => Some(oci::config(plan, environment).to_string().into_bytes()),
    }
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
