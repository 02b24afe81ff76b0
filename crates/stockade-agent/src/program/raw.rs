//! Everything of the agent that the compiler cannot check: the entry point,
//! the functions that compiled code expects, the memory, and the few system
//! calls that `rustix` does not wrap.
//!
//! The program has one thread and no signal handler, so nothing here is ever
//! interrupted by something else of it.

#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::ptr::{self, null};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::{Pid, WaitOptions, waitpid};
use stockade_agent::machine::{ENTROPY_BYTES, INSTRUCTION_BYTES};
use stockade_agent::system::Errno;
use stockade_agent::wire::{self, STRINGS_MAX};

/// The number of the channel to the host.
const CHANNEL: i32 = 3;
/// The exit code of a process that did not become its command.
const EXIT_NOT_EXECUTED: usize = 127;
/// The exit code after a bug.
const EXIT_PANIC: usize = 134;

// The kernel starts a program with its arguments on the stack (execve(2)); what
// follows a call needs it aligned.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym begin,
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, #0",
    "mov x30, #0",
    "mov x0, sp",
    "and sp, x0, #-16",
    "bl {begin}",
    "brk #1",
    begin = sym begin,
);

/// The second argument of this program; null when there is none.
static ARGUMENT: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// First of the pointers to the variables of this program, a null after them.
static ENVIRONMENT: AtomicPtr<*const c_char> = AtomicPtr::new(ptr::null_mut());
/// No variable.
static NOTHING: Cell<[*const c_char; 1]> = Cell(UnsafeCell::new([null()]));
/// The first argument of this program.
static NAME: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// # Safety
/// `stack` is what the kernel left: a count, so many arguments, a null, the
/// variables, a null.
unsafe extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: the caller's contract; the stack stays as it is.
    let (name, variables) = unsafe { (*stack.add(1), stack.add(2 + *stack)) };
    NAME.store(name as *mut c_char, Ordering::Relaxed);
    ENVIRONMENT.store(variables.cast_mut().cast(), Ordering::Relaxed);
    // SAFETY: behind the count and the first argument stands the second, or the
    // null that ends them.
    let argument = unsafe { *stack.add(2) };
    ARGUMENT.store(argument as *mut c_char, Ordering::Relaxed);
    exit(crate::main() as usize)
}

/// The second argument of this program.
pub fn argument() -> Option<&'static CStr> {
    let argument = ARGUMENT.load(Ordering::Relaxed).cast_const();
    // SAFETY: `begin` left what the kernel put there, a string with a NUL.
    (!argument.is_null()).then(|| unsafe { CStr::from_ptr(argument) })
}

/// The name under which this program was started; empty without one.
pub fn name_of_program() -> &'static CStr {
    let name = NAME.load(Ordering::Relaxed);
    match name.is_null() {
        true => c"",
        // SAFETY: `begin` left what the kernel put there, with a NUL behind it.
        false => unsafe { CStr::from_ptr(name) },
    }
}

/// From here on this program has no variables.
pub fn forget_environment() {
    ENVIRONMENT.store(NOTHING.0.get().cast(), Ordering::Relaxed);
}

/// The variables of this program.
pub fn environment() -> impl Iterator<Item = &'static CStr> {
    let mut next = ENVIRONMENT.load(Ordering::Relaxed).cast_const();
    core::iter::from_fn(move || {
        // SAFETY: `begin` left a pointer into an array that ends in null, and
        // nobody writes to it or to what it points at.
        let variable = unsafe { *next };
        if variable.is_null() {
            return None;
        }
        // SAFETY: as above, this was not the last.
        next = unsafe { next.add(1) };
        // SAFETY: the kernel puts a NUL behind each variable.
        Some(unsafe { CStr::from_ptr(variable) })
    })
}

/// One system call; what it means is up to the caller.
///
/// # Safety
/// That of the call.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, a: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY: the caller's contract; registers as in syscall(2).
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// One system call; what it means is up to the caller.
///
/// # Safety
/// That of the call.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, a: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY: the caller's contract; registers as in syscall(2).
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4],
            options(nostack),
        );
    }
    result
}

