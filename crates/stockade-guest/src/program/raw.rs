//! Everything of the machine that the compiler cannot check: the entry point,
//! the page tables, interrupts, ports, the registers of devices, the memory
//! that devices share, and the functions that compiled code expects.
//!
//! There is one processor, and interrupts are off but for the one instruction
//! that waits for them, so nothing here is ever interrupted by something else.

#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::ptr::{read_volatile, write_volatile};

const STACK_BYTES: usize = 16 << 10;

#[repr(C, align(4096))]
struct Pages<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

// SAFETY: there is one thread; devices are reached by volatile accesses alone.
unsafe impl<const BYTES: usize> Sync for Pages<BYTES> {}

impl<const BYTES: usize> Pages<BYTES> {
    const fn new() -> Self {
        Self(UnsafeCell::new([0; BYTES]))
    }

    fn address(&self) -> usize {
        self.0.get() as usize
    }
}

static STACK: Pages<STACK_BYTES> = Pages::new();
/// Maps the gibibyte in which the devices are.
static DEVICES: Pages<4096> = Pages::new();
static INTERRUPTS: Pages<4096> = Pages::new();
static SHARED: Pages<SHARED_BYTES> = Pages::new();

// Linux's 64-bit boot protocol (Documentation/arch/x86/boot.rst): paging is on,
// interrupts are off. What is in RSI is not needed.
//
// An interrupt comes only at `hlt`, and returns behind it: not by `iret`, which
// some hypervisors that interpret instructions cannot, but by putting back the
// stack pointer, the fourth word that the processor pushed. Both controllers
// (Intel 8259A) are told that it is over.
global_asm!(
    ".globl _start",
    "_start:",
    "lea rsp, [rip + {stack}]",
    "add rsp, {bytes}",
    "xor ebp, ebp",
    "call {begin}",
    "ud2",
    ".globl stockade_wait",
    "stockade_wait:",
    "sti",
    "hlt",
    "2:",
    "cli",
    "ret",
    ".globl stockade_interrupt",
    "stockade_interrupt:",
    "mov al, 0x20",
    "out 0xa0, al",
    "out 0x20, al",
    "mov rsp, [rsp + 24]",
    "jmp 2b",
    stack = sym STACK,
    bytes = const STACK_BYTES,
    begin = sym begin,
);

unsafe extern "C" {
    safe fn stockade_wait();
    safe fn stockade_interrupt();
}

extern "C" fn begin() -> ! {
    map_devices();
    take_interrupts();
    crate::main()
}

/// Where Firecracker puts virtio-mmio devices: one page each, from here on.
const DEVICES_BASE: u64 = 0xd000_0000;
/// Pages of them that are looked at.
pub const SLOTS: usize = 32;
/// Present, writable, not cached, 2 MiB (Intel SDM volume 3, 4.5.4).
const LARGE_PAGE: u64 = 0x93;

/// Maps the 2 MiB in which devices are to themselves.
fn map_devices() {
    let tables: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) tables, options(nomem, nostack)) };
    let directory = DEVICES.address() as u64;
    let gibibyte = (DEVICES_BASE >> 30) as usize;
    let large_page = (DEVICES_BASE >> 21) as usize % 512;
    // SAFETY: the first entry of the first table leads to the second one, which
    // is mapped to itself like all low memory; its entry for this gibibyte is
    // not in use. The table that is put there is ours.
    unsafe {
        let second = (read_volatile(tables as *const u64) & !0xfff) as *mut u64;
        write_volatile(
            (directory as *mut u64).add(large_page),
            DEVICES_BASE | LARGE_PAGE,
        );
        write_volatile(second.add(gibibyte), directory | 3);
        asm!("mov cr3, {}", in(reg) tables, options(nostack));
    }
}

/// Vectors of the 16 lines of the interrupt controllers.
const FIRST_VECTOR: u8 = 0x20;
/// Timer, keyboard and serial ports stay silent.
const MASKED: u8 = 0b0001_1011;

