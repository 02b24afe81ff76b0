//! What every program on macOS needs before it does anything of its own, as
//! data with a reason on each line.

use crate::plan::Access;

/// The beginning of every profile. What a process may do to others is for those
/// of the same sandbox only.
pub(super) const BEGINNING: &str = "\
(version 1)
(deny default)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
";

/// What no grant brings with it. Set-id files would give the user's rights away
/// outside, and the data volume has every file under a second name.
pub(super) const END: &str = "\
; whatever is granted
(deny file-write-setugid file-write-mount file-write-umount)
(deny file* process-exec* (regex \
#\"^/[sS][yY][sS][tT][eE][mM]/[vV][oO][lL][uU][mM][eE][sS]/[dD][aA][tT][aA](/|$)\"))
";

/// Places of the system: path, access, reason.
pub const BASE: [(&str, Access, &str); 12] = [
    (
        "/System",
        Access::Read,
        "the dynamic loader's cache and frameworks",
    ),
    ("/usr", Access::Read, "programs, libraries and their data"),
    ("/bin", Access::Read, "programs"),
    ("/sbin", Access::Read, "programs of the system"),
    (
        "/private/etc",
        Access::Read,
        "settings that libraries and programs read",
    ),
    (
        "/private/var/db/timezone",
        Access::Read,
        "time zones of the C library",
    ),
    (
        "/private/var/select",
        Access::Read,
        "which shell and which developer tools are meant",
    ),
    (
        "/Library/Apple",
        Access::Read,
        "parts of the system that Apple updates",
    ),
    (
        "/Library/Developer/CommandLineTools",
        Access::Read,
        "compilers and git",
    ),
    (
        "/Applications/Xcode.app",
        Access::Read,
        "compilers and git of Xcode",
    ),
    ("/opt/homebrew", Access::Read, "programs of Homebrew"),
    ("/opt/local", Access::Read, "programs of MacPorts"),
];

/// Services of the bootstrap server that can be looked up: name, reason.
///
/// Missing on purpose: `com.apple.trustd.agent`, which fetches what a
/// certificate names and so is a way out; `com.apple.SecurityServer` and
/// `com.apple.securityd.xpc`, which hand out the keychain;
/// `com.apple.coreservices.launchservicesd` and `com.apple.lsd.mapdb`, which
/// start programs outside; `com.apple.pasteboard.1`, which everybody shares.
pub const SERVICES: [(&str, &str); 2] = [
    (
        "com.apple.system.opendirectoryd.libinfo",
        "names of users and groups (getpwuid(3))",
    ),
    (
        "com.apple.system.opendirectoryd.membership",
        "which groups a user is in (getgrouplist(3))",
    ),
];

/// Kernel settings that can be read. The tables of processes (`kern.proc`) and
/// of their arguments (`kern.procargs2`) are not among them.
pub(super) const SETTINGS: [&str; 24] = [
    "kern.argmax",
    "kern.bootargs",
    "kern.hostname",
    "kern.iossupportversion",
    "kern.maxfilesperproc",
    "kern.maxproc",
    "kern.ngroups",
    "kern.osproductversion",
    "kern.osrelease",
    "kern.ostype",
    "kern.osvariant_status",
    "kern.osversion",
    "kern.secure_kernel",
    "kern.tcsm_available",
    "kern.tcsm_enable",
    "kern.usrstack64",
    "kern.version",
    "kern.willshutdown",
    "machdep.cpu.brand_string",
    "security.mac.lockdown_mode_state",
    "sysctl.name2oid",
    "sysctl.proc_cputype",
    "sysctl.proc_native",
    "vm.loadavg",
];

/// Beginnings of the names of others.
pub(super) const SETTING_PREFIXES: [&str; 2] = ["hw.", "machdep.ptrauth_enabled"];