/// Numbers of system calls, as in the kernel's tables.
#[cfg(target_arch = "x86_64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const SOCKET: usize = 41;
    pub const CLONE: usize = 56;
    pub const EXECVE: usize = 59;
    pub const DUP3: usize = 292;
    pub const PRCTL: usize = 157;
    pub const EXIT_GROUP: usize = 231;
    pub const KEYCTL: usize = 250;
    pub const SECCOMP: usize = 317;
    pub const SIGNALFD4: usize = 289;
    pub const CLOSE_RANGE: usize = 436;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const IOCTL: usize = 29;
    pub const SOCKET: usize = 198;
    pub const CLONE: usize = 220;
    pub const EXECVE: usize = 221;
    pub const DUP3: usize = 24;
    pub const PRCTL: usize = 167;
    pub const EXIT_GROUP: usize = 94;
    pub const KEYCTL: usize = 219;
    pub const SECCOMP: usize = 277;
    pub const SIGNALFD4: usize = 74;
    pub const CLOSE_RANGE: usize = 436;
}

fn check(result: isize) -> Result<usize, Errno> {
    match usize::try_from(result) {
        Ok(value) => Ok(value),
        Err(_) => Err(Errno(result.unsigned_abs() as i32)),
    }
}

/// Ends the process.
pub fn exit(code: usize) -> ! {
    loop {
        // SAFETY: takes an integer.
        unsafe { call(number::EXIT_GROUP, [code, 0, 0, 0, 0]) };
    }
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(EXIT_PANIC)
}

/// Closes what may have come besides the channel: what makes a container also
/// passes on the file that this program is.
pub fn close_the_rest() -> Result<(), Errno> {
    // The last is what gVisor takes, too.
    let (first, last) = (CHANNEL as usize + 1, i32::MAX as usize);
    // SAFETY: takes integers; this program has opened nothing yet.
    check(unsafe { call(number::CLOSE_RANGE, [first, last, 0, 0, 0]) })?;
    Ok(())
}

/// Closes everything but the standard streams and these, in a child that uses
/// nothing else any more and never returns.
pub fn close_all_but(kept: &mut [i32]) -> Result<(), Errno> {
    kept.sort_unstable();
    let mut first = 3;
    let close = |first: i32, last: i32| match first <= last {
        // SAFETY: takes integers; by the contract of this function, what is closed
        // is not used again.
        true => check(unsafe {
            call(
                number::CLOSE_RANGE,
                [first as usize, last as usize, 0, 0, 0],
            )
        }),
        false => Ok(0),
    };
    for &number in &*kept {
        close(first, number - 1)?;
        first = first.max(number + 1);
    }
    close(first, i32::MAX)?;
    Ok(())
}

/// Takes the channel to the host, which is open when the agent starts.
pub fn channel() -> OwnedFd {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    assert!(!TAKEN.swap(true, Ordering::Relaxed));
    // SAFETY: whoever started the agent opened it, and it is taken once.
    unsafe { OwnedFd::from_raw_fd(CHANNEL) }
}

const SIG_BLOCK: usize = 0;
const SIG_SETMASK: usize = 2;
/// Size of the kernel's set of signals.
const SET_BYTES: usize = 8;
/// SIGCHLD, as a bit of a set.
const CHILD_BIT: u64 = 1 << (17 - 1);

fn mask(how: usize, set: u64) -> Result<(), Errno> {
    let set = &raw const set;
    // SAFETY: the set has the size that is passed; no old one is asked for.
    check(unsafe { call(number::RT_SIGPROCMASK, [how, set as usize, 0, SET_BYTES, 0]) })?;
    Ok(())
}

