//! A program that does not outlive whoever started it, however that one ends.
//!
//! A parent-death signal (PR_SET_PDEATHSIG) is forgotten by a program that
//! changes its user, and is tied to the thread that started it. So a small
//! process stands beside: it waits for the program's end and for the end of a
//! pipe that its starter alone holds open. The program waits until it is there.
//! With a pid namespace of its own the program is that namespace's first process,
//! and whatever it started ends with it (pid_namespaces(7)).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::process::copy_of_process;
use crate::signal;

/// What is executed.
#[derive(Debug)]
pub struct Program<'a> {
    pub path: &'a CStr,
    /// Its name first.
    pub arguments: &'a [CString],
    /// All the variables that it has.
    pub environment: &'a [CString],
    /// Where it starts.
    pub directory: BorrowedFd<'a>,
    /// Become its standard streams.
    pub input: BorrowedFd<'a>,
    pub output: BorrowedFd<'a>,
    pub error: BorrowedFd<'a>,
    /// Whether it gets a pid namespace of its own, which needs CAP_SYS_ADMIN.
    pub own_namespace: bool,
}

/// A started program, which is killed and waited for when this is dropped.
#[derive(Debug)]
pub struct Guarded {
    program: OwnedFd,
    guard: OwnedFd,
    /// The guard waits for the end of this.
    alive: Option<OwnedFd>,
}

