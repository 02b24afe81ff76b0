//! What Firecracker writes: its own messages and the machine's serial port.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// The last of it that is kept, in bytes. A machine may write without end.
const KEPT: usize = 8 << 10;
const STACK_BYTES: usize = 64 << 10;

/// Reads until the end, so that the machine never waits for a reader.
#[derive(Debug)]
pub struct Console {
    heard: Arc<Mutex<Heard>>,
    /// Taken when this is dropped.
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Heard {
    last: Vec<u8>,
    first_at: Option<Instant>,
}

impl Console {
    /// `output` is the reading end of a pipe.
    pub fn of(output: OwnedFd) -> io::Result<Self> {
        let heard = Arc::<Mutex<Heard>>::default();
        let shared = Arc::clone(&heard);
        let work = move || read(File::from(output), &shared);
        let reader = Builder::new().stack_size(STACK_BYTES).spawn(work)?;
        Ok(Self {
            heard,
            reader: Some(reader),
        })
    }

    /// The last that was written.
    pub fn last(&self) -> Vec<u8> {
        self.heard().last.clone()
    }

    /// When there was anything at all.
    pub fn first_at(&self) -> Option<Instant> {
        self.heard().first_at
    }

    /// Whether all of it was read, which is so when Firecracker is gone.
    pub fn is_finished(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Console {
    /// Waits for the end, which is there: Firecracker is dropped before its console.
    /// Afterwards the process has no thread more than before.
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            // One that panicked has ended as well.
            let _ended = reader.join().is_ok();
        }
    }
}

fn read(mut output: File, heard: &Mutex<Heard>) {
    let mut buffer = [0; 4096];
    loop {
        let bytes = match output.read(&mut buffer) {
            Ok(0) => return,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.first_at.get_or_insert_with(Instant::now);
        heard.last.extend_from_slice(&buffer[..bytes]);
        let excess = heard.last.len().saturating_sub(KEPT);
        heard.last.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn only_the_last_of_it_is_kept() {
        let (read, mut write) = io::pipe().unwrap();
        let console = Console::of(read.into()).unwrap();
        assert!(console.first_at().is_none());
        for round in 0..100 {
            write.write_all(&[round; 1000]).unwrap();
        }
        drop(write);
        while !console.is_finished() {
            std::thread::yield_now();
        }
        let last = console.last();
        assert_eq!((last.len(), last[0], last[KEPT - 1]), (KEPT, 91, 99));
        assert!(console.first_at().is_some());
    }
}