/// Blocks every signal, and yields a descriptor that is readable when a child
/// changed.
pub fn take_signals() -> Result<OwnedFd, Errno> {
    const CLOEXEC_NONBLOCK: usize = 0o2000000 | 0o4000;
    mask(SIG_BLOCK, u64::MAX)?;
    let set = CHILD_BIT;
    let set = &raw const set;
    let arguments = [usize::MAX, set as usize, SET_BYTES, CLOEXEC_NONBLOCK, 0];
    // SAFETY: the set has the size that is passed.
    let descriptor = check(unsafe { call(number::SIGNALFD4, arguments) })?;
    // SAFETY: the kernel made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Lets every signal through, for a new command.
pub fn release_signals() -> Result<(), Errno> {
    mask(SIG_SETMASK, 0)
}

/// Keeps others inside from reading this process's memory or tracing it.
pub fn hide_memory() -> Result<(), Errno> {
    const SET_DUMPABLE: usize = 4;
    // SAFETY: takes integers.
    check(unsafe { call(number::PRCTL, [SET_DUMPABLE, 0, 0, 0, 0]) })?;
    Ok(())
}

/// The name under which process lists show this program: a memory file has
/// none of its own.
pub fn take_name(name: &CStr) -> Result<(), Errno> {
    const SET_NAME: usize = 15;
    let name = name.as_ptr();
    // SAFETY: the kernel reads the string up to its NUL, at most 16 bytes.
    check(unsafe { call(number::PRCTL, [SET_NAME, name as usize, 0, 0, 0]) })?;
    Ok(())
}

/// Makes a process, which runs `child` and ends; its id here.
pub fn fork(child: impl FnOnce()) -> Result<u32, Errno> {
    const SIGCHLD: usize = 17;
    // SAFETY: without a stack and shared memory this is fork(2); there is one
    // thread, so the child's copy is consistent.
    match check(unsafe { call(number::CLONE, [SIGCHLD, 0, 0, 0, 0]) })? {
        0 => {
            child();
            exit(EXIT_NOT_EXECUTED)
        }
        process => Ok(process as u32),
    }
}

/// Whether this holds in a process of its own, which does nothing else.
pub fn try_in_child(holds: impl FnOnce() -> bool) -> Result<bool, Errno> {
    const HOLDS: usize = 0;
    let child = fork(|| {
        if holds() {
            exit(HOLDS);
        }
    })?;
    let child = i32::try_from(child).ok().and_then(Pid::from_raw);
    loop {
        match waitpid(child, WaitOptions::empty()) {
            Ok(ended) => return Ok(ended.is_some_and(|(_, end)| end.exit_status() == Some(0))),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Errno(error.raw_os_error())),
        }
    }
}

/// Puts rules of system calls on this process and what it starts, for good
/// (seccomp(2)). `program` is whole instructions.
pub fn install_filter(program: &[u8]) -> Result<(), Errno> {
    const SET_MODE_FILTER: usize = 1;
    /// struct sock_fprog.
    #[repr(C)]
    struct Header {
        length: u16,
        instructions: *const u8,
    }
    let (instructions, rest) = program.as_chunks::<INSTRUCTION_BYTES>();
    let header = match (u16::try_from(instructions.len()), rest) {
        (Ok(length), []) => Header {
            length,
            instructions: program.as_ptr(),
        },
        _ => return Err(Errno::INVAL),
    };
    let header = &raw const header;
    // SAFETY: the kernel copies so many instructions from there, however they
    // are aligned, and writes nothing.
    check(unsafe { call(number::SECCOMP, [SET_MODE_FILTER, 0, header as usize, 0, 0]) })?;
    Ok(())
}

/// Whether rules of system calls are in force here: a call that they refuse, and
/// that changes nothing, is refused.
pub fn is_filtered() -> bool {
    const GET_KEYRING_ID: usize = 0;
    const SESSION_KEYRING: usize = -3isize as usize;
    const GET_SECCOMP: usize = 21;
    const NOSYS: Errno = Errno(38);
    // SAFETY: takes integers and, without being asked to, makes no keyring.
    let answer = check(unsafe { call(number::KEYCTL, [GET_KEYRING_ID, SESSION_KEYRING, 0, 0, 0]) });
    // SAFETY: takes integers.
    let mode = check(unsafe { call(number::PRCTL, [GET_SECCOMP, 0, 0, 0, 0]) });
    matches!(answer, Err(NOSYS | Errno::PERM)) && mode == Ok(2)
}

/// Makes a descriptor also one of the standard ones.
pub fn become_standard(source: BorrowedFd<'_>, number: usize) -> Result<(), Errno> {
    // Never the same number: the agent keeps 0 to 3 occupied.
    let arguments = [source.as_raw_fd() as usize, number, 0, 0, 0];
    // SAFETY: takes integers; whatever had the number is not used again by
    // this process, which is about to execute another program.
    check(unsafe { call(number::DUP3, arguments) })?;
    Ok(())
}

