//! Hostile primitives: system calls that a confined program would try in order
//! to get out. They are safe to call from Rust's point of view and say what
//! the kernel answered; whether an answer is an escape is judged elsewhere.
//!
//! Nothing in the product's own mechanism may use this module.

use std::ffi::{CStr, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bit that selects the x32 table on x86-64 (asm/unistd.h).
const X32_BIT: c_long = 0x4000_0000;

/// A key id of keyctl(2).
pub type Key = i32;

/// Turns the answer of syscall(2) into a result.
fn answer(value: c_long) -> io::Result<c_long> {
    if value == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// Makes a system call that takes only numbers, or addresses of strings that
/// live for the length of the call and end with a null byte.
fn integers(number: c_long, arguments: [c_long; 5]) -> io::Result<c_long> {
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: private to this module; every caller passes a call that takes
    // plain numbers, null, or strings that it borrows for the whole call, so
    // no memory of ours is written.
    answer(unsafe { libc::syscall(number, first, second, third, fourth, fifth) })
}

/// Takes ownership of a descriptor that a system call has just returned.
fn descriptor(number: c_long, arguments: [c_long; 5]) -> io::Result<OwnedFd> {
    let raw = integers(number, arguments)?;
    // SAFETY: the kernel has just returned this new descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// Makes a system call that takes one structure, by address, in the given place.
fn with_structure(
    number: c_long,
    before: &[c_long],
    structure: &mut [u8],
    after: &[c_long],
) -> io::Result<c_long> {
    let mut arguments = [0 as c_long; 6];
    let all = before
        .iter()
        .copied()
        .chain([structure.as_mut_ptr() as c_long])
        .chain(after.iter().copied());
    for (place, value) in arguments.iter_mut().zip(all) {
        *place = value;
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: private to this module; each caller passes a buffer at least as
    // long as the structure that the call reads or writes there.
    answer(unsafe { libc::syscall(number, a, b, c, d, e, f) })
}

// --- Ways round the system call filter -------------------------------------

/// io_uring_setup(2) with eight entries.
pub fn io_uring_setup() -> io::Result<OwnedFd> {
    let mut parameters = [0_u8; 120];
    let raw = with_structure(libc::SYS_io_uring_setup, &[8], &mut parameters, &[])?;
    // SAFETY: the kernel has just returned this new descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// getpid(2) through `int 0x80`, the table of 32-bit programs.
pub fn int80_getpid() -> io::Result<i64> {
    int80(20, [0; 3])
}

/// socket(2) through `int 0x80`, under its own number.
pub fn int80_socket(family: i32, kind: i32) -> io::Result<OwnedFd> {
    let raw = int80(359, [family as u32, kind as u32, 0])?;
    // SAFETY: the kernel has just returned this new descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// socket(2) through `int 0x80` and socketcall(2).
pub fn int80_socketcall(family: i32, kind: i32) -> io::Result<OwnedFd> {
    let page = LowPage::map()?;
    page.write(&[family as u32, kind as u32, 0]);
    let raw = int80(102, [1, page.address(), 0])?;
    // SAFETY: the kernel has just returned this new descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// One page below 4 GiB, for the 32-bit table.
struct LowPage(*mut c_void);

impl LowPage {
    const BYTES: usize = 4096;

    #[cfg(target_arch = "x86_64")]
    fn map() -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: a new anonymous mapping at a place that the kernel chooses.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), Self::BYTES, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self(page))
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn map() -> io::Result<Self> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn write(&self, words: &[u32; 3]) {
        // SAFETY: the page is mapped for writing and holds more than 12 bytes.
        unsafe { self.0.cast::<[u32; 3]>().write(*words) }
    }

    fn address(&self) -> u32 {
        self.0 as usize as u32
    }
}

impl Drop for LowPage {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `map` and nothing refers to it now.
        unsafe { libc::munmap(self.0, Self::BYTES) };
    }
}

#[cfg(target_arch = "x86_64")]
fn int80(number: u32, arguments: [u32; 3]) -> io::Result<i64> {
    let value: u64;
    // SAFETY: rbx, which the compiler reserves, is restored; the 32-bit entry
    // clobbers no more than rax and r8 to r11, and the callers pass numbers or
    // the address of a page that outlives the call.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first}",
            "int 0x80",
            "xchg rbx, {first}",
            first = inout(reg) u64::from(arguments[0]) => _,
            inlateout("rax") u64::from(number) => value,
            in("rcx") u64::from(arguments[1]),
            in("rdx") u64::from(arguments[2]),
            in("rsi") 0_u64,
            in("rdi") 0_u64,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    let value = i64::from(value as u32 as i32);
    if value < 0 {
        Err(io::Error::from_raw_os_error(-value as i32))
    } else {
        Ok(value)
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn int80(_number: u32, _arguments: [u32; 3]) -> io::Result<i64> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// getpid(2) with the x32 bit.
pub fn x32_getpid() -> io::Result<i64> {
    integers(libc::SYS_getpid | X32_BIT, [0; 5])
}

/// socket(2) with the x32 bit.
pub fn x32_socket(family: i32, kind: i32) -> io::Result<OwnedFd> {
    descriptor(
        libc::SYS_socket | X32_BIT,
        [family.into(), kind.into(), 0, 0, 0],
    )
}

/// socket(2) whose family carries bits above the 32 that the kernel reads.
pub fn socket_high_bits(family: i32, kind: i32) -> io::Result<OwnedFd> {
    let family = c_long::from(family) | (1 << 32);
    descriptor(libc::SYS_socket, [family, kind.into(), 0, 0, 0])
}

/// bpf(2): makes a small array map.
pub fn bpf_map() -> io::Result<OwnedFd> {
    let mut attribute = [0_u8; 128];
    for (place, word) in attribute.chunks_exact_mut(4).zip([2_u32, 4, 4, 1]) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let raw = with_structure(libc::SYS_bpf, &[0], &mut attribute, &[128])?;
    // SAFETY: the kernel has just returned this new descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// perf_event_open(2): a software clock on ourselves.
pub fn perf_event() -> io::Result<OwnedFd> {
    let mut attribute = [0_u8; 128];
    attribute[0..4].copy_from_slice(&1_u32.to_ne_bytes());
    attribute[4..8].copy_from_slice(&128_u32.to_ne_bytes());
    let raw = with_structure(
        libc::SYS_perf_event_open,
        &[],
        &mut attribute,
        &[0, -1, -1, 0],
    )?;
    // SAFETY: the kernel has just returned this new descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// userfaultfd(2), also for faults of the kernel when `flags` is zero.
pub fn userfaultfd(flags: i32) -> io::Result<OwnedFd> {
    descriptor(libc::SYS_userfaultfd, [flags.into(), 0, 0, 0, 0])
}

/// fanotify_init(2) with the form that needs no capability.
pub fn fanotify() -> io::Result<OwnedFd> {
    descriptor(libc::SYS_fanotify_init, [0x200, 0, 0, 0, 0])
}

/// kexec_load(2) with too many segments: EINVAL when the kernel would serve
/// us, without any effect.
pub fn kexec_load() -> io::Result<()> {
    integers(libc::SYS_kexec_load, [0, 17, 0, 0, 0]).map(drop)
}

/// init_module(2) with an image that is none: ENOEXEC when the kernel would
/// serve us.
pub fn init_module() -> io::Result<()> {
    let mut image = [0_u8; 64];
    let parameters = c"".as_ptr() as c_long;
    with_structure(libc::SYS_init_module, &[], &mut image, &[64, parameters]).map(drop)
}

/// reboot(2) with wrong magic numbers: EINVAL when the kernel would serve us.
pub fn reboot() -> io::Result<()> {
    integers(libc::SYS_reboot, [0; 5]).map(drop)
}

/// swapoff(2) of a path that does not exist.
pub fn swapoff() -> io::Result<()> {
    let path = c"/stockade-no-such-swap".as_ptr() as c_long;
    integers(libc::SYS_swapoff, [path, 0, 0, 0, 0]).map(drop)
}

/// syslog(2): the last bytes of the kernel's log.
pub fn kernel_log() -> io::Result<Vec<u8>> {
    let mut buffer = vec![0_u8; 65536];
    let bytes = with_structure(libc::SYS_syslog, &[3], &mut buffer, &[65536])?;
    buffer.truncate(bytes as usize);
    Ok(buffer)
}

/// Sets the clock to the time that it shows already (clock_settime(2)).
pub fn set_clock() -> io::Result<()> {
    let mut time = [0_u8; 16];
    with_structure(libc::SYS_clock_gettime, &[0], &mut time, &[])?;
    with_structure(libc::SYS_clock_settime, &[0], &mut time, &[]).map(drop)
}

/// iopl(2): access to the machine's ports.
#[cfg(target_arch = "x86_64")]
pub fn iopl() -> io::Result<()> {
    integers(libc::SYS_iopl, [3, 0, 0, 0, 0]).map(drop)
}

/// iopl(2) does not exist on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub fn iopl() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// modify_ldt(2): reads the table, which a filter should refuse as well.
#[cfg(target_arch = "x86_64")]
pub fn modify_ldt() -> io::Result<()> {
    let mut table = [0_u8; 64];
    with_structure(libc::SYS_modify_ldt, &[0], &mut table, &[64]).map(drop)
}

/// modify_ldt(2) does not exist on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub fn modify_ldt() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// personality(2), for example to switch address randomisation off.
pub fn personality(persona: u32) -> io::Result<()> {
    integers(libc::SYS_personality, [persona.into(), 0, 0, 0, 0]).map(drop)
}

/// quotactl(2): Q_SYNC, which needs no target.
pub fn quotactl() -> io::Result<()> {
    integers(
        libc::SYS_quotactl,
        [0x8000_0100_u32 as i32 as c_long, 0, 0, 0, 0],
    )
    .map(drop)
}

/// acct(2) with accounting switched off, which it is.
pub fn acct_off() -> io::Result<()> {
    integers(libc::SYS_acct, [0; 5]).map(drop)
}

// --- Terminals --------------------------------------------------------------

/// ioctl(2) TIOCSTI: types one byte into a terminal. `high_bits` are set above
/// the 32 bits of the command that the kernel reads.
pub fn tiocsti(terminal: BorrowedFd<'_>, byte: u8, high_bits: u32) -> io::Result<()> {
    let command = 0x5412 | (c_long::from(high_bits) << 32);
    let mut byte = [byte];
    let before = [c_long::from(terminal.as_raw_fd()), command];
    with_structure(libc::SYS_ioctl, &before, &mut byte, &[]).map(drop)
}

/// ioctl(2) TIOCLINUX: pastes the selection of a virtual console.
pub fn tioclinux(terminal: BorrowedFd<'_>) -> io::Result<()> {
    let mut argument = [3_u8, 0, 0, 0, 0, 0, 0, 0];
    let before = [c_long::from(terminal.as_raw_fd()), 0x541C];
    with_structure(libc::SYS_ioctl, &before, &mut argument, &[]).map(drop)
}

/// ioctl(2) TIOCSETD: another line discipline on a terminal.
pub fn tiocsetd(terminal: BorrowedFd<'_>, discipline: i32) -> io::Result<()> {
    let mut argument = discipline.to_ne_bytes();
    let before = [c_long::from(terminal.as_raw_fd()), 0x5423];
    with_structure(libc::SYS_ioctl, &before, &mut argument, &[]).map(drop)
}

/// ioctl(2) TIOCCONS: takes over the messages of the console.
pub fn tioccons(terminal: BorrowedFd<'_>) -> io::Result<()> {
    integers(
        libc::SYS_ioctl,
        [terminal.as_raw_fd().into(), 0x541D, 0, 0, 0],
    )
    .map(drop)
}

// --- Other processes --------------------------------------------------------

/// ptrace(2) PTRACE_SEIZE, which does not stop the target; it is let go when
/// we end.
pub fn ptrace_seize(pid: i32) -> io::Result<()> {
    integers(libc::SYS_ptrace, [0x4206, pid.into(), 0, 0, 0]).map(drop)
}

/// ptrace(2) PTRACE_ATTACH, then PTRACE_DETACH.
pub fn ptrace_attach(pid: i32) -> io::Result<()> {
    integers(libc::SYS_ptrace, [16, pid.into(), 0, 0, 0])?;
    // SAFETY: waits for the stop of the process that we have just attached to;
    // a null status is allowed.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
    integers(libc::SYS_ptrace, [17, pid.into(), 0, 0, 0]).map(drop)
}

/// process_vm_readv(2): copies memory of another process.
pub fn process_vm_read(pid: i32, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0_u8; bytes];
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: bytes,
    };
    let remote = libc::iovec {
        iov_base: address as usize as *mut c_void,
        iov_len: bytes,
    };
    // SAFETY: the local vector names `buffer`, which is as long as it says; the
    // remote one is an address in the other process only.
    let read = answer(unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) } as c_long)?;
    buffer.truncate(read as usize);
    Ok(buffer)
}

/// process_vm_writev(2) of zero bytes: passes the permission check only.
pub fn process_vm_write_nothing(pid: i32, address: u64) -> io::Result<()> {
    let byte = [0_u8; 1];
    let local = libc::iovec {
        iov_base: byte.as_ptr() as *mut c_void,
        iov_len: 1,
    };
    let remote = libc::iovec {
        iov_base: address as usize as *mut c_void,
        iov_len: 1,
    };
    // SAFETY: the local vector names a live byte that is only read; the remote
    // address is one at which nothing is mapped, so that nothing is changed.
    let written = unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) };
    match answer(written as c_long) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        other => other.map(drop),
    }
}

/// kill(2) with any target, groups and `-1` included.
pub fn kill(target: i32, signal: i32) -> io::Result<()> {
    integers(libc::SYS_kill, [target.into(), signal.into(), 0, 0, 0]).map(drop)
}

/// pidfd_open(2).
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    descriptor(libc::SYS_pidfd_open, [pid.into(), 0, 0, 0, 0])
}

