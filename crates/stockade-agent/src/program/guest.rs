//! The agent as the first program of a virtual machine.
//!
//! The kernel starts it from an initial file system that holds nothing but the
//! program and modules. It makes of the machine what a sandbox is: the view,
//! which the host exports, as root; fresh process table, devices and shared
//! memory; no name of the machine's own hardware. Then it gives up what it may
//! do, and what it starts never has it. The walls are around the machine; what
//! is given up here keeps a command from being the machine's root.
//!
//! What fails is said on the channel, which is the first thing to be opened.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Mode, OFlags, RawDir, chmodat, chownat, lstat, makedev, mkdirat,
    mknodat, openat, symlinkat, unlinkat,
};
use rustix::io::{self, Errno, write};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind, mount_move, mount_remount,
    move_mount, open_tree,
};
use rustix::process::{chdir, chroot, umask};
use rustix::system::{finit_module, sethostname};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, NanosleepRelativeResult, Timespec, Uid,
    clear_ambient_capability_set, nanosleep, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use rustix::time::{ClockId, clock_settime};
use stockade_agent::machine::{BIRTH_BYTES_MAX, Birth};
use stockade_agent::system;
use stockade_agent::wire::{self, HEADER_BYTES, PATH_BYTES_MAX, Reply};

use crate::confine::{Confinement, decimal};
use crate::raw::{self, Interface};
use crate::relay::Relay;

/// The name of the virtio port to the host.
const PORT: &[u8] = b"stockade\n";
/// How the view is mounted. Nothing of it is kept longer than it is open,
/// because the host may change it at any time.
const ROOT_OPTIONS: &CStr = c"trans=virtio,version=9p2000.L,msize=512000,cache=mmap";
/// The machine's address, its network, and the gateway, as the host's side has
/// them (`USER_NETWORK` in stockade-vm).
pub const ADDRESS: [u8; 4] = [192, 88, 99, 15];
const MASK: [u8; 4] = [255, 255, 255, 0];
pub const GATEWAY: [u8; 4] = [192, 88, 99, 2];
/// Who is asked for names where there is a card, in place of what the view
/// says: that is true outside of the machine, where QEMU asks.
const RESOLVER: &[u8] = b"nameserver 192.88.99.3\noptions timeout:2 attempts:1\n";

/// Settings of the kernel that no command may need, and what they become: no
/// program of the view is run by the kernel, and no user namespace gives
/// capabilities back. And as outside, memory is asked for freely, and who fills
/// more than there is is killed, which is counted. A kernel without a setting
/// needs it not.
const SETTINGS: [(&CStr, &[u8]); 7] = [
    (c"/root/proc/sys/vm/overcommit_memory", b"1\n"),
    (c"/root/proc/sys/kernel/modprobe", b"\n"),
    (c"/root/proc/sys/kernel/core_pattern", b"core\n"),
    (c"/root/proc/sys/kernel/kexec_load_disabled", b"1\n"),
    (c"/root/proc/sys/kernel/unprivileged_bpf_disabled", b"1\n"),
    (c"/root/proc/sys/kernel/dmesg_restrict", b"1\n"),
    (c"/root/proc/sys/user/max_user_namespaces", b"0\n"),
];

/// What stands in /dev: name, major and minor number.
const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"/root/dev/null", 1, 3),
    (c"/root/dev/zero", 1, 5),
    (c"/root/dev/full", 1, 7),
    (c"/root/dev/random", 1, 8),
    (c"/root/dev/urandom", 1, 9),
    (c"/root/dev/tty", 5, 0),
];
const LINKS: [(&CStr, &CStr); 5] = [
    (c"/root/dev/fd", c"/proc/self/fd"),
    (c"/root/dev/stdin", c"/proc/self/fd/0"),
    (c"/root/dev/stdout", c"/proc/self/fd/1"),
    (c"/root/dev/stderr", c"/proc/self/fd/2"),
    (c"/root/dev/ptmx", c"pts/ptmx"),
];

/// Whether the kernel started this program as a machine's first.
pub fn is_first_program() -> bool {
    rustix::process::getpid().is_init() && raw::name_of_program() == c"/init"
}

