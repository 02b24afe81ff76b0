//! What the machine answers.

use stockade_guest::{
    ASK, ECHO_PORT, END, FACTS_PORT, Facts, GENERATION_BYTES, GENERATION_PORT, Generation,
};

use crate::raw;
use crate::vsock::{Device, Packet, operation};

/// Connections at a time; one more is refused.
const CONNECTIONS: usize = 4;

#[derive(Clone, Copy)]
struct Connection {
    host_port: u32,
    own_port: u32,
    /// Bytes that came so far.
    taken: u32,
}

pub struct Service {
    device: Device,
    connections: [Option<Connection>; CONNECTIONS],
    /// Whether the machine knows who it is. Until then it takes nothing but
    /// generations.
    awake: bool,
    facts: Facts,
    random: Random,
}

impl Service {
    pub fn new(device: Device) -> Self {
        Self {
            device,
            connections: [None; CONNECTIONS],
            awake: false,
            facts: Facts::default(),
            random: Random([0; 4]),
        }
    }

    /// Whether there was anything to do.
    pub fn work(&mut self) -> bool {
        self.device.hear();
        let packet = self.device.next();
        // After the packet was taken and before it is answered: a copy never answers
        // as the one that it is a copy of, because what says that it is one was there
        // before any packet for it.
        if self.device.was_cut() {
            self.connections = [None; CONNECTIONS];
            self.awake = false;
        }
        let Some(packet) = packet else {
            return false;
        };
        self.answer(&packet);
        self.device.done(&packet);
        true
    }

    fn answer(&mut self, packet: &Packet) {
        let of_packet = |one: &Option<Connection>| {
            one.is_some_and(|one| {
                (one.host_port, one.own_port) == (packet.host_port, packet.own_port)
            })
        };
        let known = self.connections.iter().position(of_packet);
        match (packet.operation, known) {
            (operation::REQUEST, None) => self.open(packet),
            (operation::DATA, Some(place)) => self.data(packet, place),
            (operation::CREDIT_REQUEST, Some(place)) => {
                let taken = self.connections[place].map_or(0, |one| one.taken);
                self.device
                    .send(&packet.answer(operation::CREDIT, taken), &[]);
            }
            // What the host said of a connection that was cut can arrive after the
            // cut, when a new one may have the same number.
            (operation::CREDIT, Some(_)) | (operation::RESET | operation::SHUTDOWN, None) => {}
            (operation::RESET, Some(place)) => self.connections[place] = None,
            (operation::SHUTDOWN, Some(place)) => self.cut(packet, place),
            _ => self.device.send(&packet.answer(operation::RESET, 0), &[]),
        }
    }

    fn open(&mut self, packet: &Packet) {
        let served = match packet.own_port {
            GENERATION_PORT => true,
            ECHO_PORT | FACTS_PORT => self.awake,
            _ => false,
        };
        let free = self.connections.iter_mut().find(|one| one.is_none());
        let operation = match free {
            Some(place) if served => {
                *place = Some(Connection {
                    host_port: packet.host_port,
                    own_port: packet.own_port,
                    taken: 0,
                });
                operation::RESPONSE
            }
            _ => operation::RESET,
        };
        self.device.send(&packet.answer(operation, 0), &[]);
    }

    fn cut(&mut self, packet: &Packet, place: usize) {
        self.connections[place] = None;
        self.device.send(&packet.answer(operation::RESET, 0), &[]);
    }

    /// One packet is one message, except to the port that sends all back.
    fn data(&mut self, packet: &Packet, place: usize) {
        let Some(connection) = &mut self.connections[place] else {
            return;
        };
        connection.taken = connection.taken.wrapping_add(packet.bytes as u32);
        let answer = packet.answer(operation::DATA, connection.taken);
        match packet.own_port {
            ECHO_PORT => self.device.send_back(&answer, packet),
            GENERATION_PORT => match self.begin_generation(packet) {
                Some(generation) => {
                    self.device.send(&answer, &generation.answer());
                    self.cut(packet, place);
                }
                None => self.cut(packet, place),
            },
            _ if packet.bytes == 1 && packet.byte(0) == ASK => {
                self.facts.asked += 1;
                self.facts.random = self.random.draw();
                self.device.send(&answer, &self.facts.encode());
            }
            _ if packet.bytes == 1 && packet.byte(0) == END => raw::end(),
            _ => self.cut(packet, place),
        }
    }

    fn begin_generation(&mut self, packet: &Packet) -> Option<Generation> {
        if packet.bytes != GENERATION_BYTES {
            return None;
        }
        let mut bytes = [0; GENERATION_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = packet.byte(index);
        }
        let generation = Generation::decode(&bytes)?;
        self.facts.generations += 1;
        self.facts.identity = generation.identity;
        self.facts.mac = generation.mac;
        self.facts.clock_ms = generation.clock_ms;
        self.random.stir(&generation.entropy);
        self.awake = true;
        Some(generation)
    }
}

/// Numbers that differ where the entropy did: xoshiro256++ (Blackman and Vigna,
/// 2019). It shows whether machines are copies, and keeps no secret.
struct Random([u64; 4]);

impl Random {
    fn stir(&mut self, entropy: &[u8; 32]) {
        for (word, bytes) in self.0.iter_mut().zip(entropy.chunks_exact(8)) {
            let mut number = 0;
            for &byte in bytes {
                number = number << 8 | u64::from(byte);
            }
            *word ^= number;
        }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.0;
        let drawn = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.0 = [a ^ d, b ^ c, c ^ b << 17, d.rotate_left(45)];
        drawn
    }

    fn draw(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next().to_le_bytes());
        bytes[8..].copy_from_slice(&self.next().to_le_bytes());
        bytes
    }
}
