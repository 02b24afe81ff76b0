//! A machine that runs, or is paused.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use stockade_guest::{ANSWER_BYTES, GENERATION_PORT, Generation};
use stockade_sys::guard::Guarded;

use super::api::Api;
use super::configuration::{API, VSOCK};
use super::console::Console;
use super::host::fresh_generation;
use super::jail::Jail;
use super::snapshot::{Kind, MEMORY, STATE, Snapshot};
use super::{FirecrackerError, PATIENCE, shown, system};

/// How long to wait before looking again whether a socket is there.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// A machine, which ends when this is dropped, and leaves nothing.
///
/// It answers nobody until it has taken a generation, and here nobody gets hold of
/// it before.
#[derive(Debug)]
pub struct Machine {
    started: Started,
    generation: Generation,
}

/// A Firecracker that was started. The fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Started {
    pub guard: Guarded,
    pub console: Console,
    pub jail: Jail,
    pub api: Option<Api>,
    pub since: Instant,
    pub memory_bytes: u64,
    /// Disks, by their names there; as they were put there.
    pub drives: Vec<(String, File)>,
    /// What a difference is a difference to.
    pub base: Option<Snapshot>,
}

impl Machine {
    pub(crate) fn begin(started: Started) -> Result<Self, FirecrackerError> {
        let generation = fresh_generation()?;
        let mut machine = Self {
            started,
            generation,
        };
        match machine.tell(generation) {
            Ok(()) => Ok(machine),
            // Firecracker closes its sockets a moment before it ends.
            Err(_) if machine.started.ends_soon() => Err(machine.started.ended()),
            Err(error) => Err(error),
        }
    }