/// A step's result, or what it was that failed.
pub type Step<T> = Result<T, (&'static str, Errno)>;

/// Gives an error the name of what was done.
pub fn while_<T>(doing: &'static str, result: io::Result<T>) -> Step<T> {
    result.map_err(|error| (doing, error))
}

/// A machine that is a sandbox.
pub struct Entered {
    pub channel: OwnedFd,
    /// What commands are held to.
    pub confinement: Confinement,
    /// Where something is offered: while this is open, it is carried.
    pub relay: Option<OwnedFd>,
}

/// Makes a sandbox of the machine.
pub fn enter() -> Result<Entered, ()> {
    // What the kernel did not know of its arguments is no command's business.
    raw::forget_environment();
    // Before there is a channel, nobody can be told.
    let channel = devices().and_then(|()| channel()).map_err(|_| ())?;
    // A saved state was taken while this program waited there, so that whatever
    // follows is done by each machine for itself.
    let mut space = [0; BIRTH_BYTES_MAX];
    match birth(&channel, &mut space).and_then(|birth| settle(&birth)) {
        Ok((confinement, relay)) => Ok(Entered {
            channel,
            confinement,
            relay,
        }),
        Err((doing, error)) => {
            refuse(&channel, doing, error);
            Err(())
        }
    }
}

/// The first frame of the host. Nothing behind it is taken from the channel.
fn birth<'a>(channel: &OwnedFd, space: &'a mut [u8; BIRTH_BYTES_MAX]) -> Step<Birth<'a>> {
    let understood = ("understand what it is to be", Errno::PROTO);
    let mut header = [0; HEADER_BYTES];
    while_("hear what it is to be", fill(channel, &mut header))?;
    let (length, _) = wire::header(header).map_err(|_| understood)?;
    let body = space.get_mut(..length).ok_or(understood)?;
    while_("hear what it is to be", fill(channel, body))?;
    wire::decode(body).map_err(|_| understood)
}

