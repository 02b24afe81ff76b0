//! What counts where the sandbox has a kernel of its own: an attack that changes
//! or reads something of that kernel has changed and read nothing outside.
//!
//! Each such attack stands here by its id and with its reason; any other that
//! succeeds is an escape, there as anywhere.

use crate::Verdict;

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
    (
        "pr2-user-namespace",
        "capabilities over the sandbox's own kernel",
    ),
    (
        "pr2-filter-absent",
        "the filter is around the sandbox's own kernel",
    ),
    (
        "pr3-init-environment",
        "process 1 is the agent, which has the command's variables",
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
    (
        "au2-speak-as-launcher",
        "process 1 is the agent, which shows no evidence",
    ),
];

/// What ends the sandbox of whoever does it: that is allowed, and nothing else
/// could be tried there afterwards.
const ENDS_ITSELF: &[&str] = &["pr3-init-stop"];

/// The verdict on an attack that is not tried there.
pub(crate) fn untried(id: &str) -> Option<Verdict> {
    let why = "process 1 is the agent: who stops it ends its own sandbox and nothing else";
    ENDS_ITSELF
        .contains(&id)
        .then(|| Verdict::Inconclusive(why.into()))
}

/// The verdict on one that was tried there.
pub(crate) fn judged(id: &str, verdict: Verdict) -> Verdict {
    let reason = WITHIN.iter().find(|(known, _)| *known == id);
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
            judged("pr1-kernel-log", escaped()),
            Verdict::Stopped(_)
        ));
        assert_eq!(judged("fs1-read-beside", escaped()), escaped());
        let stopped = Verdict::Stopped("EPERM".into());
        assert_eq!(judged("pr1-kernel-log", stopped.clone()), stopped);
        for (id, _) in WITHIN {
            assert!(crate::find(id).is_some(), "{id}");
        }
        assert!(ENDS_ITSELF.iter().all(|id| untried(id).is_some()));
    }
}