/// The number of the terminal of which this is the master (TIOCGPTN,
/// ioctl_tty(2)).
pub fn terminal_number(master: &OwnedFd) -> Result<u32, Errno> {
    /// The same for both architectures.
    const TIOCGPTN: usize = 0x8004_5430;
    let mut number = 0u32;
    let target = &raw mut number as usize;
    let arguments = [master.as_raw_fd() as usize, TIOCGPTN, target, 0, 0];
    // SAFETY: the call writes one number of this size there.
    check(unsafe { call(number::IOCTL, arguments) })?;
    Ok(number)
}

/// Gives the kernel bytes that nobody else has, and makes it draw all that it
/// hands out from now on from them too (random(4)). `device` is one of its
/// random devices.
pub fn add_entropy(device: &OwnedFd, bytes: &[u8; ENTROPY_BYTES]) -> Result<(), Errno> {
    /// The same for both architectures.
    const RNDADDENTROPY: usize = 0x4008_5203;
    const RNDRESEEDCRNG: usize = 0x5207;
    // struct rand_pool_info: how many bits, how many bytes, the bytes.
    let mut pool = [0u8; 8 + ENTROPY_BYTES];
    let length = ENTROPY_BYTES as u32;
    pool[..4].copy_from_slice(&(8 * length).to_ne_bytes());
    pool[4..8].copy_from_slice(&length.to_ne_bytes());
    pool[8..].copy_from_slice(bytes);
    let device = device.as_raw_fd() as usize;
    // SAFETY: the request reads as many bytes as it says are there.
    check(unsafe {
        call(
            number::IOCTL,
            [device, RNDADDENTROPY, pool.as_ptr() as usize, 0, 0],
        )
    })?;
    // SAFETY: takes integers.
    check(unsafe { call(number::IOCTL, [device, RNDRESEEDCRNG, 0, 0, 0]) })?;
    Ok(())
}

/// A network card with one address of version 4.
pub struct Interface<'a> {
    pub name: &'a CStr,
    pub address: [u8; 4],
    pub mask: [u8; 4],
    pub gateway: [u8; 4],
}

/// What netdevice(7) and rtentry(7) take: 40 or 120 bytes, and more here.
type Request = [u8; 128];

/// The address of version 4 as a `struct sockaddr` (ip(7)) at `offset`.
fn put_address(request: &mut Request, offset: usize, address: [u8; 4]) {
    const AF_INET: u16 = 2;
    request[offset..offset + 2].copy_from_slice(&AF_INET.to_ne_bytes());
    request[offset + 4..offset + 8].copy_from_slice(&address);
}

/// A request about one card, with nothing but its name.
fn about(name: &CStr) -> Result<Request, Errno> {
    let mut request = [0; 128];
    let name = name.to_bytes();
    // With a NUL behind it, IFNAMSIZ at most.
    let target = request[..15].get_mut(..name.len());
    target.ok_or(Errno::INVAL)?.copy_from_slice(name);
    Ok(request)
}

fn ask(number: usize, request: &mut Request) -> Result<(), Errno> {
    const AF_INET: usize = 2;
    const DATAGRAM_CLOEXEC: usize = 2 | 0o2000000;
    // SAFETY: takes integers.
    let socket = check(unsafe { call(number::SOCKET, [AF_INET, DATAGRAM_CLOEXEC, 0, 0, 0]) })?;
    // SAFETY: the kernel made it for us.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as i32) };
    let request = request.as_mut_ptr() as usize;
    let arguments = [socket.as_raw_fd() as usize, number, request, 0, 0];
    // SAFETY: the requests of this module read and write less than 128 bytes,
    // and hold no pointer that is not null.
    check(unsafe { call(number::IOCTL, arguments) })?;
    Ok(())
}

/// Brings a network interface up.
pub fn bring_up(name: &CStr) -> Result<(), Errno> {
    const SET_FLAGS: usize = 0x8914;
    const UP_RUNNING_MULTICAST: u16 = 0x1 | 0x40 | 0x1000;
    let mut request = about(name)?;
    request[16..18].copy_from_slice(&UP_RUNNING_MULTICAST.to_ne_bytes());
    ask(SET_FLAGS, &mut request)
}

