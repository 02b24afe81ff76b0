//! From an error number to what is the matter with this machine, and what to
//! do about it.
//!
//! The kernel says only `EPERM`; which of several settings is behind it can
//! be read from its interface files. They are looked at only after a probe
//! has failed, and never decide whether something works.

use std::io;

use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::process::geteuid;

use super::probes::{NamespacesFailure, Stage};

/// What is the matter, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub reason: String,
    pub remedy: String,
    /// Commands or a file that the remedy speaks of.
    pub text: Option<String>,
}

impl Cause {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            remedy: remedy.into(),
            text: None,
        }
    }

    /// As lines for a person.
    pub fn lines(&self) -> String {
        let mut lines = format!("  cause: {}\n  remedy: {}", self.reason, self.remedy);
        for line in self.text.iter().flat_map(|text| text.lines()) {
            lines.push_str("\n    ");
            lines.push_str(line);
        }
        lines
    }
}

/// Settings of the kernel and of this process that may be behind a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    pub root: bool,
    /// A seccomp filter lies on this process already.
    pub filtered: bool,
    /// user.max_user_namespaces
    pub namespaces_max: Option<u64>,
    /// kernel.unprivileged_userns_clone, a setting of Debian's kernels.
    pub unprivileged_clone: Option<u64>,
    /// kernel.apparmor_restrict_unprivileged_userns, of Ubuntu's kernels.
    pub apparmor_restricts: Option<u64>,
    /// Active security modules, comma-separated.
    pub security_modules: Option<String>,
    /// Path of the program of this process.
    pub program: String,
}

impl Circumstances {
    /// Reads them.
    pub fn read() -> Self {
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse().ok();
        Self {
            root: geteuid().is_root(),
            filtered: stockade_sys::seccomp::is_filtered(),
            namespaces_max: number("/proc/sys/user/max_user_namespaces"),
            unprivileged_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            security_modules: std::fs::read_to_string("/sys/kernel/security/lsm").ok(),
            program: std::fs::read_link("/proc/self/exe")
                .map_or_else(|_| "stockade".into(), |path| path.display().to_string()),
        }
    }
}

/// Why namespaces cannot be had.
pub fn of_namespaces(failure: &NamespacesFailure, here: &Circumstances) -> Cause {
    let errno = Errno::from_io_error(&failure.error).unwrap_or(Errno::NOTRECOVERABLE);
    let denied = matches!(errno, Errno::PERM | Errno::ACCESS);
    match (failure.stage, errno) {
        (Stage::Clone, Errno::NOSPC | Errno::USERS) => too_many(here),
        (Stage::Clone, Errno::INVAL) => Cause::new(
            "the kernel was built without user namespaces (EINVAL from clone3)",
            "use a kernel with CONFIG_USER_NS",
        ),
        (Stage::Clone, Errno::NOSYS) if !here.filtered => {
            Cause::new("the kernel has no clone3", "use kernel 5.12 or newer")
        }
        (Stage::Clone, Errno::BUSY) => Cause::new(
            "this process has more than one thread",
            "call it from a process of its own",
        ),
        (Stage::Clone, _) if denied && !here.root && here.unprivileged_clone == Some(0) => {
            Cause::new(
                "kernel.unprivileged_userns_clone is 0, which keeps user namespaces from \
                 everyone but root",
                "run `sudo sysctl -w kernel.unprivileged_userns_clone=1` and put the setting \
                 into /etc/sysctl.d/",
            )
        }
        (Stage::Clone, _) if (denied || errno == Errno::NOSYS) && here.filtered => filtered(errno),
        (Stage::Proc, _) if denied => covered_proc(),
        (Stage::Devices, _) if denied => Cause::new(
            "the device nodes of this machine's /dev cannot be used in a namespace of one's own; \
             it is probably mounted `nodev`",
            "mount /dev with devices (`mount -o remount,dev /dev`), or start the container with a \
             devtmpfs",
        ),
        (Stage::Devices, Errno::NOENT) => Cause::new(
            "this machine's /dev lacks one of null, zero, full, random and urandom",
            "make the missing device nodes",
        ),
        (_, _) if denied && !here.root && here.apparmor_restricts == Some(1) => apparmor(here),
        (Stage::Map, _) if denied && here.root && here.filtered => Cause::new(
            "user id 0 cannot be mapped once more: inside a sandbox root has no capability, and \
             the kernel asks for CAP_SETFCAP (user_namespaces(7))",
            "run the outer sandbox as an ordinary user",
        ),
        (_, _) if denied && here.filtered => filtered(errno),
        (stage, _) => other(stage, errno),
    }
}

