//! What counts where something else than the launcher started the sandbox.
//!
//! An attack that changes or reads something of a kernel of the sandbox's own
//! has changed and read nothing outside; and where the agent is process 1, there
//! is no launcher to attack. Each such attack stands here by its id and with its
//! reason; any other that succeeds is an escape, there as anywhere.

use crate::Verdict;

/// Where the attacks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Below the launcher.
    Launcher,
    /// In a container on the host's kernel, whose process 1 is the agent.
    Container,
    /// On a kernel of the sandbox's own, which is around whatever runs there.
    OwnKernel,
    /// On one in a machine, where the rules hold that hold behind the process
    /// wall too.
    Machine,
}

impl Place {
    pub(crate) fn of(agent_is_first: bool, own_kernel: bool, arguments: &str) -> Self {
        match (agent_is_first, own_kernel) {
            (_, true) if arguments.contains(MARK) => Self::Machine,
            (_, true) => Self::OwnKernel,
            (true, false) => Self::Container,
            (false, false) => Self::Launcher,
        }
    }
}

/// What only the arguments of a machine's kernel have. Whoever has it by chance is
/// excused less.
const MARK: &str = "stockade=";

/// Whose success stays within such a kernel, and why.
const WITHIN: &[(&str, &str)] = &[
    (
        "fs2-kernel-settings",
        "settings of the sandbox's own kernel",
    ),
    ("fs2-sysrq", "keys of the sandbox's own kernel"),
    ("fs5-unshare", "namespaces of the sandbox's own kernel"),
    (
        "fs5-unshare-user-then-mount",
        "namespaces of the sandbox's own kernel",
    ),
    ("fs5-clone-user", "a namespace of the sandbox's own kernel"),
    ("fs5-clone3-user", "a namespace of the sandbox's own kernel"),
    ("fs5-fuse", "a device of the sandbox's own kernel"),
    ("pr1-kernel-log", "the log of the sandbox's own kernel"),
    ("pr1-devices", "devices of the sandbox's own kernel"),
    ("pr1-io-uring", "a ring of the sandbox's own kernel"),
    ("pr1-int80-call", "calls of the sandbox's own kernel"),
    (
        "pr1-int80-socket",
        "a socket of the sandbox's own kernel, whose network leads nowhere",
    ),
    (
        "pr1-int80-socketcall",
        "a socket of the sandbox's own kernel, whose network leads nowhere",
    ),
    ("pr1-userfaultfd", "memory of the sandbox's own kernel"),
    ("pr1-segments", "a table of the sandbox's own kernel"),
    ("pr1-fanotify", "events of the sandbox's own kernel"),
    ("pr1-quota", "quotas of the sandbox's own kernel"),
    ("pr1-personality", "a mode of the sandbox's own kernel"),
    (
        "pr2-user-namespace",
        "capabilities over the sandbox's own kernel",
    ),
    (
        "pr2-filter-absent",
        "the filter is around the sandbox's own kernel",
    ),
    (
        "pr7-spared-by-the-kernel",
        "the sandbox's own kernel kills nobody for memory",
    ),
    ("pr7-nice", "a priority among the sandbox's own processes"),
    (
        "pr8-keyring-session",
        "a keyring of the sandbox's own kernel",
    ),
    ("pr8-keyring-write", "a key of the sandbox's own kernel"),
    ("nt1-icmp", "the network has nothing but its own loopback"),
    ("nt1-netlink-others", "events of the sandbox's own kernel"),
    (
        "nt1-tunnel",
        "a device of the sandbox's own kernel, whose network leads nowhere",
    ),
    (
        "au2-unconfined-start",
        "the filter is around the sandbox's own kernel",
    ),
];

/// The same where process 1 is the agent.
const OF_AGENT: &[(&str, &str)] = &[
    (
        "pr3-init-environment",
        "process 1 is the agent, which has the command's variables",
    ),
    (
        "au2-speak-as-launcher",
        "process 1 is the agent, which shows no evidence",
    ),
];

/// What ends the sandbox of whoever does it: that is allowed, and nothing else
/// could be tried there afterwards.
const ENDS_ITSELF: &[&str] = &["pr3-init-stop"];

/// The verdict on an attack that is not tried there.
pub(crate) fn untried(id: &str, place: Place) -> Option<Verdict> {
    let why = "process 1 is the agent: who stops it ends its own sandbox and nothing else";
    (place != Place::Launcher && ENDS_ITSELF.contains(&id))
        .then(|| Verdict::Inconclusive(why.into()))
}

/// The verdict on one that was tried there.
pub(crate) fn judged(id: &str, place: Place, verdict: Verdict) -> Verdict {
    let (of_kernel, of_agent): (&[_], &[_]) = match place {
        Place::Launcher => (&[], &[]),
        Place::Container | Place::Machine => (&[], OF_AGENT),
        Place::OwnKernel => (WITHIN, OF_AGENT),
    };
    let mut reasons = of_kernel.iter().chain(of_agent);
    let reason = reasons.find(|(known, _)| *known == id);
    match (verdict, reason) {
        (Verdict::Escaped(gained), Some((_, reason))) => {
            Verdict::Stopped(format!("{reason}: {gained}"))
        }
        (verdict, _) => verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_here_is_excused() {
        let escaped = || Verdict::Escaped("got through".into());
        assert!(matches!(
            judged("pr1-kernel-log", Place::OwnKernel, escaped()),
            Verdict::Stopped(_)
        ));
        for place in [Place::Launcher, Place::Container, Place::Machine] {
            assert_eq!(judged("pr1-kernel-log", place, escaped()), escaped());
        }
        let of_agent = judged("pr3-init-environment", Place::Container, escaped());
        assert!(matches!(of_agent, Verdict::Stopped(_)));
        assert_eq!(
            judged("fs1-read-beside", Place::OwnKernel, escaped()),
            escaped()
        );
        let stopped = Verdict::Stopped("EPERM".into());
        let kept = judged("pr1-kernel-log", Place::OwnKernel, stopped.clone());
        assert_eq!(kept, stopped);
        for (id, _) in WITHIN.iter().chain(OF_AGENT) {
            assert!(crate::find(id).is_some(), "{id}");
        }
        let place = |own_kernel, arguments| Place::of(true, own_kernel, arguments);
        assert_eq!(place(true, "quiet stockade=0123"), Place::Machine);
        assert_eq!(place(true, "BOOT_IMAGE=/vmlinuz"), Place::OwnKernel);
        assert_eq!(place(false, "quiet"), Place::Container);
        let untried = |place| ENDS_ITSELF.iter().all(|id| untried(id, place).is_some());
        assert!(untried(Place::Container) && !untried(Place::Launcher));
    }
}
