//! The vsock device: virtio-mmio version 2 with split queues (virtio 1.2,
//! sections 2.7, 4.2 and 5.10).
//!
//! Every number that the device gives is used as an index only after it was
//! made to fit.

use crate::raw::{Registers, SLOTS, shared};

/// Entries of each queue.
const ENTRIES: u16 = 8;
/// Bytes of one buffer: a header and what follows it.
const BUFFER: usize = 4096;
pub const HEADER: usize = 44;
/// Most bytes of data in one packet.
pub const DATA_MAX: usize = BUFFER - HEADER;
/// The host, always.
const HOST: u64 = 2;
const STREAM: u16 = 1;
const TRANSPORT_RESET: u32 = 0;
/// What the host may send before it hears that something was taken.
const WINDOW: u32 = 32 << 10;

/// Offsets in shared memory: three queues, a page for what is sent, buffers.
const QUEUES: usize = 0;
const QUEUE_BYTES: usize = 1024;
const EVENTS: usize = 3 * QUEUE_BYTES;
const SENT: usize = 4096;
const RECEIVED: usize = 8192;

/// Registers of virtio-mmio (section 4.2.2).
mod register {
    pub const MAGIC: usize = 0x0;
    pub const VERSION: usize = 0x4;
    pub const DEVICE: usize = 0x8;
    pub const DRIVER_FEATURES: usize = 0x20;
    pub const DRIVER_FEATURES_SELECT: usize = 0x24;
    pub const QUEUE_SELECT: usize = 0x30;
    pub const QUEUE_SIZE: usize = 0x38;
    pub const QUEUE_READY: usize = 0x44;
    pub const NOTIFY: usize = 0x50;
    pub const INTERRUPT_STATUS: usize = 0x60;
    pub const INTERRUPT_TAKEN: usize = 0x64;
    pub const STATUS: usize = 0x70;
    pub const DESCRIPTORS: usize = 0x80;
    pub const AVAILABLE: usize = 0x90;
    pub const USED: usize = 0xa0;
    pub const CONFIGURATION: usize = 0x100;
}
const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VSOCK: u32 = 19;

/// What a packet is for (section 5.10.6).
pub mod operation {
    pub const REQUEST: u16 = 1;
    pub const RESPONSE: u16 = 2;
    pub const RESET: u16 = 3;
    pub const SHUTDOWN: u16 = 4;
    pub const DATA: u16 = 5;
    pub const CREDIT_REQUEST: u16 = 7;
    pub const CREDIT: u16 = 6;
}

/// What the head of a packet says, beside who sent it.
#[derive(Clone, Copy)]
pub struct Packet {
    pub host_port: u32,
    pub own_port: u32,
    pub operation: u16,
    /// Bytes of data that were received so far on this connection, for packets
    /// that are sent.
    pub taken: u32,
    /// Bytes of data in this packet.
    pub bytes: usize,
    /// Which receive buffer it is in.
    buffer: u16,
}

impl Packet {
    /// Another packet of the same connection.
    pub fn answer(&self, operation: u16, taken: u32) -> Self {
        Self {
            operation,
            taken,
            bytes: 0,
            ..*self
        }
    }

    /// One byte of the data.
    pub fn byte(&self, index: usize) -> u8 {
        assert!(index < self.bytes);
        shared::read(receive_buffer(self.buffer) + HEADER + index)
    }
}

fn receive_buffer(number: u16) -> usize {
    RECEIVED + usize::from(number % ENTRIES) * BUFFER
}

struct Queue {
    number: u32,
    offset: usize,
    /// Entries made available so far, and taken back so far.
    given: u16,
    taken: u16,
}

impl Queue {
    const AVAILABLE: usize = 16 * ENTRIES as usize;
    const USED: usize = Self::AVAILABLE + 64;

    fn new(number: u32) -> Self {
        Self {
            number,
            offset: QUEUES + number as usize * QUEUE_BYTES,
            given: 0,
            taken: 0,
        }
    }

    /// Puts a buffer where the device finds it.
    fn give(&mut self, descriptor: u16, buffer: usize, bytes: u32, device_writes: bool) {
        let place = self.offset + usize::from(descriptor) * 16;
        shared::write(place, shared::address(buffer));
        shared::write(place + 8, bytes);
        shared::write(place + 12, u16::from(device_writes) << 1);
        shared::write(place + 14, 0u16);
        let entry = usize::from(self.given % ENTRIES);
        shared::write(self.offset + Self::AVAILABLE + 4 + entry * 2, descriptor);
        self.given = self.given.wrapping_add(1);
        shared::write(self.offset + Self::AVAILABLE + 2, self.given);
    }

    /// The next buffer that the device is done with, and how many bytes it wrote.
    fn take(&mut self) -> Option<(u16, u32)> {
        let used: u16 = shared::read(self.offset + Self::USED + 2);
        if used == self.taken {
            return None;
        }
        let place = self.offset + Self::USED + 4 + usize::from(self.taken % ENTRIES) * 8;
        self.taken = self.taken.wrapping_add(1);
        let descriptor: u32 = shared::read(place);
        Some((descriptor as u16 % ENTRIES, shared::read(place + 4)))
    }
}