fn too_many(here: &Circumstances) -> Cause {
    match here.namespaces_max {
        Some(0) => Cause::new(
            "user.max_user_namespaces is 0, which switches user namespaces off",
            "run `sudo sysctl -w user.max_user_namespaces=15000` and put the setting into \
             /etc/sysctl.d/; inside a container or another sandbox, allow it there",
        ),
        _ => Cause::new(
            "a limit of user namespaces is reached (ENOSPC): user.max_user_namespaces here or in \
             a container around this process, or 32 of them are nested already",
            "end sandboxes that are not needed, raise user.max_user_namespaces, or nest less",
        ),
    }
}

fn filtered(errno: Errno) -> Cause {
    Cause::new(
        format!(
            "a system call filter lies on this process already and refuses new namespaces \
             ({}); Docker's default profile does that, and so do other sandboxes",
            name(errno)
        ),
        "start the container with `--security-opt seccomp=unconfined --security-opt \
         systempaths=unconfined` (and `apparmor=unconfined` where AppArmor is used), or with a \
         profile that allows clone3, unshare and mount",
    )
}

fn covered_proc() -> Cause {
    Cause::new(
        "a new /proc may not be mounted (EPERM) because parts of the /proc here are covered, as \
         container run times do",
        "start the container with `--security-opt systempaths=unconfined` (Docker) or \
         `--security-opt unmask=ALL` (Podman)",
    )
}

fn apparmor(here: &Circumstances) -> Cause {
    let program = &here.program;
    let mut cause = Cause::new(
        "AppArmor keeps user namespaces from programs without a profile \
         (kernel.apparmor_restrict_unprivileged_userns is 1)",
        "give stockade a profile: write these lines to /etc/apparmor.d/stockade, then run \
         `sudo apparmor_parser -r /etc/apparmor.d/stockade`",
    );
    cause.text = Some(format!(
        "abi <abi/4.0>,\n\
         include <tunables/global>\n\
         profile stockade \"{program}\" flags=(unconfined) {{\n  \
           userns,\n  \
           include if exists <local/stockade>\n\
         }}\n"
    ));
    cause
}

fn other(stage: Stage, errno: Errno) -> Cause {
    let what = match stage {
        Stage::Clone => "new namespaces cannot be made",
        Stage::Map => "the id maps of a new user namespace cannot be written",
        Stage::Private => "the mounts of a new namespace cannot be made private",
        Stage::Tmpfs => "a tmpfs cannot be mounted in a new namespace",
        Stage::ReadOnly => "a mount cannot be made read-only (mount_setattr)",
        Stage::Devices => "a device of /dev cannot be brought into a new namespace",
        Stage::Terminals => "a devpts cannot be mounted in a new namespace",
        Stage::Proc => "a procfs cannot be mounted in a new namespace",
        Stage::Loopback => "the loopback of a new network namespace cannot be brought up",
    };
    let remedy = match errno {
        Errno::NOSYS | Errno::NODEV | Errno::INVAL => {
            "use kernel 5.12 or newer, with tmpfs, devpts and procfs"
        }
        _ => {
            "look for a security module or a container around this process that forbids it \
             (`dmesg` may name it); in a chroot, leave it"
        }
    };
    Cause::new(format!("{what} ({})", name(errno)), remedy)
}

/// Why there is no Landlock.
pub fn of_landlock(error: &io::Error, here: &Circumstances) -> Cause {
    match Errno::from_io_error(error) {
        Some(Errno::OPNOTSUPP) => {
            let active = here.security_modules.as_deref().unwrap_or("").trim();
            let list = if active.is_empty() { "…" } else { active };
            Cause::new(
                "the kernel has Landlock, but it was left out at boot (EOPNOTSUPP)",
                format!("boot with `lsm=landlock,{list}` on the kernel's command line"),
            )
        }
        Some(Errno::NOSYS | Errno::PERM) if here.filtered => Cause::new(
            "a system call filter around this process, such as a container's, refuses Landlock",
            "use a filter that allows landlock_create_ruleset, landlock_add_rule and \
             landlock_restrict_self",
        ),
        Some(Errno::NOSYS) => Cause::new(
            "the kernel has no Landlock (ENOSYS)",
            "use kernel 5.13 or newer, built with CONFIG_SECURITY_LANDLOCK",
        ),
        _ => Cause::new(
            format!("Landlock does not work: {error}"),
            "use kernel 5.13 or newer with `landlock` in its lsm= list",
        ),
    }
}