/// pidfd_getfd(2): takes a copy of a descriptor out of another process.
pub fn pidfd_getfd(process: BorrowedFd<'_>, number: i32) -> io::Result<OwnedFd> {
    descriptor(
        libc::SYS_pidfd_getfd,
        [process.as_raw_fd().into(), number.into(), 0, 0, 0],
    )
}

/// kcmp(2): compares the memory of two processes.
pub fn kcmp(first: i32, second: i32) -> io::Result<()> {
    integers(libc::SYS_kcmp, [first.into(), second.into(), 1, 0, 0]).map(drop)
}

/// prlimit(2): reads a limit of another process.
pub fn prlimit_read(pid: i32) -> io::Result<()> {
    let mut limit = [0_u8; 16];
    with_structure(libc::SYS_prlimit64, &[pid.into(), 7, 0], &mut limit, &[]).map(drop)
}

/// fcntl(2) F_SETOWN: has the kernel signal another process for us.
pub fn set_signal_owner(file: BorrowedFd<'_>, pid: i32) -> io::Result<()> {
    integers(
        libc::SYS_fcntl,
        [file.as_raw_fd().into(), 8, pid.into(), 0, 0],
    )
    .map(drop)
}

/// Forks a child that does nothing until it is killed, or until we end.
pub fn fork_sleeper() -> io::Result<i32> {
    // SAFETY: the child makes only the async-signal-safe calls prctl(2),
    // pause(2) and _exit(2).
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::pause();
            libc::_exit(0);
        }
        answer(pid.into()).map(|pid| pid as i32)
    }
}