pub struct Device {
    registers: Registers,
    receive: Queue,
    send: Queue,
    events: Queue,
    own: u64,
}

impl Device {
    /// Looks for the device and makes it work.
    pub fn find() -> Option<Self> {
        let registers = (0..SLOTS).map(Registers::of).find(|one| {
            one.read(register::MAGIC) == MAGIC
                && one.read(register::VERSION) == 2
                && one.read(register::DEVICE) == VSOCK
        })?;
        let mut device = Self {
            registers,
            receive: Queue::new(0),
            send: Queue::new(1),
            events: Queue::new(2),
            own: 0,
        };
        device.begin();
        Some(device)
    }

    fn begin(&mut self) {
        let registers = self.registers;
        registers.write(register::STATUS, 0);
        registers.write(register::STATUS, 1);
        registers.write(register::STATUS, 3);
        // Of the features only VIRTIO_F_VERSION_1, the 32nd.
        for (half, features) in [(0, 0), (1, 1)] {
            registers.write(register::DRIVER_FEATURES_SELECT, half);
            registers.write(register::DRIVER_FEATURES, features);
        }
        registers.write(register::STATUS, 11);
        for queue in [&self.receive, &self.send, &self.events] {
            registers.write(register::QUEUE_SELECT, queue.number);
            registers.write(register::QUEUE_SIZE, ENTRIES.into());
            let parts = [
                (register::DESCRIPTORS, 0),
                (register::AVAILABLE, Queue::AVAILABLE),
                (register::USED, Queue::USED),
            ];
            for (place, part) in parts {
                let address = shared::address(queue.offset + part);
                registers.write(place, address as u32);
                registers.write(place + 4, (address >> 32) as u32);
            }
            registers.write(register::QUEUE_READY, 1);
        }
        for number in 0..ENTRIES {
            self.receive
                .give(number, receive_buffer(number), BUFFER as u32, true);
            self.events
                .give(number, EVENTS + usize::from(number) * 8, 8, true);
        }
        registers.write(register::STATUS, 15);
        self.learn_address();
        registers.write(register::NOTIFY, self.receive.number);
        registers.write(register::NOTIFY, self.events.number);
    }

    fn learn_address(&mut self) {
        let half = |offset| u64::from(self.registers.read(register::CONFIGURATION + offset));
        self.own = half(0) | half(4) << 32;
    }

    /// Whether all connections were cut since the last call.
    pub fn was_cut(&mut self) -> bool {
        let mut cut = false;
        while let Some((number, _)) = self.events.take() {
            let place = EVENTS + usize::from(number) * 8;
            cut |= shared::read::<u32>(place) == TRANSPORT_RESET;
            self.events.give(number, place, 8, true);
            self.registers.write(register::NOTIFY, self.events.number);
        }
        if cut {
            self.learn_address();
        }
        cut
    }

    /// Says that what the device said so far was heard.
    pub fn hear(&self) {
        let status = self.registers.read(register::INTERRUPT_STATUS);
        self.registers.write(register::INTERRUPT_TAKEN, status);
    }

    /// The next packet; [`Device::done`] with it comes next.
    pub fn next(&mut self) -> Option<Packet> {
        let (buffer, written) = self.receive.take()?;
        let head = receive_buffer(buffer);
        let said = shared::read::<u32>(head + 24) as usize;
        let there = (written as usize).saturating_sub(HEADER);
        Some(Packet {
            host_port: shared::read(head + 16),
            own_port: shared::read(head + 20),
            operation: shared::read(head + 30),
            taken: 0,
            bytes: said.min(there).min(DATA_MAX),
            buffer,
        })
    }

    /// Gives the packet's buffer back.
    pub fn done(&mut self, packet: &Packet) {
        let place = receive_buffer(packet.buffer);
        self.receive.give(packet.buffer, place, BUFFER as u32, true);
        self.registers.write(register::NOTIFY, self.receive.number);
    }

    /// Sends these bytes.
    pub fn send(&mut self, packet: &Packet, data: &[u8]) {
        for (index, &byte) in data.iter().enumerate().take(DATA_MAX) {
            shared::write(SENT + HEADER + index, byte);
        }
        self.send_from(SENT, packet, data.len().min(DATA_MAX));
    }

    /// Sends the data of a received packet back.
    pub fn send_back(&mut self, packet: &Packet, received: &Packet) {
        self.send_from(receive_buffer(received.buffer), packet, received.bytes);
    }

    fn send_from(&mut self, head: usize, packet: &Packet, bytes: usize) {
        shared::write(head, self.own);
        // 64-bit numbers of the header are at multiples of 8.
        shared::write(head + 8, HOST);
        shared::write(head + 16, packet.own_port);
        shared::write(head + 20, packet.host_port);
        shared::write(head + 24, bytes as u32);
        shared::write(head + 28, STREAM);
        shared::write(head + 30, packet.operation);
        shared::write(head + 32, 0u32);
        shared::write(head + 36, WINDOW);
        shared::write(head + 40, packet.taken);
        self.send.give(0, head, (HEADER + bytes) as u32, false);
        self.registers.write(register::NOTIFY, self.send.number);
        // The device takes what is sent whether or not anybody reads it.
        while self.send.take().is_none() {
            core::hint::spin_loop();
        }
    }
}
