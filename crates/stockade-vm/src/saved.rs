//! Machines that booted once and were saved where the agent waits for its host:
//! before it mounted a view, knew whom it works for, or drew a random number
//! that anybody saw. Each that is restored is told the rest for itself.
//!
//! ```text
//! images/<name>/saved/<memory>-<cards>/   state, saved.json
//! ```
//!
//! A state belongs to one image, one memory size, one set of devices and one
//! QEMU; under another it is not used.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{fstat, renameat};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stockade_sys::directory;

use crate::qemu::PORT;
use crate::store::{InUse, Partial, Store, digest_of};
use crate::{VmError, system};

const VERSION: u32 = 1;
const DIRECTORY: &str = "saved";
const META: &str = "saved.json";
const STATE: &str = "state";
/// How often QEMU is asked whether it is done.
const PAUSE: Duration = Duration::from_millis(10);

/// What is known of one saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    version: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// Whether there is a network card.
    pub network: bool,
    /// The QEMU that made it, as its caller tells one from another.
    pub qemu: String,
    /// SHA-256 of the state, in hexadecimal.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
}

/// One saved state of an image, whichever QEMU made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The image.
    pub image: String,
    /// Its directory below that of the image.
    name: String,
    /// `None` where nobody can tell: it is used by nobody.
    pub saved: Option<Saved>,
    /// Where it is.
    pub path: PathBuf,
    /// When it was saved, in milliseconds since 1970.
    pub saved_ms: u64,
}

impl Kept {
    /// Whether this QEMU can go on from it.
    pub fn is_of(&self, qemu: &str) -> bool {
        let saved = self.saved.as_ref();
        saved.is_some_and(|saved| saved.qemu == qemu)
    }
}

/// A place in which a state is being made. Dropped, nothing of it is left.
pub struct Saving<'a> {
    partial: Partial<'a>,
    path: PathBuf,
}

fn name_of(memory: u32, network: bool) -> String {
    format!("{memory}-{}", u32::from(network))
}

impl Store {
    /// The saved states of an image.
    pub fn saved_of(&self, image: &str) -> Result<Vec<Kept>, VmError> {
        let failed = system("list the saved machines");
        let all = self.place_of(image)?;
        let all = directory::open_private_if_there(all.as_fd(), DIRECTORY).map_err(&failed)?;
        let Some(all) = all else {
            return Ok(Vec::new());
        };
        let path = directory::path_of(all.as_fd()).map_err(&failed)?;
        let path = PathBuf::from(OsString::from_vec(path));
        let mut found = Vec::new();
        for name in directory::names(all.as_fd()).map_err(&failed)? {
            let place = directory::open_private_if_there(all.as_fd(), &name).map_err(&failed)?;
            let Some(place) = place else {
                continue;
            };
            found.push(Kept {
                image: image.to_owned(),
                saved: read(place.as_fd(), &name),
                saved_ms: changed_ms(place.as_fd()),
                path: path.join(&name),
                name,
            });
        }
        Ok(found)
    }

    /// Those of all images from which this QEMU cannot go on. The next run makes
    /// another in place of one that it needs.
    pub fn stale(&self, qemu: &str) -> Result<Vec<Kept>, VmError> {
        let mut stale = Vec::new();
        for image in self.list()? {
            let kept = self.saved_of(&image.name)?.into_iter();
            stale.extend(kept.filter(|one| !one.is_of(qemu)));
        }
        Ok(stale)
    }

    /// Removes saved states. Who goes on from one has it open.
    pub fn remove_saved(&self, kept: &[Kept]) -> Result<(), VmError> {
        let failed = system("remove a saved machine");
        let _lock = self.lock()?;
        for one in kept {
            let image = self.place_of(&one.image)?;
            let all = directory::open_private(image.as_fd(), DIRECTORY).map_err(&failed)?;
            directory::remove_tree(all.as_fd(), &one.name).map_err(&failed)?;
        }
        Ok(())
    }

    /// Prepares to save a machine.
    pub fn begin_saving(&self) -> Result<Saving<'_>, VmError> {
        self.clear()?;
        let partial = Partial::new(self)?;
        let path = directory::path_of(partial.directory.as_fd());
        let path = path.map_err(system("save the machine"))?;
        Ok(Saving {
            partial,
            path: PathBuf::from(OsString::from_vec(path)),
        })
    }
}