/// Why a call that newer kernels have does not work.
pub fn of_call(call: &str, since: &str, error: &io::Error, here: &Circumstances) -> Cause {
    if here.filtered {
        return Cause::new(
            format!("{call} is refused by a system call filter around this process: {error}"),
            "leave the sandbox or container around this process, or use a filter that allows \
             the call",
        );
    }
    Cause::new(
        format!("{call} does not work: {error}"),
        format!("use kernel {since} or newer"),
    )
}

/// Any other failure.
pub fn of(reason: impl Into<String>, remedy: impl Into<String>) -> Cause {
    Cause::new(reason, remedy)
}

fn name(errno: Errno) -> String {
    match errno {
        Errno::PERM => "EPERM".into(),
        Errno::ACCESS => "EACCES".into(),
        Errno::NOSYS => "ENOSYS".into(),
        Errno::INVAL => "EINVAL".into(),
        other => io::Error::from(other).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(stage: Stage, errno: Errno, here: &Circumstances) -> String {
        let failure = NamespacesFailure {
            stage,
            error: errno.into(),
        };
        of_namespaces(&failure, here).reason
    }

    #[test]
    fn each_setting_is_told_apart() {
        let bare = Circumstances::default;
        let debian = Circumstances {
            unprivileged_clone: Some(0),
            ..bare()
        };
        let ubuntu = Circumstances {
            apparmor_restricts: Some(1),
            ..bare()
        };
        let docker = Circumstances {
            filtered: true,
            root: true,
            ..bare()
        };
        let off = Circumstances {
            namespaces_max: Some(0),
            ..bare()
        };
        let on = Circumstances {
            namespaces_max: Some(100),
            ..bare()
        };
        let nested_root = Circumstances {
            root: true,
            filtered: true,
            ..bare()
        };
        let cases = [
            (Stage::Clone, Errno::NOSPC, &off, "max_user_namespaces is 0"),
            (
                Stage::Clone,
                Errno::NOSPC,
                &on,
                "a limit of user namespaces is reached",
            ),
            (
                Stage::Clone,
                Errno::PERM,
                &debian,
                "unprivileged_userns_clone",
            ),
            (Stage::Clone, Errno::ACCESS, &ubuntu, "AppArmor"),
            (Stage::Tmpfs, Errno::ACCESS, &ubuntu, "AppArmor"),
            (Stage::Map, Errno::PERM, &ubuntu, "AppArmor"),
            (Stage::Map, Errno::PERM, &nested_root, "CAP_SETFCAP"),
            (Stage::Clone, Errno::PERM, &docker, "Docker"),
            (Stage::Clone, Errno::NOSYS, &docker, "Docker"),
            (Stage::Clone, Errno::NOSYS, &bare(), "no clone3"),
            (
                Stage::Clone,
                Errno::INVAL,
                &bare(),
                "without user namespaces",
            ),
            (
                Stage::Clone,
                Errno::PERM,
                &bare(),
                "new namespaces cannot be made (EPERM)",
            ),
            (Stage::Proc, Errno::PERM, &ubuntu, "covered"),
            (Stage::Devices, Errno::ACCESS, &bare(), "nodev"),
        ];
        for (stage, errno, here, wanted) in cases {
            let reason = reason(stage, errno, here);
            assert!(reason.contains(wanted), "{stage:?} {errno:?}: {reason}");
        }
    }

    #[test]
    fn the_apparmor_profile_names_this_program() {
        let here = Circumstances {
            apparmor_restricts: Some(1),
            program: "/opt/my tools/stockade".into(),
            ..Circumstances::default()
        };
        let failure = NamespacesFailure {
            stage: Stage::Map,
            error: Errno::PERM.into(),
        };
        let cause = of_namespaces(&failure, &here);
        let text = cause.text.clone().unwrap();
        assert!(text.contains("profile stockade \"/opt/my tools/stockade\" flags=(unconfined)"));
        assert!(text.contains("\n  userns,\n"), "{text}");
        assert!(
            cause
                .remedy
                .contains("apparmor_parser -r /etc/apparmor.d/stockade")
        );
        // Root is not restricted, so AppArmor is not the reason.
        let here = Circumstances { root: true, ..here };
        assert!(!of_namespaces(&failure, &here).reason.contains("AppArmor"));
    }

    #[test]
    fn landlock_left_out_at_boot_is_not_landlock_missing() {
        let here = Circumstances {
            security_modules: Some("capability,apparmor\n".into()),
            ..Circumstances::default()
        };
        let left_out = of_landlock(&Errno::OPNOTSUPP.into(), &here);
        assert!(
            left_out
                .remedy
                .contains("`lsm=landlock,capability,apparmor`")
        );
        let missing = of_landlock(&Errno::NOSYS.into(), &here);
        assert!(missing.remedy.contains("5.13"));
    }
}