/// Gives a card its address and brings it up, with a route to everywhere.
pub fn configure(card: &Interface<'_>) -> Result<(), Errno> {
    const SET_ADDRESS: usize = 0x8916;
    const SET_MASK: usize = 0x891c;
    const ADD_ROUTE: usize = 0x890b;
    const UP_GATEWAY: u16 = 1 | 2;
    for (number, address) in [(SET_ADDRESS, card.address), (SET_MASK, card.mask)] {
        let mut request = about(card.name)?;
        put_address(&mut request, 16, address);
        ask(number, &mut request)?;
    }
    bring_up(card.name)?;
    // struct rtentry: target, gateway and mask from byte 8 on, then flags.
    let mut route = [0; 128];
    put_address(&mut route, 8, [0; 4]);
    put_address(&mut route, 24, card.gateway);
    put_address(&mut route, 40, [0; 4]);
    route[56..58].copy_from_slice(&UP_GATEWAY.to_ne_bytes());
    ask(ADD_ROUTE, &mut route)
}

/// Most variables that the agent itself may have been given.
const OWN_VARIABLES_MAX: usize = 16 * 1024;

/// Memory that the one thread of this program uses by turns.
struct Cell<T>(UnsafeCell<T>);

// SAFETY: there is one thread.
unsafe impl<T> Sync for Cell<T> {}

type Pointers = [*const u8; STRINGS_MAX + OWN_VARIABLES_MAX + 8];

/// The arrays for execve(2); filled in children, each in its own copy.
static POINTERS: Cell<Pointers> = Cell(UnsafeCell::new(
    [null(); STRINGS_MAX + OWN_VARIABLES_MAX + 8],
));

/// What a new program is given.
pub struct Program<'a> {
    /// Instead of the first argument, when not empty.
    pub interpreter: &'a [&'a CStr],
    /// Strings with a NUL behind each, as [`wire::strings`] takes them.
    pub arguments: &'a [u8],
    /// Likewise; they replace the agent's own of the same name.
    pub environment: &'a [u8],
}

/// Becomes another program; returns only the error (execve(2)).
pub fn execute(path: &CStr, program: &Program<'_>) -> Errno {
    const E2BIG: Errno = Errno(7);
    // SAFETY: nothing else has a reference: this is the only function that
    // takes one, and it does not call itself.
    let pointers = unsafe { &mut *POINTERS.0.get() };
    let mut used = 0;
    let mut put = |pointer: *const u8| match pointers.get_mut(used) {
        Some(slot) => {
            *slot = pointer;
            used += 1;
            true
        }
        None => false,
    };
    let skipped = usize::from(!program.interpreter.is_empty());
    // The strings have a NUL behind them where they are.
    let arguments = wire::strings(program.arguments).skip(skipped);
    let mut whole = program
        .interpreter
        .iter()
        .all(|argument| put(argument.as_ptr().cast()));
    whole &= arguments.map(<[u8]>::as_ptr).all(&mut put) && put(null());
    let own = environment().filter(|variable| {
        let name = name_of(variable.to_bytes());
        !wire::strings(program.environment).any(|other| name_of(other) == name)
    });
    whole &= own.map(|variable| variable.as_ptr().cast()).all(&mut put);
    let others = wire::strings(program.environment).map(<[u8]>::as_ptr);
    whole &= others.into_iter().all(&mut put) && put(null());
    if !whole {
        return E2BIG;
    }
    let second = pointers.iter().position(|pointer| pointer.is_null());
    let (Some(second), first) = (second, pointers.as_ptr()) else {
        return E2BIG;
    };
    // SAFETY: the first null was found in the array, which goes on behind it.
    let variables = unsafe { first.add(second + 1) };
    let arguments = [
        path.as_ptr() as usize,
        first as usize,
        variables as usize,
        0,
        0,
    ];
    // SAFETY: both arrays end in null and point to strings with a NUL behind
    // them, which outlive the call.
    let result = unsafe { call(number::EXECVE, arguments) };
    Errno(result.unsigned_abs() as i32)
}