impl Saving<'_> {
    /// An empty directory, for whatever is needed besides.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the state in `file` one of the image that is in use. Another one of
    /// the same kind is replaced; who uses that has it open.
    pub fn keep(
        self,
        used: &InUse,
        file: &Path,
        (memory, network, qemu): (u32, bool, &str),
    ) -> Result<Saved, VmError> {
        let failed = system("keep the saved machine");
        let place = directory::make_private(self.partial.directory.as_fd(), DIRECTORY);
        let place = place.map_err(&failed)?;
        let state = File::open(file).map_err(&failed)?;
        let bytes = state.metadata().map_err(&failed)?.len();
        let saved = Saved {
            version: VERSION,
            memory,
            network,
            qemu: qemu.to_owned(),
            digest: digest_of(&state).map_err(&failed)?,
            bytes,
        };
        let text = serde_json::to_vec_pretty(&saved).map_err(|error| failed(error.into()))?;
        std::fs::rename(file, self.path.join(DIRECTORY).join(STATE)).map_err(&failed)?;
        directory::write_whole(place.as_fd(), META, &text).map_err(&failed)?;
        let all = directory::make_private(used.place(), DIRECTORY).map_err(&failed)?;
        let name = name_of(memory, network);
        let _lock = self.partial.store.lock()?;
        if directory::open_private_if_there(all.as_fd(), &name).is_ok_and(|old| old.is_some()) {
            directory::remove_tree(all.as_fd(), &name).map_err(&failed)?;
        }
        let moved = renameat(&self.partial.directory, DIRECTORY, &all, name.as_str());
        moved.map_err(|error| failed(error.into()))?;
        Ok(saved)
    }
}

impl InUse {
    /// The states of this image that this QEMU made. What cannot be read is
    /// none; it is replaced when the next one is made.
    pub fn saved(&self, qemu: &str) -> Vec<Saved> {
        let Ok(Some(all)) = directory::open_private_if_there(self.place(), DIRECTORY) else {
            return Vec::new();
        };
        let names = directory::names(all.as_fd()).unwrap_or_default();
        let of_qemu = |name: &String| {
            let place = directory::open_private_if_there(all.as_fd(), name).ok()??;
            read(place.as_fd(), name).filter(|saved| saved.qemu == qemu)
        };
        names.iter().filter_map(of_qemu).collect()
    }

    /// Opens a state, and verifies that it has this digest.
    pub fn open_saved(&self, memory: u32, network: bool, digest: &str) -> Result<File, VmError> {
        let failed = system("read the saved machine");
        let altered = || VmError::Altered {
            name: self.image.name.clone(),
            file: STATE,
        };
        let all = directory::open_private(self.place(), DIRECTORY).map_err(&failed)?;
        let place = directory::open_private(all.as_fd(), &name_of(memory, network));
        let state = directory::open_record(place.map_err(&failed)?.as_fd(), STATE);
        let mut state = state.map_err(&failed)?.ok_or_else(altered)?;
        if digest_of(&state).map_err(&failed)? != digest {
            return Err(altered());
        }
        state.rewind().map_err(&failed)?;
        Ok(state)
    }
}

/// What is known of the state in a directory of this name.
fn read(place: BorrowedFd<'_>, name: &str) -> Option<Saved> {
    let text = directory::read_whole(place, META).ok()??;
    let saved: Saved = serde_json::from_slice(&text).ok()?;
    let is_named = name_of(saved.memory, saved.network) == name;
    (saved.version == VERSION && is_named).then_some(saved)
}

