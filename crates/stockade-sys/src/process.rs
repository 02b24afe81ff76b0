//! Making, naming and ending processes: clone3(2), execve(2), wait.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::{check, signal};

/// Namespaces of a new process (namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// User, mount, pid, ipc and uts; [`leave_network`] and
    /// [`leave_control_group`] complete them from inside.
    Own,
    /// Those of the caller.
    None,
}

/// Which side of a fork this is.
pub enum Forked {
    Parent(Child),
    Child,
}

/// A child process and the descriptor that names it even after its id is
/// used again.
#[derive(Debug)]
pub struct Child {
    pub pid: u32,
    pub pidfd: OwnedFd,
}

/// Whether the calling process has one thread. unshare(2) accepts
/// CLONE_THREAD, without any effect, only then.
pub fn is_single_threaded() -> bool {
    // SAFETY: the call takes an integer and changes nothing.
    unsafe { libc::unshare(libc::CLONE_THREAD) == 0 }
}

/// Forks into new namespaces with clone3(2).
///
/// Refused with `EBUSY` when the process has several threads: the child would
/// inherit locks that nobody in it can release. The child inherits every
/// descriptor and all memory, and its parent-side identity (`pidfd`) is made
/// by the same call, so there is no moment in which the id could be another's.
pub fn fork_into(namespaces: Namespaces) -> io::Result<Forked> {
    if !is_single_threaded() {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let new = match namespaces {
        Namespaces::Own => {
            libc::CLONE_NEWUSER
                | libc::CLONE_NEWNS
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUTS
        }
        Namespaces::None => 0,
    };
    // SAFETY: the process has one thread, so nobody holds a lock in the copy.
    Ok(match unsafe { copy_of_process(new) }? {
        Some(child) => Forked::Parent(child),
        None => Forked::Child,
    })
}

/// Like fork(2), into new namespaces: the copy, or `None` in it.
///
/// # Safety
/// With several threads the copy may only make system calls: other threads' locks
/// stay taken in it.
pub(crate) unsafe fn copy_of_process(namespaces: libc::c_int) -> io::Result<Option<Child>> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all-zero is a valid `clone_args`; the fields that matter follow.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (libc::CLONE_PIDFD | namespaces) as u64;
    arguments.pidfd = &raw mut pidfd as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM and a stack this is fork(2); what the copy may do
    // is the caller's contract.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<libc::clone_args>(),
        )
    })?;
    Ok((pid != 0).then(|| Child {
        pid: pid as u32,
        // SAFETY: the kernel made this descriptor for us and nobody else owns it.
        pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
    }))
}

/// Moves this process into a new network namespace (network_namespaces(7)).
pub fn leave_network() -> io::Result<()> {
    unshare(libc::CLONE_NEWNET)
}

/// Makes this process's control group the root of what it sees of control
/// groups (cgroup_namespaces(7)).
pub fn leave_control_group() -> io::Result<()> {
    unshare(libc::CLONE_NEWCGROUP)
}

/// Moves this process into a new network namespace that belongs to a new user
/// namespace, in which it has every capability (user_namespaces(7)).
pub fn leave_network_and_users() -> io::Result<()> {
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)
}

/// Moves this process into a new user namespace in which it is user 0 and group
/// 0 and has every capability, and in which there is nobody else; outside it
/// stays `user` and `group`, which must be its own. User 0 needs CAP_SETFCAP for
/// that (user_namespaces(7)). Meant for a forked child just before exec: until
/// then others of the same user could look into its memory.
pub fn enter_own_user_namespace(user: u32, group: u32) -> io::Result<()> {
    unshare(libc::CLONE_NEWUSER)?;
    // Its files in /proc would belong to somebody who is not in the namespace.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // Without this it could drop a group that denies it access
    // (CVE-2014-8989); the kernel insists.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1\n"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1\n"))
}

/// Moves this process into a user namespace that its own user made, where it
/// then has every capability, and into a mount namespace of it, whose root
/// becomes its root (setns(2)). `EINVAL` with several threads.
pub fn enter_view(user: BorrowedFd<'_>, mount: BorrowedFd<'_>) -> io::Result<()> {
    for (namespace, kind) in [(user, libc::CLONE_NEWUSER), (mount, libc::CLONE_NEWNS)] {
        // SAFETY: takes integers.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), kind) };
        check(entered.into())?;
    }
    Ok(())
}