impl Guarded {
    /// Starts a program in a session of its own. What fails to be executed ends with code 127.
    ///
    /// The process may have several threads: its copies make system calls only.
    pub fn start(program: &Program<'_>) -> io::Result<Self> {
        let (read, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        let (wait, go) = pipe_with(PipeFlags::CLOEXEC)?;
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            let strings = strings.iter().map(|text| text.as_ptr());
            strings.chain([ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(program.arguments), pointers(program.environment));
        let new = match program.own_namespace {
            true => libc::CLONE_NEWPID,
            false => 0,
        };
        // SAFETY: the copy calls `become_program` alone, which neither allocates
        // nor takes a lock; its arguments and variables end in a null pointer.
        let child = unsafe {
            match copy_of_process(new)? {
                Some(child) => child.pidfd,
                None => become_program(program, [&arguments, &environment], &wait, [&alive, &go]),
            }
        };
        // SAFETY: as above, with `stand_guard`.
        let guard = unsafe { copy_of_process(0) };
        let started = match guard {
            Ok(None) => stand_guard(&read, &child),
            Ok(Some(guard)) => rustix::io::write(&go, &[0])
                .map(|_| guard.pidfd)
                .map_err(io::Error::from),
            Err(error) => Err(error),
        };
        match started {
            Ok(guard) => Ok(Self {
                program: child,
                guard,
                alive: Some(alive),
            }),
            Err(error) => {
                // It ends without that byte.
                drop(go);
                wait_for(&child)?;
                Err(error)
            }
        }
    }

    /// Whether the program has ended.
    pub fn has_ended(&self) -> io::Result<bool> {
        let mut wanted = [PollFd::new(&self.program, PollFlags::IN)];
        let at_once = Timespec::default();
        Ok(poll(&mut wanted, Some(&at_once))? > 0)
    }

    /// Waits for its own end.
    pub fn wait(&self) -> io::Result<()> {
        wait_for(&self.program)
    }

    /// Ends the program and all in its namespace, and waits until they are gone.
    pub fn end(&mut self) -> io::Result<()> {
        if self.alive.take().is_none() {
            return Ok(());
        }
        match pidfd_send_signal(&self.program, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        wait_for(&self.program)?;
        wait_for(&self.guard)
    }
}

fn wait_for(process: &OwnedFd) -> io::Result<()> {
    loop {
        match waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED) {
            Ok(_) | Err(Errno::CHILD) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Without the pipe the guard ends it as well.
        let _gone = self.end().is_ok();
    }
}

/// In a copy: waits for the end of whoever started it, or of the program.
fn stand_guard(alive: &OwnedFd, program: &OwnedFd) -> ! {
    // SAFETY: system calls with numbers and with pointers to what lives in this
    // stack frame; nothing is allocated and nothing is freed.
    unsafe {
        libc::setsid();
        // A copy of the starter's memory is nobody's to read.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"stockade-guard".as_ptr(), 0, 0, 0);
        // Above both first, so that neither overwrites the other.
        let above = |fd: &OwnedFd| libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 3);
        let (alive, program) = (above(alive), above(program));
        libc::dup2(alive, 0);
        libc::dup2(program, 1);
        libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0);
        let watched = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut both = [watched(0), watched(1)];
        while libc::poll(both.as_mut_ptr(), 2, -1) < 0 {}
        if both[1].revents == 0 {
            libc::syscall(libc::SYS_pidfd_send_signal, 1, libc::SIGKILL, 0, 0);
        }
        libc::_exit(0)
    }
}

/// In a copy.
///
/// # Safety
/// Arguments and variables end in a null pointer, and the process is a copy that nobody else
/// runs in.
unsafe fn become_program(
    program: &Program<'_>,
    [arguments, environment]: [&[*const libc::c_char]; 2],
    wait: &OwnedFd,
    starters: [&OwnedFd; 2],
) -> ! {
    let none = signal::set_of(&[]);
    // SAFETY: as for `stand_guard`; the arrays end in a null pointer.
    unsafe {
        libc::setsid();
        for pipe in starters {
            libc::close(pipe.as_raw_fd());
        }
        // One byte once the guard stands; the end when the starter is gone.
        let mut byte = 0u8;
        let read = || libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1);
        if repeat(read) != 1 {
            libc::_exit(126);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        // Above the standard ones first, so that none overwrites another.
        let above = |fd: BorrowedFd<'_>| libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 3);
        let [input, output, error] = [program.input, program.output, program.error].map(above);
        let ready = input >= 0
            && output >= 0
            && error >= 0
            && libc::fchdir(program.directory.as_raw_fd()) == 0
            && libc::dup2(input, 0) == 0
            && libc::dup2(output, 1) == 1
            && libc::dup2(error, 2) == 2;
        if ready {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
            libc::execve(
                program.path.as_ptr(),
                arguments.as_ptr(),
                environment.as_ptr(),
            );
        }
        libc::_exit(127)
    }
}

/// The call's result once no signal came between.
fn repeat(mut call: impl FnMut() -> isize) -> isize {
    loop {
        let result = call();
        if result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return result;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    /// `sh -c` with this script, and its output.
    fn shell(script: &str, own_namespace: bool) -> (Guarded, File) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let null = File::open("/dev/null").unwrap();
        let root = File::open("/").unwrap();
        let words = ["sh", "-c", script].map(|word| CString::new(word).unwrap());
        let guarded = Guarded::start(&Program {
            path: c"/bin/sh",
            arguments: &words,
            environment: &[],
            directory: root.as_fd(),
            input: null.as_fd(),
            output: write.as_fd(),
            error: write.as_fd(),
            own_namespace,
        });
        (guarded.unwrap(), File::from(read))
    }

    fn namespaces() -> Vec<bool> {
        match rustix::process::geteuid().is_root() {
            true => vec![false, true],
            false => vec![false],
        }
    }

    #[test]
    fn a_program_runs_with_its_streams_and_nothing_else() {
        for own_namespace in namespaces() {
            let script =
                "pwd; echo $$ >/dev/null; ls /proc/self/fd | wc -l; env | grep -v ^PWD= ; cat";
            let (guarded, mut output) = shell(script, own_namespace);
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            // The fourth is the directory that ls reads.
            assert!(text.starts_with("/\n"), "{text}");
            assert!(!text.contains('='), "{text}");
            drop(guarded);
        }
    }

    #[test]
    fn it_ends_when_it_is_told_to_with_all_that_it_started() {
        for own_namespace in namespaces() {
            // Who holds the pipe is alive. Without a namespace only the program
            // itself is ended.
            let script = match own_namespace {
                true => "sleep 1000 & setsid sleep 1000 & echo; wait",
                false => "echo; exec sleep 1000",
            };
            let (mut guarded, mut output) = shell(script, own_namespace);
            output.read_exact(&mut [0]).unwrap();
            assert!(!guarded.has_ended().unwrap());
            guarded.end().unwrap();
            assert_eq!(output.read(&mut [0]).unwrap(), 0);
            guarded.end().unwrap();
        }
    }

    #[test]
    fn it_ends_by_itself_too() {
        let (guarded, mut output) = shell("exit 3", false);
        output.read_to_end(&mut Vec::new()).unwrap();
        while !guarded.has_ended().unwrap() {
            std::thread::yield_now();
        }
    }
}