/// Kills and reaps a child of [`fork_sleeper`].
pub fn end_sleeper(pid: i32) {
    // SAFETY: numbers only, and a null status is allowed.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// Ignores every signal that can be ignored.
pub fn ignore_signals() {
    for signal in 1..=64 {
        // SAFETY: SIG_IGN installs no handler. A failure (SIGKILL, SIGSTOP) is
        // what the caller tries to provoke.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

// --- Privileges and namespaces ----------------------------------------------

/// unshare(2).
pub fn unshare(flags: i32) -> io::Result<()> {
    integers(libc::SYS_unshare, [flags.into(), 0, 0, 0, 0]).map(drop)
}

/// setns(2).
pub fn setns(namespace: BorrowedFd<'_>, kind: i32) -> io::Result<()> {
    integers(
        libc::SYS_setns,
        [namespace.as_raw_fd().into(), kind.into(), 0, 0, 0],
    )
    .map(drop)
}

/// clone(2) with flags for namespaces; the child ends at once.
pub fn clone_into(flags: i32) -> io::Result<()> {
    let flags = c_long::from(flags | libc::SIGCHLD);
    let pid = integers(libc::SYS_clone, [flags, 0, 0, 0, 0])?;
    end_or_reap(pid)
}

/// clone3(2) with flags for namespaces; the child ends at once.
pub fn clone3_into(flags: u64) -> io::Result<()> {
    let mut arguments = [0_u8; 64];
    arguments[0..8].copy_from_slice(&flags.to_ne_bytes());
    arguments[32..40].copy_from_slice(&(libc::SIGCHLD as u64).to_ne_bytes());
    let pid = with_structure(libc::SYS_clone3, &[], &mut arguments, &[64])?;
    end_or_reap(pid)
}

fn end_or_reap(pid: c_long) -> io::Result<()> {
    if pid == 0 {
        // SAFETY: _exit(2) runs no code of ours in the child.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for our own child; a null status is allowed.
    unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
    Ok(())
}

/// mount_setattr(2): makes the mount at `path` writable.
pub fn mount_writable(path: &CStr) -> io::Result<()> {
    let mut attribute = [0_u8; 32];
    attribute[8..16].copy_from_slice(&1_u64.to_ne_bytes());
    let before = [c_long::from(libc::AT_FDCWD), path.as_ptr() as c_long, 0];
    with_structure(libc::SYS_mount_setattr, &before, &mut attribute, &[32]).map(drop)
}

/// capset(2) with all capabilities.
pub fn capset_all() -> io::Result<()> {
    let header: [u32; 2] = [0x2008_0522, 0];
    let all: [u32; 6] = [u32::MAX; 6];
    // SAFETY: header and data have the layout of version 3 and are only read.
    answer(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), all.as_ptr()) }).map(drop)
}

/// prctl(2) PR_CAP_AMBIENT_RAISE.
pub fn raise_ambient(capability: u32) -> io::Result<()> {
    integers(libc::SYS_prctl, [47, 2, capability.into(), 0, 0]).map(drop)
}

/// prctl(2) PR_SET_NO_NEW_PRIVS with 0.
pub fn clear_no_new_privileges() -> io::Result<()> {
    integers(libc::SYS_prctl, [38, 0, 0, 0, 0]).map(drop)
}

/// prctl(2) PR_SET_MM_BRK with the program break of no program.
pub fn set_memory_map() -> io::Result<()> {
    integers(libc::SYS_prctl, [35, 7, 4096, 0, 0]).map(drop)
}

/// setresuid(2).
pub fn set_user(uid: u32) -> io::Result<()> {
    let uid = c_long::from(uid);
    integers(libc::SYS_setresuid, [uid, uid, uid, 0, 0]).map(drop)
}

/// setresgid(2).
pub fn set_group(gid: u32) -> io::Result<()> {
    let gid = c_long::from(gid);
    integers(libc::SYS_setresgid, [gid, gid, gid, 0, 0]).map(drop)
}

/// setgroups(2) with one group.
pub fn set_groups(gid: u32) -> io::Result<()> {
    let mut groups = gid.to_ne_bytes();
    with_structure(libc::SYS_setgroups, &[1], &mut groups, &[]).map(drop)
}

/// setpriority(2) of ourselves.
pub fn set_nice(nice: i32) -> io::Result<()> {
    integers(libc::SYS_setpriority, [0, 0, nice.into(), 0, 0]).map(drop)
}

/// sched_setscheduler(2): real time, lowest priority.
pub fn real_time() -> io::Result<()> {
    let mut priority = 1_i32.to_ne_bytes();
    with_structure(libc::SYS_sched_setscheduler, &[0, 1], &mut priority, &[]).map(drop)
}

/// setrlimit(2): hard limit without bound.
pub fn unlimited(resource: u32) -> io::Result<()> {
    let mut limit = [0xff_u8; 16];
    with_structure(libc::SYS_setrlimit, &[resource.into()], &mut limit, &[]).map(drop)
}

// --- Files by handle --------------------------------------------------------

/// A file handle of name_to_handle_at(2): its type and its bytes.
pub type Handle = (i32, Vec<u8>);

/// name_to_handle_at(2).
pub fn name_to_handle(path: &CStr) -> io::Result<Handle> {
    let mut buffer = [0_u8; 8 + 128];
    buffer[0..4].copy_from_slice(&128_u32.to_ne_bytes());
    let mut mount = 0_i32;
    // SAFETY: the path ends with a null byte; the handle has room for the 128
    // bytes that it announces; the mount id is a live integer.
    answer(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            buffer.as_mut_ptr(),
            &raw mut mount,
            0,
        )
    })?;
    let word = |at: usize| [buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]];
    let bytes = u32::from_ne_bytes(word(0)) as usize;
    Ok((
        i32::from_ne_bytes(word(4)),
        buffer[8..8 + bytes.min(128)].to_vec(),
    ))
}

