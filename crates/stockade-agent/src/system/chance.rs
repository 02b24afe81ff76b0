//! A kernel that answers by chance, for tests and the fuzzer.

use std::collections::BTreeSet;

use super::{Change, Errno, Started, System};
use crate::wire::{ExecSpec, FileRequest, Met, Size, Status};

/// Numbers from a seed (xorshift).
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// The kernel. Its descriptors are what they are for.
#[derive(Debug)]
pub struct ChanceKernel {
    chance: Chance,
    processes: BTreeSet<u32>,
    next: u32,
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    Status,
    Stream,
    File,
}

impl ChanceKernel {
    pub fn new(seed: u64) -> Self {
        Self {
            chance: Chance::new(seed),
            processes: BTreeSet::new(),
            next: 2,
        }
    }

    fn error(&mut self) -> Errno {
        [Errno::AGAIN, Errno::INTR, Errno(5), Errno(32), Errno::NOMEM][self.chance.below(5)]
    }
}

impl System for ChanceKernel {
    type Handle = Handle;

    fn start(&mut self, spec: &ExecSpec<'_>) -> Result<Started<Handle>, Errno> {
        if self.chance.one_in(8) {
            return Err(self.error());
        }
        self.next += 1;
        self.processes.insert(self.next);
        let is_terminal = spec.terminal.is_some();
        Ok(Started {
            process: self.next,
            status: Handle::Status,
            input: (spec.input && !is_terminal).then_some(Handle::Stream),
            output: Handle::Stream,
            error: (!spec.merged && !is_terminal).then_some(Handle::Stream),
        })
    }

    fn read(&mut self, from: &Handle, buffer: &mut [u8]) -> Result<usize, Errno> {
        match from {
            _ if self.chance.one_in(8) => Err(self.error()),
            Handle::Status => Ok([0, 0, 0, 8, 3][self.chance.below(5)]),
            _ if buffer.is_empty() => Ok(0),
            _ => Ok(self.chance.below(buffer.len() + 1)),
        }
    }

    fn write(&mut self, _: &Handle, bytes: &[u8]) -> Result<usize, Errno> {
        match self.chance.one_in(8) {
            true => Err(self.error()),
            false => Ok(self.chance.below(bytes.len() + 1)),
        }
    }

    fn waiting(&mut self, _: &Handle) -> Option<usize> {
        match self.chance.below(3) {
            0 => None,
            1 => Some(0),
            _ => Some(self.chance.below(100_000)),
        }
    }

    fn resize(&mut self, _: &Handle, _: Size) -> Result<(), Errno> {
        Ok(())
    }

    fn signal(&mut self, _: u32, _: i32, _: bool) {}

    fn changed(&mut self) -> Option<(u32, Change)> {
        if self.chance.one_in(3) {
            return None;
        }
        let process = *self.processes.iter().next()?;
        let change = match self.chance.below(4) {
            0 => Change::Stopped(19),
            1 => Change::Ended(Status::Killed {
                signal: 9,
                core: false,
            }),
            _ => Change::Ended(Status::Exited(3)),
        };
        if matches!(change, Change::Ended(_)) {
            self.processes.remove(&process);
        }
        Some((process, change))
    }

    fn open(&mut self, _: &FileRequest<'_>) -> Result<Handle, Errno> {
        match self.chance.one_in(4) {
            true => Err(self.error()),
            false => Ok(Handle::File),
        }
    }

    fn make(&mut self, _: &FileRequest<'_>) -> Result<(), Errno> {
        match self.chance.one_in(4) {
            true => Err(self.error()),
            false => Ok(()),
        }
    }

    fn records(&mut self, _: &Handle, _: &mut u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self.chance.one_in(8) {
            true => Err(self.error()),
            false => Ok(self.chance.below(buffer.len() + 1)),
        }
    }

    fn set_clock(&mut self, _: i64, _: u32) -> Result<(), Errno> {
        Err(Errno::PERM)
    }

    fn met(&mut self) -> Met {
        Met {
            processes: self.chance.one_in(2),
            memory: self.chance.one_in(2),
            disk: self.chance.one_in(2),
        }
    }
}