/// Reads until there is no more room.
fn fill(channel: &OwnedFd, mut target: &mut [u8]) -> io::Result<()> {
    while !target.is_empty() {
        match io::read(channel, &mut *target) {
            Ok(0) => return Err(Errno::PIPE),
            Ok(length) => target = target.get_mut(length..).unwrap_or_default(),
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(channel, PollFlags::IN)], None)?;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Random numbers and a clock of its own, before anything can ask for them.
fn begin(birth: &Birth<'_>) -> Step<()> {
    let plain = |system::Errno(number)| Errno::from_raw_os_error(number);
    let device = while_(
        "open the random numbers",
        open(c"/dev/urandom", OFlags::WRONLY),
    )?;
    let added = raw::add_entropy(&device, &birth.entropy).map_err(plain);
    while_("make random numbers its own", added)?;
    let now = Timespec {
        tv_sec: birth.seconds,
        tv_nsec: birth.nanoseconds.into(),
    };
    while_("set the clock", clock_settime(ClockId::Realtime, now))
}

/// The machine's devices, and standard streams that lead nowhere.
fn devices() -> Step<()> {
    let none = MountFlags::empty();
    while_(
        "mount /dev",
        mount(c"dev", c"/dev", c"devtmpfs", none, None),
    )?;
    while_("mount /sys", mount(c"sys", c"/sys", c"sysfs", none, None))?;
    let null = while_("open /dev/null", open(c"/dev/null", OFlags::RDWR))?;
    for number in 0..3 {
        if null.as_raw_fd() != number {
            // What the kernel opened there is its console.
            let _never_fails = raw::become_standard(null.as_fd(), number as usize).is_err();
        }
    }
    if null.as_raw_fd() < 3 {
        core::mem::forget(null);
    }
    modules()
}

/// Loads the modules, which are numbered as they need each other.
fn modules() -> Step<()> {
    let mut name = *b"/modules/00.ko\0";
    for number in 0..100u8 {
        (name[9], name[10]) = (b'0' + number / 10, b'0' + number % 10);
        let path = CStr::from_bytes_with_nul(&name).map_err(|_| ("name a module", Errno::INVAL))?;
        let module = match open(path, OFlags::RDONLY) {
            Err(Errno::NOENT) => break,
            opened => while_("open a module", opened)?,
        };
        match finit_module(&module, c"", 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(("load a module", error)),
        }
        // Its bytes are memory of the machine.
        while_("remove a module", unlinkat(CWD, path, AtFlags::empty()))?;
    }
    Ok(())
}

/// The virtio port, once the host is there.
fn channel() -> Step<OwnedFd> {
    let ports = c"/sys/class/virtio-ports";
    let ports = while_(
        "list the ports",
        open(ports, OFlags::RDONLY | OFlags::DIRECTORY),
    )?;
    let mut space = [MaybeUninit::uninit(); 1024];
    let mut names = RawDir::new(&ports, &mut space);
    while let Some(entry) = names.next() {
        let entry = while_("list the ports", entry)?;
        let name = entry.file_name();
        if !is_ours(&ports, name).unwrap_or(false) {
            continue;
        }
        let devices = while_(
            "open /dev",
            open(c"/dev", OFlags::RDONLY | OFlags::DIRECTORY),
        )?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let port = openat(&devices, name, flags, Mode::empty());
        let port = while_("open the port", port)?;
        while_("wait for the host", wait_for_host(&port))?;
        return Ok(port);
    }
    Err(("find the port", Errno::NODEV))
}

fn is_ours(ports: &OwnedFd, port: &CStr) -> io::Result<bool> {
    let mut name = [0; 16];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let port = openat(ports, port, flags | OFlags::DIRECTORY, Mode::empty())?;
    let file = openat(&port, c"name", flags, Mode::empty())?;
    let length = io::read(&file, &mut name)?;
    Ok(&name[..length] == PORT)
}

/// A port hangs up until its other end is known to be open.
fn wait_for_host(port: &OwnedFd) -> io::Result<()> {
    loop {
        let mut polled = [PollFd::new(port, PollFlags::IN)];
        poll(&mut polled, None)?;
        if !polled[0].revents().contains(PollFlags::HUP) {
            return Ok(());
        }
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        // A shorter rest changes nothing.
        let _rested = matches!(nanosleep(&moment), NanosleepRelativeResult::Ok);
    }
}

fn settle(birth: &Birth<'_>) -> Step<(Confinement, Option<OwnedFd>)> {
    begin(birth)?;
    view()?;
    let storage = storage(birth)?;
    fresh_dev(&storage)?;
    let confinement = Confinement::new(birth, storage)?;
    for (path, value) in SETTINGS {
        match open(path, OFlags::WRONLY) {
            Err(Errno::NOENT) => {}
            opened => {
                let setting = while_("open a setting", opened)?;
                while_("change a setting", write(&setting, value))?;
            }
        }
    }
    let flags = MountFlags::BIND | HARMLESS | MountFlags::RDONLY;
    while_("protect /proc", mount_remount(c"/root/proc", flags, c""))?;
    let is_connected = network()?;
    while_("name the machine", sethostname(birth.name))?;
    while_("enter the view", chdir(c"/root"))?;
    while_("enter the view", mount_move(c"/root", c"/"))?;
    while_("enter the view", chroot(c"."))?;
    while_("enter the view", chdir(c"/"))?;
    if is_connected {
        resolver()?;
    }
    private_directories(birth.private, &confinement.storage)?;
    let owner = (Uid::from_raw(birth.uid), Gid::from_raw(birth.gid));
    let relay = Relay::open(birth.offers, &confinement.storage, owner)?;
    let relay = relay.start(owner, &confinement)?;
    give_up(birth)?;
    confinement.try_out()?;
    Ok((confinement, relay))
}

/// Nothing on such a mount gives rights.
const HARMLESS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// The root and the process table.
fn view() -> Step<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    while_(
        "mount the view",
        mount(c"root", c"/root", c"9p", flags, ROOT_OPTIONS),
    )?;
    let proc = mount(c"proc", c"/root/proc", c"proc", HARMLESS, None);
    while_("mount /proc in the view", proc)
}