/// open_by_handle_at(2), for reading.
pub fn open_by_handle(mount: BorrowedFd<'_>, handle: &Handle) -> io::Result<OwnedFd> {
    let mut buffer = Vec::with_capacity(8 + handle.1.len());
    buffer.extend_from_slice(&(handle.1.len() as u32).to_ne_bytes());
    buffer.extend_from_slice(&handle.0.to_ne_bytes());
    buffer.extend_from_slice(&handle.1);
    let before = [c_long::from(mount.as_raw_fd())];
    let flags = c_long::from(libc::O_RDONLY | libc::O_CLOEXEC);
    let raw = with_structure(libc::SYS_open_by_handle_at, &before, &mut buffer, &[flags])?;
    // SAFETY: the kernel has just returned this new descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

// --- Kernel objects without a path ------------------------------------------

/// The session keyring (keyctl(2)).
pub const SESSION_KEYRING: Key = -3;
/// The keyring of the user (keyctl(2)).
pub const USER_KEYRING: Key = -4;

/// add_key(2) of type `user`.
pub fn add_key(description: &CStr, payload: &[u8], keyring: Key) -> io::Result<Key> {
    // SAFETY: two strings that end with a null byte and a payload that is as
    // long as is said; all are only read.
    answer(unsafe {
        libc::syscall(
            libc::SYS_add_key,
            c"user".as_ptr(),
            description.as_ptr(),
            payload.as_ptr(),
            payload.len(),
            keyring,
        )
    })
    .map(|key| key as Key)
}

/// request_key(2) of type `user`, without a call to user space.
pub fn request_key(description: &CStr) -> io::Result<Key> {
    // SAFETY: two strings that end with a null byte and a null pointer.
    answer(unsafe {
        libc::syscall(
            libc::SYS_request_key,
            c"user".as_ptr(),
            description.as_ptr(),
            0_usize,
            0,
        )
    })
    .map(|key| key as Key)
}

/// keyctl(2) KEYCTL_READ.
pub fn keyctl_read(key: Key) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0_u8; 4096];
    let bytes = with_structure(libc::SYS_keyctl, &[11, key.into()], &mut buffer, &[4096])?;
    buffer.truncate(bytes as usize);
    Ok(buffer)
}