fn name_of(variable: &[u8]) -> &[u8] {
    let end = variable.iter().position(|&byte| byte == b'=');
    &variable[..end.unwrap_or(variable.len())]
}

/// All the memory there is: a session takes it once and gives none back.
const ARENA_BYTES: usize = 8 * 1024 * 1024;

/// Largest alignment that anything asks for.
const ARENA_ALIGN: usize = 16;

static ARENA: Cell<[u128; ARENA_BYTES / 16]> = Cell(UnsafeCell::new([0; ARENA_BYTES / 16]));
static ARENA_USED: AtomicUsize = AtomicUsize::new(0);

struct Once;

#[global_allocator]
static ALLOCATOR: Once = Once;

// SAFETY: pieces of the arena are handed out once, aligned, and never again;
// the arena is zero from the start, and whoever had a piece keeps it.
unsafe impl GlobalAlloc for Once {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = ARENA_USED.load(Ordering::Relaxed);
        let start = used.next_multiple_of(layout.align().min(ARENA_ALIGN));
        let end = match start.checked_add(layout.size()) {
            Some(end) if end <= ARENA_BYTES && layout.align() <= ARENA_ALIGN => end,
            _ => return ptr::null_mut(),
        };
        ARENA_USED.store(end, Ordering::Relaxed);
        // SAFETY: `start` is within the arena.
        unsafe { ARENA.0.get().cast::<u8>().add(start) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // Touching what is zero already would only make it resident.
        // SAFETY: the caller's contract is that of `alloc`.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

/// What compiled code calls without being told to. The standard library takes
/// them from the C library.
mod memory {
    /// # Safety
    /// That of memcpy(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { forwards(to, from, length) };
        to
    }

    /// # Safety
    /// That of memmove(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        if (to as usize).wrapping_sub(from as usize) >= length {
            // SAFETY: the caller's contract; the target does not begin within
            // what is still to be read.
            unsafe { forwards(to, from, length) };
        } else {
            for index in (0..length).rev() {
                // SAFETY: the caller's contract. Volatile, so that no call of
                // this function is made of the loop.
                unsafe {
                    let byte = from.add(index).read_volatile();
                    to.add(index).write_volatile(byte);
                }
            }
        }
        to
    }

    /// # Safety
    /// That of memset(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, value: i32, length: usize) -> *mut u8 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's contract; the direction flag is clear (System V
        // ABI).
        unsafe {
            core::arch::asm!(
                "rep stosb",
                inout("rcx") length => _,
                inout("rdi") to => _,
                in("al") value as u8,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        for index in 0..length {
            // SAFETY: the caller's contract. Volatile, as in memmove.
            unsafe { to.add(index).write_volatile(value as u8) };
        }
        to
    }

    /// # Safety
    /// That of memcmp(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        for index in 0..length {
            // SAFETY: the caller's contract. Volatile, as in memmove.
            let (one, other) = unsafe {
                (
                    one.add(index).read_volatile(),
                    other.add(index).read_volatile(),
                )
            };
            if one != other {
                return i32::from(one) - i32::from(other);
            }
        }
        0
    }

    /// # Safety
    /// That of memcmp(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        // SAFETY: the caller's contract.
        unsafe { memcmp(one, other, length) }
    }

    /// # Safety
    /// That of strlen(3).
    #[unsafe(no_mangle)]
    unsafe extern "C" fn strlen(text: *const u8) -> usize {
        let mut length = 0;
        // SAFETY: the caller's contract. Volatile, as in memmove.
        while unsafe { text.add(length).read_volatile() } != 0 {
            length += 1;
        }
        length
    }

    /// # Safety
    /// That of memcpy(3), but the target may begin before the source.
    unsafe fn forwards(to: *mut u8, from: *const u8, length: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's contract; the direction flag is clear (System V
        // ABI).
        unsafe {
            core::arch::asm!(
                "rep movsb",
                inout("rcx") length => _,
                inout("rdi") to => _,
                inout("rsi") from => _,
                options(nostack, preserves_flags),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        for index in 0..length {
            // SAFETY: the caller's contract. Volatile, as in memmove.
            unsafe {
                to.add(index)
                    .write_volatile(from.add(index).read_volatile())
            };
        }
    }
}