    /// Tells the machine who it is from now on.
    fn tell(&mut self, generation: Generation) -> Result<(), FirecrackerError> {
        let failed = system("tell the machine who it is");
        let mut stream = self.connect(GENERATION_PORT)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(&failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(&failed)?;
        stream.write_all(&generation.encode()).map_err(&failed)?;
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer).map_err(&failed)?;
        // The machine ends the conversation, so that nothing of it is under way
        // when the machine is saved.
        let ended = match stream.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => true,
            Err(error) => return Err(failed(error)),
        };
        if !ended || answer != generation.answer() {
            return Err(FirecrackerError::Violation {
                who: "the machine",
                reason: "it did not take its generation".into(),
            });
        }
        self.generation = generation;
        Ok(())
    }

    /// Who it is.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Its name on this machine: of its directory and its control group.
    pub fn name(&self) -> &str {
        self.started.jail.name()
    }

    /// Connects to a port of the machine's. What comes from there is the
    /// machine's word; the stream has no deadline.
    pub fn connect(&self, port: u32) -> Result<UnixStream, FirecrackerError> {
        let failed = system("connect to the machine");
        let mut stream = self.started.dial(VSOCK)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(&failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(&failed)?;
        // Firecracker's docs/vsock.md: `OK` and its own port, or the end.
        let asked = stream.write_all(format!("CONNECT {port}\n").as_bytes());
        let mut line = Vec::new();
        let mut byte = [0];
        while asked.is_ok() && line.len() < 32 && line.last() != Some(&b'\n') {
            match stream.read(&mut byte) {
                Ok(0) => break,
                Ok(_) => line.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => return Err(failed(error)),
            }
        }
        if line.is_empty() {
            return Err(match self.started.guard.has_ended() {
                Ok(true) => self.started.ended(),
                _ => FirecrackerError::Closed { port },
            });
        }
        let number = line
            .strip_prefix(b"OK ")
            .and_then(|rest| rest.strip_suffix(b"\n"));
        if !number.is_some_and(|digits| digits.iter().all(u8::is_ascii_digit)) {
            return Err(FirecrackerError::Violation {
                who: "Firecracker's vsock",
                reason: shown(&line),
            });
        }
        stream.set_read_timeout(None).map_err(&failed)?;
        stream.set_write_timeout(None).map_err(&failed)?;
        Ok(stream)
    }

    /// What Firecracker says that the machine has.
    pub fn configuration(&mut self) -> Result<serde_json::Value, FirecrackerError> {
        self.started
            .api()?
            .read("tell its configuration", "/vm/config")
    }

    /// Stops the processors.
    pub fn pause(&mut self) -> Result<(), FirecrackerError> {
        self.set_state("pause the machine", "Paused")
    }

    /// Saves the machine into a directory, which must not exist. It is paused then,
    /// and forgets every connection; [`Machine::resume`] lets it go on.
    pub fn save(&mut self, kind: Kind, directory: &Path) -> Result<Snapshot, FirecrackerError> {
        // Taken first: what fails leaves nothing that could be added to.
        let last = self.started.base.take();
        let base = match kind {
            Kind::Full => None,
            Kind::Difference => Some(last.ok_or(FirecrackerError::NoBase)?),
        };
        self.pause()?;
        let jail = &self.started.jail;
        let failed = system("make room for the snapshot");
        // Of a machine that was restored, they are the ones that it came from.
        for name in [MEMORY, STATE] {
            jail.forget(name).map_err(&failed)?;
        }
        let create = Create {
            snapshot_type: match kind {
                Kind::Full => "Full",
                Kind::Difference => "Diff",
            },
            snapshot_path: STATE,
            mem_file_path: MEMORY,
        };
        let api = self.started.api()?;
        api.change("save the machine", "PUT", "/snapshot/create", &create)?;
        let started = &self.started;
        let (bytes, drives) = (started.memory_bytes, &started.drives);
        let snapshot = Snapshot::keep(&started.jail, directory, bytes, base.as_ref(), drives)?;
        for name in [MEMORY, STATE] {
            started.jail.forget(name).map_err(&failed)?;
        }
        self.started.base = Some(snapshot.clone());
        Ok(snapshot)
    }

    /// Lets a paused machine go on. After it was saved there may be another one
    /// that was it, so it takes a new generation first.
    pub fn resume(&mut self) -> Result<(), FirecrackerError> {
        self.set_state("resume the machine", "Resumed")?;
        self.tell(fresh_generation()?)
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> Result<bool, FirecrackerError> {
        self.started
            .guard
            .has_ended()
            .map_err(system("look after the machine"))
    }

    /// The last that came from its serial port, and what Firecracker complained of.
    pub fn console(&self) -> Vec<u8> {
        self.started.console.last()
    }

    /// From the beginning of its start until there was anything on the console.
    pub fn first_output_after(&self) -> Option<Duration> {
        let first = self.started.console.first_at()?;
        Some(first.duration_since(self.started.since))
    }

    fn set_state(
        &mut self,
        doing: &'static str,
        state: &'static str,
    ) -> Result<(), FirecrackerError> {
        let api = self.started.api()?;
        api.change(doing, "PATCH", "/vm", &State { state })
    }
}

impl Started {
    /// The API, once Firecracker offers it.
    pub fn api(&mut self) -> Result<&mut Api, FirecrackerError> {
        let api = match self.api.take() {
            Some(api) => api,
            None => Api::new(self.dial(API)?)?,
        };
        Ok(self.api.insert(api))
    }

    /// Connects to a socket of Firecracker's, once it is there.
    fn dial(&self, name: &'static str) -> Result<UnixStream, FirecrackerError> {
        let failed = system("connect to Firecracker");
        let until = Instant::now() + PATIENCE;
        loop {
            match self.jail.dial(name) {
                Ok(stream) => return Ok(stream),
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(failed(error)),
            }
            if self.guard.has_ended().map_err(&failed)? {
                return Err(self.ended());
            }
            if Instant::now() > until {
                return Err(FirecrackerError::Silent { who: "Firecracker" });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Whether it ends within a second.
    fn ends_soon(&self) -> bool {
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            if self.guard.has_ended().is_ok_and(|ended| ended) {
                return true;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        false
    }

    fn ended(&self) -> FirecrackerError {
        // What it wrote last may still be on its way.
        let until = Instant::now() + Duration::from_millis(500);
        while !self.console.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK_AGAIN);
        }
        FirecrackerError::Ended {
            said: shown(&self.console.last()),
        }
    }
}

/// Not made yet, or nobody listens yet.
fn is_early(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::NotFound || kind == io::ErrorKind::ConnectionRefused
}

#[derive(Serialize)]
struct State {
    state: &'static str,
}

#[derive(Serialize)]
struct Create {
    snapshot_type: &'static str,
    snapshot_path: &'static str,
    mem_file_path: &'static str,
}