/// Lets every device's interrupt end `hlt`.
fn take_interrupts() {
    let handler = stockade_interrupt as *const () as u64;
    let code: u16;
    // SAFETY: reads a register.
    unsafe { asm!("mov {:x}, cs", out(reg) code, options(nomem, nostack)) };
    // A present 64-bit interrupt gate (Intel SDM volume 3, 6.14.1).
    let low =
        handler & 0xffff | u64::from(code) << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
    let table = INTERRUPTS.address();
    for vector in usize::from(FIRST_VECTOR)..usize::from(FIRST_VECTOR) + 16 {
        let gate = (table + vector * 16) as *mut u64;
        // SAFETY: the page holds 256 gates of 16 bytes.
        unsafe {
            write_volatile(gate, low);
            write_volatile(gate.add(1), handler >> 32);
        }
    }
    let mut pointer = [0u8; 10];
    pointer[..2].copy_from_slice(&4095u16.to_le_bytes());
    pointer[2..].copy_from_slice(&(table as u64).to_le_bytes());
    // SAFETY: the table stays where it is.
    unsafe { asm!("lidt [{}]", in(reg) pointer.as_ptr(), options(readonly, nostack)) };
    // Begin, first vector, how the two are wired, 8086 mode, mask.
    let first = [
        (0x20, 0x11),
        (0x21, FIRST_VECTOR),
        (0x21, 4),
        (0x21, 1),
        (0x21, MASKED),
    ];
    let second = [
        (0xa0, 0x11),
        (0xa1, FIRST_VECTOR + 8),
        (0xa1, 2),
        (0xa1, 1),
        (0xa1, 0),
    ];
    for (port, value) in first.into_iter().chain(second) {
        out(port, value);
    }
}

/// Waits until a device says something.
pub fn wait_for_interrupt() {
    stockade_wait();
}

/// The first serial port.
const SERIAL: u16 = 0x3f8;
/// The keyboard controller; its command 0xfe resets the machine, which ends it.
const CONTROLLER: u16 = 0x64;
const RESET: u8 = 0xfe;

pub fn say(text: &[u8]) {
    for &byte in text {
        out(SERIAL, byte);
    }
}

/// Ends the machine.
pub fn end() -> ! {
    loop {
        out(CONTROLLER, RESET);
    }
}

fn out(port: u16, value: u8) {
    // SAFETY: no device here writes to memory because of these ports.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) };
}

/// The registers of one virtio-mmio device.
#[derive(Clone, Copy)]
pub struct Registers(usize);

impl Registers {
    /// Of the device in this place, if there were one.
    pub fn of(slot: usize) -> Self {
        assert!(slot < SLOTS);
        Self(DEVICES_BASE as usize + slot * 4096)
    }

    pub fn read(self, offset: usize) -> u32 {
        assert!(offset < 4096 && offset.is_multiple_of(4));
        // SAFETY: mapped by `map_devices`; what a device does to memory because
        // of it is only in the shared part.
        unsafe { read_volatile((self.0 + offset) as *const u32) }
    }

    pub fn write(self, offset: usize, value: u32) {
        assert!(offset < 4096 && offset.is_multiple_of(4));
        // SAFETY: as for `read`.
        unsafe { write_volatile((self.0 + offset) as *mut u32, value) }
    }
}

/// Bytes of the memory that the device shares.
pub const SHARED_BYTES: usize = 64 << 10;

/// Memory that a device reads and writes, by offset.
pub mod shared {
    use super::{SHARED, SHARED_BYTES, read_volatile, write_volatile};

    /// The device's address of an offset.
    pub fn address(offset: usize) -> u64 {
        (SHARED.address() + offset) as u64
    }

    fn pointer<T>(offset: usize) -> *mut T {
        let bytes = size_of::<T>();
        assert!(offset <= SHARED_BYTES - bytes && offset.is_multiple_of(bytes));
        (SHARED.address() + offset) as *mut T
    }

    /// Plain numbers.
    pub trait Number: Copy {}
    impl Number for u8 {}
    impl Number for u16 {}
    impl Number for u32 {}
    impl Number for u64 {}

    pub fn read<T: Number>(offset: usize) -> T {
        // SAFETY: in the page and aligned; every value is a number.
        unsafe { read_volatile(pointer(offset)) }
    }

    pub fn write<T: Number>(offset: usize, value: T) {
        // SAFETY: in the page and aligned.
        unsafe { write_volatile(pointer(offset), value) }
    }
}

/// A bug: say so, and end.
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    say(b"panic\n");
    end()
}

// What compiled code calls for assignments and comparisons of whole values.
// Written in assembly, because a loop would be compiled to a call of itself.

/// # Safety
/// As memcpy(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack));
    }
    to
}

/// # Safety
/// As memset(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") value as u8, options(nostack));
    }
    to
}

/// # Safety
/// As memcmp(3), but that only zero means something, as for `bcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    for offset in 0..bytes {
        // SAFETY: the caller's contract. Volatile, so that no call of itself is made.
        let differ = unsafe { read_volatile(one.add(offset)) != read_volatile(other.add(offset)) };
        if differ {
            return 1;
        }
    }
    0
}

/// # Safety
/// As for `bcmp`: here all comparisons are for equality.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { bcmp(one, other, bytes) }
}
