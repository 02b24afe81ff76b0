//! The agent of a sandbox that stays, on its way in: a program without a path
//! and the channel over which it is spoken to.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use stockade_sys::rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, openat,
};
use stockade_sys::rustix::io::Errno;
use stockade_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// What a launcher needs to start the agent.
#[derive(Debug)]
pub struct Agent {
    /// Or the state of a machine that has it.
    program: OwnedFd,
    channel: OwnedFd,
}

impl Agent {
    /// Puts `image`, an ELF file, into a memory file that nobody can change any
    /// more, and makes a channel: what goes in, and the end that stays outside.
    ///
    /// `EACCES` where `vm.memfd_noexec` is 2: then no memory file of this
    /// machine can be executed (sysctl/vm.rst of the kernel).
    pub fn prepare(image: &[u8]) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let program = match memfd_create("stockade-agent", flags | MemfdFlags::EXEC) {
            // Linux before 6.3 does not know the flag, nor files without it.
            Err(Errno::INVAL) => memfd_create("stockade-agent", flags)?,
            other => other?,
        };
        File::from(program.try_clone()?).write_all(image)?;
        let seals = SealFlags::SEAL | SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
        fcntl_add_seals(&program, seals)?;
        // A kernel of the command's own takes none that could be written.
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let program = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Self::with(program)
    }

    /// Makes a channel to an agent that is in a machine already, and hands in
    /// the saved state from which that goes on.
    pub fn in_machine(state: OwnedFd) -> io::Result<(Self, OwnedFd)> {
        Self::with(state)
    }

    fn with(program: OwnedFd) -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (outside, channel) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Self { program, channel }, outside))
    }

    /// The program, then the channel.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.program.as_fd(), self.channel.as_fd()]
    }
}