/// One file system for all private directories, which they fill together.
fn storage(birth: &Birth<'_>) -> Step<OwnedFd> {
    let doing = "mount the private storage";
    let (mut bytes, mut inodes) = ([0; 20], [0; 20]);
    let parts: [&[u8]; 4] = [
        b"mode=755,size=",
        decimal(birth.disk_bytes, &mut bytes),
        b",nr_inodes=",
        decimal(birth.disk_inodes, &mut inodes),
    ];
    let mut options = [0; 80];
    let mut end = 0;
    for part in parts {
        let target = options.get_mut(end..end + part.len());
        target
            .ok_or((doing, Errno::NAMETOOLONG))?
            .copy_from_slice(part);
        end += part.len();
    }
    let options = CStr::from_bytes_until_nul(&options).map_err(|_| (doing, Errno::INVAL))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    while_(doing, mkdirat(CWD, c"/private", Mode::from_raw_mode(0o755)))?;
    while_(
        doing,
        mount(c"private", c"/private", c"tmpfs", flags, options),
    )?;
    while_(doing, open(c"/private", OFlags::RDONLY | OFlags::DIRECTORY))
}

/// Mounts a new directory of the storage, with this owner and mode, over another
/// one.
fn mount_private(
    storage: &OwnedFd,
    name: &CStr,
    target: &CStr,
    (owner, mode): (Option<(Uid, Gid)>, Mode),
) -> Step<()> {
    let doing = "mount a private directory";
    while_(doing, mkdirat(storage, name, Mode::from_raw_mode(0o700)))?;
    if let Some((uid, gid)) = owner {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        while_(doing, chownat(storage, name, Some(uid), Some(gid), flags))?;
    }
    while_(doing, chmodat(storage, name, mode, AtFlags::empty()))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = while_(doing, open_tree(storage, name, flags))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    while_(doing, move_mount(&tree, c"", CWD, target, flags))
}

/// Devices that are everybody's, terminals and shared memory.
fn fresh_dev(storage: &OwnedFd) -> Step<()> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let all = Mode::from_raw_mode(0o666);
    umask(Mode::empty());
    let made = mount(c"dev", c"/root/dev", c"tmpfs", flags, c"mode=755,size=64k");
    while_("mount /dev in the view", made)?;
    for (path, major, minor) in DEVICES {
        let device: Dev = makedev(major, minor);
        let made = mknodat(CWD, path, FileType::CharacterDevice, all, device);
        while_("make a device", made)?;
    }
    for (path, target) in LINKS {
        while_("make a link in /dev", symlinkat(target, CWD, path))?;
    }
    let everybody = Mode::from_raw_mode(0o755);
    for path in [c"/root/dev/pts", c"/root/dev/shm"] {
        while_("make a directory in /dev", mkdirat(CWD, path, everybody))?;
    }
    let options = c"ptmxmode=666,mode=620";
    let made = mount(c"devpts", c"/root/dev/pts", c"devpts", flags, options);
    while_("mount /dev/pts", made)?;
    let shared = (None, Mode::from_raw_mode(0o1777));
    mount_private(storage, c"shm", c"/root/dev/shm", shared)?;
    let flags_of_shm = MountFlags::BIND | HARMLESS;
    let harmless = mount_remount(c"/root/dev/shm", flags_of_shm, c"");
    while_("mount /dev/shm", harmless)?;
    let made = mount_remount(c"/root/dev", flags | MountFlags::RDONLY, c"");
    while_("protect /dev", made)
}

/// Directories of the storage in place of others, whose owner and mode they have.
fn private_directories(paths: &[u8], storage: &OwnedFd) -> Step<()> {
    for (path, number) in wire::strings(paths).zip(0u8..) {
        let mut name = [0; PATH_BYTES_MAX + 1];
        let target = name[..PATH_BYTES_MAX].get_mut(..path.len());
        target
            .ok_or(("name a private directory", Errno::NAMETOOLONG))?
            .copy_from_slice(path);
        let name = CStr::from_bytes_until_nul(&name);
        let name = name.map_err(|_| ("name a private directory", Errno::INVAL))?;
        let old = while_("find a private directory", lstat(name))?;
        let owner = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        let mode = Mode::from_raw_mode(old.st_mode & 0o7777);
        let own = [b'a' + number % 26, b'a' + number / 26, 0];
        let own = CStr::from_bytes_with_nul(&own);
        let own = own.map_err(|_| ("name a private directory", Errno::INVAL))?;
        mount_private(storage, own, name, (Some(owner), mode))?;
    }
    Ok(())
}