/// keyctl(2) KEYCTL_SEARCH in a keyring, for a key of type `user`.
pub fn keyctl_search(keyring: Key, description: &CStr) -> io::Result<Key> {
    let kind = c"user".as_ptr() as c_long;
    let description = description.as_ptr() as c_long;
    integers(libc::SYS_keyctl, [10, keyring.into(), kind, description, 0]).map(|key| key as Key)
}

/// keyctl(2) KEYCTL_JOIN_SESSION_KEYRING with a name.
pub fn keyctl_join(name: &CStr) -> io::Result<Key> {
    let name = name.as_ptr() as c_long;
    integers(libc::SYS_keyctl, [1, name, 0, 0, 0]).map(|key| key as Key)
}

/// keyctl(2) KEYCTL_GET_PERSISTENT of our user, linked into our process keyring.
pub fn keyctl_persistent() -> io::Result<Key> {
    integers(libc::SYS_keyctl, [22, -1, -2, 0, 0]).map(|key| key as Key)
}

/// keyctl(2) KEYCTL_INVALIDATE: removes a key.
pub fn keyctl_invalidate(key: Key) -> io::Result<()> {
    integers(libc::SYS_keyctl, [21, key.into(), 0, 0, 0]).map(drop)
}

/// Bytes of the segments that [`shm_create`] makes.
const SEGMENT_BYTES: usize = 4096;