/// Copies memory of another process, from `address` on, into `buffer`: how
/// many bytes there were (process_vm_readv(2)). `EFAULT` for the first.
pub fn read_memory(process: u32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: buffer.len(),
    };
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`; the
    // other address is only looked at in the other process.
    let read = check(unsafe {
        libc::process_vm_readv(
            process as libc::pid_t,
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        ) as libc::c_long
    })?;
    Ok(read as usize)
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes an integer; no memory is involved.
    check(unsafe { libc::unshare(flags) }.into())?;
    Ok(())
}

/// Plain fork(2): the child's id, or `None` in the child. `EBUSY` when the
/// process has several threads.
pub fn fork() -> io::Result<Option<u32>> {
    if !is_single_threaded() {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: the process has one thread, so the child's copy is consistent.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok((pid != 0).then_some(pid as u32))
}

/// Ends the process at once, without destructors or buffered output: the only
/// way out of a forked child that must not run its parent's clean-up.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Replaces the program of this process (execve(2)); returns only the error.
pub fn execute(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays end in NULL and point to strings that outlive the
    // call, as execve(2) demands.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// As [`execute`], with the file that a descriptor is open on (execveat(2) with
/// AT_EMPTY_PATH): no path leads to it. It must be no script when the
/// descriptor closes on exec.
pub fn execute_open(
    program: BorrowedFd<'_>,
    arguments: &[CString],
    environment: &[CString],
) -> io::Error {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: the path is an empty string; both arrays end in NULL and point to
    // strings that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// The strings as execve(2) takes them, a NULL behind the last.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|text| text.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// Overwrites the environment and the arguments that the kernel shows in
/// `/proc/PID/environ` and `/proc/PID/cmdline` of this process with `name`
/// and zeros, and forgets the environment.
///
/// A forked child shares no memory with its parent, so the parent keeps its
/// own.
pub fn scrub_arguments(name: &CStr) {
    let bounds = argument_bounds();
    // SAFETY: `environ` is NULL-terminated and its first strings are those
    // that the kernel laid out as one block at exec; nothing else reads or
    // writes it, since the process has one thread (a fork's child). The block
    // belongs to this process's own writable stack.
    unsafe {
        unsafe extern "C" {
            static mut environ: *mut *mut libc::c_char;
        }
        if let Some((arguments, environment)) = bounds {
            for (start, end) in [arguments, environment] {
                ptr::write_bytes(start as *mut u8, 0, end - start);
            }
            let (start, end) = arguments;
            let bytes = name.to_bytes();
            let length = bytes.len().min((end - start).saturating_sub(1));
            ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, length);
        }
        environ = ptr::null_mut();
    }
}

/// Where the kernel put the argument and environment strings: fields 48 to 51
/// of `/proc/self/stat` (proc_pid_stat(5)), checked to be plausible.
fn argument_bounds() -> Option<((usize, usize), (usize, usize))> {
    let stat = std::fs::read("/proc/self/stat").ok()?;
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let text = std::str::from_utf8(&stat[after_name..]).ok()?;
    let fields: Vec<usize> = text
        .split_ascii_whitespace()
        .skip(45)
        .take(4)
        .filter_map(|field| field.parse().ok())
        .collect();
    let [arguments, arguments_end, environment, environment_end] = fields[..] else {
        return None;
    };
    let plausible = arguments != 0
        && arguments <= arguments_end
        && environment <= environment_end
        && arguments_end <= environment;
    plausible.then_some(((arguments, arguments_end), (environment, environment_end)))
}

/// How a program is started by [`spawn`].
pub struct Spawn<'a> {
    pub arguments: &'a [CString],
    pub environment: &'a [CString],
    /// Open descriptors that become 0, 1 and 2.
    pub streams: [i32; 3],
}

/// Starts `program` in a process group of its own, with no signal blocked and
/// SIGPIPE at its default, by posix_spawn(3): the child shares this process's
/// memory until it executes, so nothing is copied.
///
/// Other descriptors must be close-on-exec. The error is that of execve(2) or
/// of the preparation.
pub fn spawn(program: &CStr, spawn: &Spawn<'_>) -> io::Result<u32> {
    let pointers = |strings: &[CString]| -> Vec<*mut libc::c_char> {
        let ends = [ptr::null_mut()];
        strings
            .iter()
            .map(|text| text.as_ptr().cast_mut())
            .chain(ends)
            .collect()
    };
    let (arguments, environment) = (pointers(spawn.arguments), pointers(spawn.environment));
    let mut actions = MaybeUninit::uninit();
    let mut attributes = MaybeUninit::uninit();
    let mut pid = 0;
    // SAFETY: both objects are initialised before use and destroyed after; the
    // arrays end in NULL and point to strings that outlive the call, which
    // only reads them.
    let code = unsafe {
        libc::posix_spawn_file_actions_init(actions.as_mut_ptr());
        libc::posix_spawnattr_init(attributes.as_mut_ptr());
        let mut code = prepare_spawn(actions.as_mut_ptr(), attributes.as_mut_ptr(), spawn.streams);
        if code == 0 {
            code = libc::posix_spawn(
                &raw mut pid,
                program.as_ptr(),
                actions.as_ptr(),
                attributes.as_ptr(),
                arguments.as_ptr(),
                environment.as_ptr(),
            );
        }
        libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr());
        libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
        code
    };
    if code != 0 {
        Err(io::Error::from_raw_os_error(code))
    } else {
        Ok(pid as u32)
    }
}

/// Fills in actions and attributes; an error number or 0.
///
/// # Safety
/// Both pointers must be to initialised objects.
unsafe fn prepare_spawn(
    actions: *mut libc::posix_spawn_file_actions_t,
    attributes: *mut libc::posix_spawnattr_t,
    streams: [i32; 3],
) -> libc::c_int {
    let flags =
        libc::POSIX_SPAWN_SETPGROUP | libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
    let (none, pipe) = (signal::set_of(&[]), signal::set_of(&[libc::SIGPIPE]));
    // SAFETY: the caller's contract; the sets are initialised.
    unsafe {
        for (number, source) in (0..).zip(streams) {
            let code = libc::posix_spawn_file_actions_adddup2(actions, source, number);
            if code != 0 {
                return code;
            }
        }
        let codes = [
            libc::posix_spawnattr_setflags(attributes, flags as libc::c_short),
            libc::posix_spawnattr_setpgroup(attributes, 0),
            libc::posix_spawnattr_setsigmask(attributes, &raw const none),
            libc::posix_spawnattr_setsigdefault(attributes, &raw const pipe),
        ];
        codes.into_iter().find(|&code| code != 0).unwrap_or(0)
    }
}

/// Closes every descriptor but 0, 1, 2, `control` and those with a number in
/// `streams` (close_range(2)).
///
/// `EBADF` when one of `streams` is not open. No Rust object that owns another
/// descriptor may be used afterwards; in a forked child there is none.
pub fn close_descriptors_but(streams: &[i32], control: BorrowedFd<'_>) -> io::Result<()> {
    let mut kept: Vec<u32> = vec![control.as_raw_fd() as u32];
    for &number in streams {
        // SAFETY: takes integers; the answer says whether the number is open.
        check(unsafe { libc::fcntl(number, libc::F_GETFD) }.into())?;
        kept.push(number as u32);
    }
    kept.sort_unstable();
    let mut start = 3;
    for number in kept.into_iter().filter(|&number| number >= 3) {
        if number > start {
            close_range(start, number - 1)?;
        }
        start = start.max(number + 1);
    }
    close_range(start, u32::MAX)
}

/// Closes every descriptor from `first` on (close_range(2)). No Rust object
/// that owns one may be used afterwards.
pub fn close_descriptors_from(first: u32) -> io::Result<()> {
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: takes integers; the caller's contract says that nobody uses the
    // descriptors that are closed.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
    Ok(())
}

/// Takes possession of a descriptor that this program was started with, and
/// marks it to be closed on exec. Each can be taken once: `EBUSY` afterwards,
/// `EBADF` for one that is not open or is a standard stream.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    if !(3..64).contains(&number) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: takes integers; what is not open is refused.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
    let bit = 1 << number;
    if TAKEN.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: the descriptor is open, and this function gives it away once.
    // The caller's contract is that nothing in this program opened it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes the open descriptor `source` the descriptor `number`, surviving exec.
/// Meant for a forked child just before exec, where no Rust object that owns
/// `number` is used any more.
pub fn become_standard(source: i32, number: i32) -> io::Result<()> {
    // SAFETY: takes integers; an unopened `source` is refused with EBADF.
    unsafe {
        if source == number {
            check(libc::fcntl(source, libc::F_SETFD, 0).into())?;
        } else {
            check(libc::dup2(source, number).into())?;
        }
    }
    Ok(())
}

/// How a process changed state, from waitid(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Exited(i32),
    Killed { signal: i32, core: bool },
    Stopped(i32),
}

/// Collects one changed child, without waiting; `None` when there is none.
pub fn reap_one() -> io::Result<Option<(u32, Change)>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
    if pid < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) {
            Ok(None)
        } else {
            Err(error)
        };
    }
    if pid == 0 {
        return Ok(None);
    }
    Ok(Some((pid as u32, change(status))))
}

fn change(status: libc::c_int) -> Change {
    if libc::WIFEXITED(status) {
        Change::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed {
            signal: libc::WTERMSIG(status),
            core: libc::WCOREDUMP(status),
        }
    } else {
        Change::Stopped(libc::WSTOPSIG(status))
    }
}

/// Waits until the child `pid`, which nobody else waits for, has ended.
pub fn wait_for(pid: u32) -> io::Result<Change> {
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let found = unsafe { libc::waitpid(pid as libc::pid_t, &raw mut status, 0) };
        match check(found.into()) {
            Ok(_) => return Ok(change(status)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Joins a new, empty session keyring, so that no key of the caller's session
/// is possessed (session-keyring(7)). A kernel without keys has none to leave.
pub fn leave_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: takes an integer and a null name, which asks for an anonymous one.
    let result = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_JOIN_SESSION_KEYRING,
            ptr::null::<u8>(),
            0,
            0,
            0,
        )
    };
    match check(result) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other.map(drop),
    }
}

/// Largest resident set of any process that was waited for, in bytes, and the
/// processor time of all of them, in microseconds (getrusage(2)).
pub fn usage_of_children() -> (u64, u64) {
    // SAFETY: all-zero is a valid `rusage`, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (
        usage.ru_maxrss as u64 * 1024,
        micros(usage.ru_utime) + micros(usage.ru_stime),
    )
}

/// Sends signal `number` to a process, or with `group` to its whole group.
pub fn send_signal(pid: u32, number: i32, target: SignalTarget) -> io::Result<()> {
    let pid = match target {
        SignalTarget::Process => pid as libc::pid_t,
        SignalTarget::Group => -(pid as libc::pid_t),
    };
    // SAFETY: takes integers.
    check(unsafe { libc::kill(pid, number) }.into())?;
    Ok(())
}

/// Who receives a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalTarget {
    Process,
    Group,
}

/// Whether two descriptors name the same open file description (kcmp(2)).
/// `None` when the kernel cannot tell.
pub fn same_description(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Option<bool> {
    const KCMP_FILE: libc::c_int = 0;
    let pid = std::process::id();
    // SAFETY: takes integers; the descriptors are open, being borrowed.
    let order = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            pid,
            pid,
            KCMP_FILE,
            one.as_raw_fd(),
            other.as_raw_fd(),
        )
    };
    (order >= 0).then_some(order == 0)
}

/// Name, home directory and shell of a user from the password database
/// (getpwuid_r(3)); `None` when the user has no entry.
pub fn account(uid: u32) -> Option<Account> {
    let mut buffer = vec![0u8; 16 * 1024];
    let mut result: *mut libc::passwd = ptr::null_mut();
    // SAFETY: all-zero is a valid `passwd` for the call to fill; the buffer
    // outlives the reads below, and strings in it end in NUL.
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        let code = libc::getpwuid_r(
            uid,
            &raw mut entry,
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            &raw mut result,
        );
        if code != 0 || result.is_null() {
            return None;
        }
        let copy = |text: *const libc::c_char| CStr::from_ptr(text).to_bytes().to_vec();
        Some(Account {
            name: copy(entry.pw_name),
            home: copy(entry.pw_dir),
            shell: copy(entry.pw_shell),
        })
    }
}

/// One entry of the password database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: Vec<u8>,
    pub home: Vec<u8>,
    pub shell: Vec<u8>,
}

/// Closes a descriptor that is known by number only.
pub fn close_number(number: i32) {
    // SAFETY: takes an integer. Used by the launcher for inherited descriptors
    // that no Rust object owns.
    unsafe { libc::close(number) };
}
