//! Checking the chain: every line of every file, oldest first.
//!
//! What this can and cannot show is stated in [`crate::log`].

use super::read::{Segment, snapshot};
use super::{BOUNDS, Bounds, LogError, NEWEST};
use crate::events::{Event, Hash, LineError, Record};
use crate::state::StateDirectory;

/// An unbroken chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Lines in all files, torn ones included.
    pub lines: u64,
    pub files: usize,
    /// Numbers of the oldest and the newest record; 0 for an empty log. The
    /// records before the oldest were rotated away.
    pub first_seq: u64,
    pub last_seq: u64,
    /// SHA-256 of the last line, zeros for an empty log: keep a copy elsewhere
    /// and pass it as an anchor later.
    pub head: Hash,
    /// Writes that a crash cut short, each recorded by the next writer.
    pub tears: Vec<Tear>,
}

/// One recorded tear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tear {
    pub file: String,
    /// Line of the record that reports it; 1 for the first.
    pub line: u64,
    pub damaged_bytes: u64,
}

/// The first place at which the chain does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct Broken {
    /// Name of the file in the state directory.
    pub file: String,
    /// 1 for the first line; 0 when the file as a whole is meant.
    pub line: u64,
    pub reason: String,
}

/// Why a log is not verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("the event log was changed or damaged at {0}")]
    Broken(#[from] Broken),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Checks all files. With an anchor, a line with that SHA-256 must be among
/// them, which shows that nothing up to it was cut off or rewritten.
pub fn verify(state: &StateDirectory, anchor: Option<Hash>) -> Result<Verified, VerifyError> {
    verify_within(state, anchor, BOUNDS)
}

pub(super) fn verify_within(
    state: &StateDirectory,
    anchor: Option<Hash>,
    bounds: Bounds,
) -> Result<Verified, VerifyError> {
    let segments = snapshot(state, bounds)?;
    let mut chain = Chain {
        anchor,
        anchored: anchor == Some(Hash::ZERO),
        ..Chain::default()
    };
    for segment in &segments {
        chain.check_file(segment, &segment.bytes(state, 0)?)?;
    }
    let newest = |reason: String| Broken {
        file: NEWEST.to_owned(),
        line: 0,
        reason,
    };
    if let Some(damage) = chain.damage {
        return Err(damage.broken().into());
    }
    // A file is dropped only when all numbers are taken, and rotating leaves
    // no fewer behind.
    if chain.first_seq > 1 && segments.len() < bounds.rotated_files_max {
        let first = chain.first_seq;
        let reason = format!("the oldest record left is number {first}, yet files are missing");
        return Err(newest(reason).into());
    }
    if let Some(anchor) = anchor.filter(|_| !chain.anchored) {
        let reason = format!(
            "no line has the SHA-256 {anchor}: since that was noted, lines were cut off or \
             rewritten, or its file was rotated away"
        );
        return Err(newest(reason).into());
    }
    Ok(Verified {
        lines: chain.lines,
        files: segments.len(),
        first_seq: chain.first_seq,
        last_seq: chain.seq,
        head: chain.previous,
        tears: chain.tears,
    })
}

/// The chain up to the line that is looked at.
struct Chain {
    anchor: Option<Hash>,
    anchored: bool,
    lines: u64,
    first_seq: u64,
    /// Number of the last record.
    seq: u64,
    /// Hash of the last line, record or not.
    previous: Hash,
    /// Hash of the last line that is a record.
    last_whole: Hash,
    /// Lines since then that are none.
    damage: Option<Damage>,
    tears: Vec<Tear>,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            anchor: None,
            anchored: false,
            lines: 0,
            first_seq: 0,
            seq: 0,
            previous: Hash::ZERO,
            last_whole: Hash::ZERO,
            damage: None,
            tears: Vec::new(),
        }
    }
}

/// Lines that are not records, until a repair accounts for them.
struct Damage {
    file: String,
    line: u64,
    bytes: Vec<u8>,
    reason: &'static str,
}

impl Damage {
    fn broken(self) -> Broken {
        Broken {
            file: self.file,
            line: self.line,
            reason: self.reason.to_owned(),
        }
    }
}

const NOT_A_RECORD: &str = "this line is not a record, and no repair accounts for it";
const CUT_SHORT: &str = "this line is cut short: the last writer died, or it was truncated; the \
                         next run records it";

impl Chain {
    fn check_file(&mut self, segment: &Segment, bytes: &[u8]) -> Result<(), Broken> {
        let mut number = 0;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            number += 1;
            self.lines += 1;
            let broken = |reason: String| Broken {
                file: segment.name.clone(),
                line: number,
                reason,
            };
            if line.last() != Some(&b'\n') {
                let earlier = self.damage.take().map(Damage::broken);
                return Err(earlier.unwrap_or_else(|| broken(CUT_SHORT.to_owned())));
            }
            match Record::from_line(line) {
                Ok(record) => {
                    self.check_record(&record, &segment.name, number)
                        .map_err(broken)?;
                    self.last_whole = Hash::of(line);
                }
                Err(LineError::NotARecord) => self.note_damage(line, &segment.name, number),
                Err(error @ LineError::LaterVersion { .. }) => {
                    return Err(broken(error.to_string()));
                }
            }
            self.previous = Hash::of(line);
            self.anchored |= self.anchor == Some(self.previous);
        }
        Ok(())
    }

    fn note_damage(&mut self, line: &[u8], file: &str, number: u64) {
        let damage = self.damage.get_or_insert_with(|| Damage {
            file: file.to_owned(),
            line: number,
            bytes: Vec::new(),
            reason: NOT_A_RECORD,
        });
        damage.bytes.extend_from_slice(line);
    }

    fn check_record(&mut self, record: &Record, file: &str, number: u64) -> Result<(), String> {
        let is_first = self.seq == 0;
        // What the oldest record left names was rotated away with its file.
        let follows_rotated = is_first && record.seq > 1;
        if !follows_rotated {
            if record.seq != self.seq + 1 {
                return Err(format!(
                    "record {} follows record {}: lines were removed, added or moved",
                    record.seq, self.seq
                ));
            }
            if record.previous != self.previous {
                return Err(
                    "its `previous` is not the SHA-256 of the line before: that line was \
                            changed, removed or moved"
                        .to_owned(),
                );
            }
        }
        self.check_repair(record, follows_rotated)?;
        if let Event::LogRepaired { damaged_bytes, .. } = record.event {
            self.tears.push(Tear {
                file: file.to_owned(),
                line: number,
                damaged_bytes,
            });
        }
        if is_first {
            self.first_seq = record.seq;
        }
        self.seq = record.seq;
        Ok(())
    }

    /// Damage and repair come only together, and the repair names the damage.
    fn check_repair(&mut self, record: &Record, follows_rotated: bool) -> Result<(), String> {
        let damage = self.damage.take();
        let Event::LogRepaired {
            damaged_bytes,
            damaged_sha256,
            last_whole,
        } = record.event
        else {
            return match damage {
                Some(damage) => Err(format!("line {} before it is not a record", damage.line)),
                None => Ok(()),
            };
        };
        let bytes = damage.map_or(Vec::new(), |damage| damage.bytes);
        let names_damage = damaged_bytes == bytes.len() as u64
            && damaged_sha256 == Hash::of(&bytes)
            && (follows_rotated || last_whole == self.last_whole);
        if names_damage {
            Ok(())
        } else {
            Err("this repair does not describe the lines before it".to_owned())
        }
    }
}