/// A new System V segment under `key` that starts with `content` (shmget(2)).
pub fn shm_create(key: i32, content: &[u8]) -> io::Result<i32> {
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
    let id = integers(
        libc::SYS_shmget,
        [key.into(), SEGMENT_BYTES as c_long, flags.into(), 0, 0],
    )?;
    attached(id as i32, 0, |start| {
        let bytes = content.len().min(SEGMENT_BYTES);
        // SAFETY: the segment is attached for writing and holds SEGMENT_BYTES.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), start, bytes) };
    })?;
    Ok(id as i32)
}

/// Finds a System V segment by its key.
pub fn shm_find(key: i32) -> io::Result<i32> {
    integers(libc::SYS_shmget, [key.into(), 0, 0, 0, 0]).map(|id| id as i32)
}

/// Content of a System V segment by id; reads at most one page.
pub fn shm_read(id: i32) -> io::Result<Vec<u8>> {
    attached(id, libc::SHM_RDONLY, |start| {
        // SAFETY: a segment holds at least one page, and all of it is mapped.
        unsafe { std::slice::from_raw_parts(start, SEGMENT_BYTES) }.to_vec()
    })
}

/// Removes a System V segment.
pub fn shm_remove(id: i32) -> io::Result<()> {
    integers(
        libc::SYS_shmctl,
        [id.into(), libc::IPC_RMID.into(), 0, 0, 0],
    )
    .map(drop)
}