/// When a file last came into a directory, in milliseconds since 1970; 0 where
/// nobody can tell.
fn changed_ms(place: BorrowedFd<'_>) -> u64 {
    let status = fstat(place);
    let seconds = status.map_or(0, |status| status.st_mtime);
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

/// Speaks to the monitor (QMP) of a machine that is started to be saved: when the
/// agent waits for its host, the state is written by `writer`, a shell's command
/// that takes it from its standard input, and the machine ends. What QEMU says
/// is what the process at the other end says, and is believed only in so far as
/// nothing but this state comes of it.
pub fn save(from: impl Read, to: impl Write, writer: &str) -> Result<(), VmError> {
    let mut monitor = Monitor {
        from: BufReader::new(from),
        to,
    };
    monitor.ask("qmp_capabilities", json!({}))?;
    monitor.wait_for(|said| {
        let data = &said["data"];
        said["event"] == "VSERPORT_CHANGE" && data["id"] == PORT && data["open"] == true
    })?;
    // It is not the network that could not keep up.
    monitor.ask(
        "migrate-set-parameters",
        json!({"max-bandwidth": 1u64 << 40}),
    )?;
    monitor.ask("migrate", json!({"uri": format!("exec:{writer}")}))?;
    loop {
        let said = monitor.ask("query-migrate", json!({}))?;
        match said["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") | None => {
                let reason = said["error-desc"].as_str().unwrap_or("it failed");
                return Err(not_saved(reason));
            }
            Some(_) => std::thread::sleep(PAUSE),
        }
    }
    monitor.ask("quit", json!({}))?;
    Ok(())
}

fn not_saved(reason: &str) -> VmError {
    VmError::NotSaved {
        reason: reason.to_owned(),
    }
}

/// Longest line of the monitor that is read, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

struct Monitor<F, T> {
    from: BufReader<F>,
    to: T,
}

impl<F: Read, T: Write> Monitor<F, T> {
    /// The next thing that is said and of which this holds.
    fn wait_for(&mut self, holds: impl Fn(&Value) -> bool) -> Result<Value, VmError> {
        loop {
            let mut line = Vec::new();
            let mut from = self.from.by_ref().take(LINE_BYTES_MAX);
            let length = from.read_until(b'\n', &mut line);
            match length.map_err(system("hear QEMU's monitor"))? {
                0 => return Err(not_saved("it ended before it was asked to")),
                _ => {
                    let said = serde_json::from_slice::<Value>(&line);
                    let said = said.map_err(|error| not_saved(&error.to_string()))?;
                    if holds(&said) {
                        return Ok(said);
                    }
                }
            }
        }
    }

    /// The answer to a command.
    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, VmError> {
        let mut text = json!({"execute": command, "arguments": arguments}).to_string();
        text.push('\n');
        let sent = self
            .to
            .write_all(text.as_bytes())
            .and_then(|()| self.to.flush());
        sent.map_err(|error: io::Error| not_saved(&format!("its monitor: {error}")))?;
        let said =
            self.wait_for(|said| said.get("return").is_some() || said.get("error").is_some())?;
        match said["error"]["desc"].as_str() {
            Some(reason) => Err(not_saved(reason)),
            None => Ok(said["return"].clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `save` says to a monitor that says this.
    fn dialogue(said: &str) -> (Result<(), VmError>, String) {
        let mut heard = Vec::new();
        let result = save(said.as_bytes(), &mut heard, "cat >state");
        (result, String::from_utf8(heard).unwrap())
    }

    #[test]
    fn a_machine_is_saved_once_the_agent_waits() {
        let ready = r#"{"QMP": {}}
            {"return": {}}
            {"event": "VSERPORT_CHANGE", "data": {"open": true, "id": "agent-port"}}
            {"return": {}}
            {"return": {}}
            {"event": "STOP"}
            {"return": {"status": "active"}}
            {"return": {"status": "completed"}}
            {"return": {}}
        "#;
        let (result, heard) = dialogue(ready);
        assert!(result.is_ok(), "{result:?}");
        assert!(heard.contains("exec:cat >state") && heard.trim_end().ends_with("}"));
        assert_eq!(heard.matches("query-migrate").count(), 2);
        let (result, heard) = dialogue("{\"QMP\": {}}\n{\"return\": {}}\n");
        assert!(matches!(result, Err(VmError::NotSaved { .. })));
        assert!(!heard.contains("\"migrate\""), "{heard}");
        let failed = ready.replace("completed", "failed");
        assert!(dialogue(&failed).0.is_err());
        assert!(dialogue("no monitor\n").0.is_err());
    }
}