/// The loopback, and the one card; whether there is one.
fn network() -> Step<bool> {
    let plain = |system::Errno(number)| Errno::from_raw_os_error(number);
    while_("bring up the loopback", raw::bring_up(c"lo").map_err(plain))?;
    let card = Interface {
        name: c"eth0",
        address: ADDRESS,
        mask: MASK,
        gateway: GATEWAY,
    };
    match raw::configure(&card).map_err(plain) {
        Ok(()) => Ok(true),
        Err(Errno::NODEV) => Ok(false),
        Err(error) => Err(("set up the network", error)),
    }
}

/// Covers the file that says who is asked for names. A view without one stays
/// so.
fn resolver() -> Step<()> {
    let name = c"/etc/resolv.conf";
    let shared = c"/dev/shm/resolv.conf";
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = openat(CWD, shared, flags, Mode::from_raw_mode(0o444));
    let file = while_("say who is asked for names", made)?;
    while_("say who is asked for names", write(&file, RESOLVER))?;
    match mount_bind(shared, name) {
        Err(Errno::NOENT) => {}
        bound => {
            while_("cover /etc/resolv.conf", bound)?;
            let flags = MountFlags::BIND | HARMLESS | MountFlags::RDONLY;
            let protected = mount_remount(name, flags, c"");
            while_("protect /etc/resolv.conf", protected)?;
        }
    }
    let gone = unlinkat(CWD, shared, AtFlags::empty());
    while_("say who is asked for names", gone)
}

/// Becomes who commands are. Only the clock stays the agent's to set; a
/// program that it executes cannot have that, whoever it runs as.
fn give_up(birth: &Birth<'_>) -> Step<()> {
    umask(Mode::from_raw_mode(birth.umask & 0o777));
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // There are no more.
            Err(Errno::INVAL) if number > 0 => break,
            Err(error) => return Err(("bound capabilities", error)),
        }
    }
    while_("keep the clock", set_keep_capabilities(true))?;
    let (uid, gid) = (Uid::from_raw(birth.uid), Gid::from_raw(birth.gid));
    while_("leave all groups", set_thread_groups(&[gid]))?;
    while_("change the group", set_thread_res_gid(gid, gid, gid))?;
    while_("change the user", set_thread_res_uid(uid, uid, uid))?;
    while_("give up inheritance", clear_ambient_capability_set())?;
    let sets = CapabilitySets {
        effective: CapabilitySet::SYS_TIME,
        permitted: CapabilitySet::SYS_TIME,
        inheritable: CapabilitySet::empty(),
    };
    while_("give up capabilities", set_capabilities(None, sets))?;
    while_("forbid new privileges", set_no_new_privs(true))
}

pub fn open(path: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
    openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Tells the host why the machine ends: `cannot mount the view: errno 2`.
fn refuse(channel: &OwnedFd, doing: &str, error: Errno) {
    let mut reason = [0; 96];
    let mut used = 0;
    let mut add = |text: &[u8]| {
        let end = (used + text.len()).min(reason.len());
        let length = end - used;
        reason[used..end].copy_from_slice(&text[..length]);
        used = end;
    };
    add(b"the machine cannot ");
    add(doing.as_bytes());
    add(b": errno ");
    let number = error.raw_os_error().unsigned_abs();
    for unit in [1000, 100, 10, 1] {
        if number >= unit || unit == 1 {
            add(&[b'0' + (number / unit % 10) as u8]);
        }
    }
    let reason = core::str::from_utf8(&reason[..used]).unwrap_or(doing);
    let mut frame = [0; 128];
    if let Ok(length) = wire::encode(0, &Reply::Refused { reason }, &mut frame) {
        // Whoever does not read it does not learn it.
        let _unsaid = write(channel, &frame[..length]).is_err();
    }
}