fn attached<T>(id: i32, flags: i32, work: impl FnOnce(*mut u8) -> T) -> io::Result<T> {
    // SAFETY: the kernel chooses where the segment is mapped.
    let start = unsafe { libc::shmat(id, std::ptr::null(), flags) };
    if start as isize == -1 {
        return Err(io::Error::last_os_error());
    }
    let result = work(start.cast());
    // SAFETY: `start` was returned by shmat and nothing refers to it now.
    unsafe { libc::shmdt(start) };
    Ok(result)
}

/// A new System V message queue under `key` that holds `content` (msgget(2)).
pub fn msg_create(key: i32, content: &[u8]) -> io::Result<i32> {
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
    let id = integers(libc::SYS_msgget, [key.into(), flags.into(), 0, 0, 0])?;
    let mut message = 1_i64.to_ne_bytes().to_vec();
    message.extend_from_slice(content);
    with_structure(
        libc::SYS_msgsnd,
        &[id],
        &mut message,
        &[content.len() as c_long, 0],
    )?;
    Ok(id as i32)
}

/// Takes one message of at most 256 bytes from a System V queue.
pub fn msg_take(key: i32) -> io::Result<Vec<u8>> {
    let id = integers(libc::SYS_msgget, [key.into(), 0, 0, 0, 0])?;
    let mut message = vec![0_u8; 8 + 256];
    let flags = c_long::from(libc::IPC_NOWAIT);
    let bytes = with_structure(libc::SYS_msgrcv, &[id], &mut message, &[256, 0, flags])?;
    Ok(message[8..8 + bytes as usize].to_vec())
}

/// Removes a System V message queue.
pub fn msg_remove(id: i32) -> io::Result<()> {
    integers(
        libc::SYS_msgctl,
        [id.into(), libc::IPC_RMID.into(), 0, 0, 0],
    )
    .map(drop)
}

/// A new POSIX message queue that holds `content`; the name has no slash
/// (mq_overview(7)).
pub fn mq_create(name: &CStr, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = c_long::from(libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC);
    let queue = descriptor(
        libc::SYS_mq_open,
        [name.as_ptr() as c_long, flags, 0o600, 0, 0],
    )?;
    let mut content = content.to_vec();
    let bytes = content.len() as c_long;
    let before = [c_long::from(queue.as_raw_fd())];
    with_structure(
        libc::SYS_mq_timedsend,
        &before,
        &mut content,
        &[bytes, 0, 0],
    )?;
    Ok(queue)
}

/// Takes one message from a POSIX queue.
pub fn mq_take(name: &CStr) -> io::Result<Vec<u8>> {
    let flags = c_long::from(libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC);
    let queue = descriptor(libc::SYS_mq_open, [name.as_ptr() as c_long, flags, 0, 0, 0])?;
    let mut buffer = vec![0_u8; 65536];
    let before = [c_long::from(queue.as_raw_fd())];
    let bytes = with_structure(
        libc::SYS_mq_timedreceive,
        &before,
        &mut buffer,
        &[65536, 0, 0],
    )?;
    buffer.truncate(bytes as usize);
    Ok(buffer)
}

/// mq_unlink(3).
pub fn mq_unlink(name: &CStr) -> io::Result<()> {
    integers(libc::SYS_mq_unlink, [name.as_ptr() as c_long, 0, 0, 0, 0]).map(drop)
}
