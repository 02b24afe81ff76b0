//! What can happen in the life of a run, as one closed enum, and the form in
//! which it is stored.
//!
//! A [`Record`] is one line of the log, of `--json` output and of the report
//! for an agent: the same bytes everywhere. Texts that come from a command, a
//! path or a policy go through [`printable`] when an event is made, so that a
//! name can never forge output. Writing the lines is left to [`crate::log`].

pub mod network;

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use stockade_policy::guarantee::Guarantee;
use stockade_policy::path::{AbsolutePath, printable};
use stockade_policy::plan::{Hold, Plan, Rule};

use self::network::{ApprovalAnswer, NetworkDecision, NetworkEnd};

/// Version of the stored form. A reader refuses lines of a later one.
pub const VERSION: u32 = 1;

/// Longest stored line with its newline, in bytes; longer events are clipped
/// with a marker that says how much is missing.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A plan was compiled and is about to be applied.
    RunPlanned {
        plan_digest: String,
        command: Vec<String>,
        workspace: String,
        guarantees: GuaranteeSummary,
        /// What is weakened by name or not held in full.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    },
    /// Every guarantee had its evidence and the command was started.
    Started {
        /// Process id outside.
        process: u32,
    },
    /// A rule allowed something.
    Allowed(Decision),
    /// A rule, or the lack of one, denied something.
    Denied(Decision),
    /// Nothing was run.
    Refused {
        /// Id of the guarantee that could not be kept, when there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guarantee: Option<String>,
        reason: String,
        remedy: String,
    },
    /// A step of the plan failed or showed no evidence; nothing was run.
    StepFailed { step: String, error: String },
    /// A limit of the plan was reached.
    LimitHit {
        /// Key of the policy, for example `limits.memory`.
        limit: String,
    },
    /// The run is over.
    Exited {
        /// Exit code of the command, when it exited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        /// Signal that ended it, when one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        duration_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peak_memory_bytes: Option<u64>,
    },
    /// A connection, a name or a request was judged.
    NetworkDecided(NetworkDecision),
    /// A secret was attached to a request.
    CredentialUsed {
        connection: u64,
        credential: String,
        destination: String,
    },
    /// Something that no honest program does.
    NetworkAlert {
        connection: u64,
        code: String,
        destination: String,
        detail: String,
    },
    /// A connection is over.
    NetworkClosed(NetworkEnd),
    /// The egress process ended before the run did: from then on the sandbox
    /// had no network.
    NetworkLost { reason: String },
    /// A held request was answered.
    Approval(ApprovalAnswer),
    /// The rules of the way out were replaced, or were to be.
    PolicyReloaded {
        /// `None` when the new rules were refused and the old ones hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        refused: String,
    },
    /// A sandbox that stays is ready for commands.
    SandboxStarted { name: String },
    /// A sandbox that stays is over.
    SandboxEnded { name: String, reason: String },
    /// A command is about to be started in a sandbox that stays.
    ExecStarted {
        /// Number of the command in its sandbox, from 1.
        exec: u64,
        command: Vec<String>,
    },
    /// That command is over.
    ExecEnded {
        exec: u64,
        /// Exit code of the command, when it exited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        /// Signal that ended it, when one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// Why it was not started, or how it was lost.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        error: String,
        duration_ms: u64,
    },
    /// A person trusted a project's policy file with this content.
    Trusted { path: String, sha256: Hash },
    /// The trust in a project's policy file was taken back.
    Untrusted { path: String, sha256: Hash },
    /// Something that an earlier run left behind was removed.
    Collected { object: String, reason: String },
    /// The end of the log was damaged (a writer died in mid-line) and the
    /// chain goes on from here; the damaged bytes stay where they are.
    LogRepaired {
        /// Number and SHA-256 of the damaged bytes, the newline included.
        /// Zero bytes: only the last newline was missing.
        damaged_bytes: u64,
        damaged_sha256: Hash,
        /// SHA-256 of the last whole record before the damage.
        last_whole: Hash,
    },
}

/// Ids of the guarantees of a plan, by how they fare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuaranteeSummary {
    pub held: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_held: Vec<String>,
}

/// A decision on one object: what an agent can act on without parsing text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// A path, `HOST:PORT`, or the name of a system call.
    pub object: String,
    pub kind: ObjectKind,
    /// Id of the rule that spoke, for example `filesystem.write[0]`.
    pub rule: String,
    /// Layer and line where the rule is written.
    pub origin: String,
    /// The least that a policy would have to say to allow this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smallest_grant: Option<String>,
    /// Whether a person may grant it; false when a higher layer forbids it.
    pub person_may_grant: bool,
}

/// What was to be done with the object of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    Read,
    Write,
    Execute,
    Connect,
    Resolve,
    SystemCall,
}

impl ObjectKind {
    /// The name used in the stored form.
    pub fn name(self) -> &'static str {
        match self {
            ObjectKind::Read => "read",
            ObjectKind::Write => "write",
            ObjectKind::Execute => "execute",
            ObjectKind::Connect => "connect",
            ObjectKind::Resolve => "resolve",
            ObjectKind::SystemCall => "system_call",
        }
    }
}

impl Event {
    /// The event that opens a run, from its plan and the plan's digest.
    pub fn run_planned(plan: &Plan, plan_digest: &str) -> Self {
        let mut guarantees = GuaranteeSummary::default();
        for (guarantee, hold) in &plan.guarantees {
            let list = match hold {
                Hold::Held { .. } => &mut guarantees.held,
                Hold::Partial { .. } => &mut guarantees.partial,
                Hold::NotHeld { .. } => &mut guarantees.not_held,
            };
            list.push(guarantee.id().to_owned());
        }
        Event::RunPlanned {
            plan_digest: plan_digest.to_owned(),
            command: plan
                .command
                .argv
                .iter()
                .map(|argument| printable(argument))
                .collect(),
            workspace: plan.workspace.to_string(),
            guarantees,
            notes: plan
                .notes
                .iter()
                .map(|note| printable(note.as_bytes()))
                .collect(),
        }
    }

    /// Nothing was run, and what to do about it.
    pub fn refused(guarantee: Option<Guarantee>, reason: &str, remedy: &str) -> Self {
        Event::Refused {
            guarantee: guarantee.map(|guarantee| guarantee.id().to_owned()),
            reason: printable(reason.as_bytes()),
            remedy: printable(remedy.as_bytes()),
        }
    }

    /// A step of the plan failed.
    pub fn step_failed(step: &str, error: &str) -> Self {
        Event::StepFailed {
            step: printable(step.as_bytes()),
            error: printable(error.as_bytes()),
        }
    }

    /// The name of the event in the stored form.
    pub fn name(&self) -> &'static str {
        match self {
            Event::RunPlanned { .. } => "run_planned",
            Event::Started { .. } => "started",
            Event::Allowed(_) => "allowed",
            Event::Denied(_) => "denied",
            Event::Refused { .. } => "refused",
            Event::StepFailed { .. } => "step_failed",
            Event::LimitHit { .. } => "limit_hit",
            Event::Exited { .. } => "exited",
            Event::NetworkDecided(_) => "network_decided",
            Event::CredentialUsed { .. } => "credential_used",
            Event::NetworkAlert { .. } => "network_alert",
            Event::NetworkClosed(_) => "network_closed",
            Event::NetworkLost { .. } => "network_lost",
            Event::Approval(_) => "approval",
            Event::PolicyReloaded { .. } => "policy_reloaded",
            Event::SandboxStarted { .. } => "sandbox_started",
            Event::SandboxEnded { .. } => "sandbox_ended",
            Event::ExecStarted { .. } => "exec_started",
            Event::ExecEnded { .. } => "exec_ended",
            Event::Trusted { .. } => "trusted",
            Event::Untrusted { .. } => "untrusted",
            Event::Collected { .. } => "collected",
            Event::LogRepaired { .. } => "log_repaired",
        }
    }
}

impl Decision {
    /// A decision on `object` by `rule`, which nobody can grant until
    /// [`Decision::with_grant`] says how.
    pub fn new(object: &[u8], kind: ObjectKind, rule: &Rule) -> Self {
        Self {
            object: printable(object),
            kind,
            rule: printable(rule.id.as_bytes()),
            origin: printable(rule.origin.as_bytes()),
            smallest_grant: None,
            person_may_grant: false,
        }
    }

    /// Adds the least that a policy would have to say, which a person may.
    pub fn with_grant(mut self, smallest_grant: &str) -> Self {
        self.smallest_grant = Some(printable(smallest_grant.as_bytes()));
        self.person_may_grant = true;
        self
    }
}

/// The trust in a policy file, for [`Event::Trusted`].
pub fn trusted(path: &AbsolutePath, sha256: Hash) -> Event {
    Event::Trusted {
        path: path.to_string(),
        sha256,
    }
}

/// The end of trust in a policy file, for [`Event::Untrusted`].
pub fn untrusted(path: &AbsolutePath, sha256: Hash) -> Event {
    Event::Untrusted {
        path: path.to_string(),
        sha256,
    }
}

/// Name of one run: twelve letters and digits that sort in no order and are
/// easy to read out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(String);

impl RunId {
    /// Characters without those that are mistaken for one another.
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

    /// Spells 60 bits, which the caller takes from the kernel's random
    /// source, so that two runs never share a name.
    pub fn from_random(bits: u64) -> Self {
        let digit = |index: u32| {
            // Five bits are always within the alphabet of 32.
            char::from(Self::ALPHABET[(bits >> (5 * index) & 31) as usize])
        };
        Self((0..12).map(digit).collect())
    }

    /// A new name from the kernel's random source (getrandom(2)).
    pub fn generate() -> std::io::Result<Self> {
        let mut bytes = [0u8; 8];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if filled < bytes.len() {
            // Up to 256 bytes are never cut short (getrandom(2)).
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self::from_random(u64::from_ne_bytes(bytes)))
    }

    /// Reads a name that [`RunId::generate`] could have made.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |byte: &u8| Self::ALPHABET.contains(byte);
        (text.len() == 12 && text.as_bytes().iter().all(fits)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&printable(self.0.as_bytes()))
    }
}

/// A SHA-256 value, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    /// What the first line of a new log names as its previous line.
    pub const ZERO: Hash = Hash([0; 32]);

    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads 64 hexadecimal digits of either case.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = u8::try_from(high << 4 | low).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("expected 64 hexadecimal digits"))
    }
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub version: u32,
    /// 1 for the first record of a log, then one more each.
    pub seq: u64,
    /// UTC in RFC 3339 with milliseconds, as the writer's clock said.
    pub time: String,
    /// The run that it belongs to; trust and repair belong to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    #[serde(flatten)]
    pub event: Event,
    /// SHA-256 of the whole previous line with its newline.
    pub previous: Hash,
}

impl Record {
    /// The stored line with its newline, at most [`LINE_BYTES_MAX`] long.
    pub fn to_line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(self)?;
        if line.len() >= LINE_BYTES_MAX {
            line = self.clipped()?;
        }
        line.push(b'\n');
        Ok(line)
    }

    /// Reads a stored line, with or without its newline.
    pub fn from_line(line: &[u8]) -> Result<Self, LineError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        match serde_json::from_slice::<Self>(line) {
            Ok(record) if record.version <= VERSION => Ok(record),
            _ => match serde_json::from_slice(line) {
                Ok(Versioned { version }) if version > VERSION => {
                    Err(LineError::LaterVersion { version })
                }
                _ => Err(LineError::NotARecord),
            },
        }
    }

    /// Cuts texts and lists shorter and shorter until the line fits.
    fn clipped(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bound = LINE_BYTES_MAX / 4;
        loop {
            let mut value = serde_json::to_value(self)?;
            clip(&mut value, bound);
            let line = serde_json::to_vec(&value)?;
            // At the smallest bound even a full record is below 4 KiB.
            if line.len() < LINE_BYTES_MAX || bound <= 64 {
                return Ok(line);
            }
            bound /= 2;
        }
    }
}

/// Why a line of the log cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    #[error("this line is not a record")]
    NotARecord,
    #[error("this line was written by a later stockade (version {version} of the log)")]
    LaterVersion { version: u32 },
}

/// The time as it is stored.
pub fn time_text(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// The line for a terminal: the same JSON value, with the characters that a
/// terminal would act on written as `\u` escapes.
pub fn json_for_terminal(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for character in line.chars() {
        let mut buffer = [0u8; 4];
        let encoded = character.encode_utf8(&mut buffer);
        if printable(encoded.as_bytes()) == *encoded {
            text.push(character);
        } else {
            text.push_str(&format!("\\u{:04x}", u32::from(character)));
        }
    }
    text
}

/// Cuts each text to `bound` bytes and each list to `bound / 16` elements.
fn clip(value: &mut serde_json::Value, bound: usize) {
    match value {
        serde_json::Value::String(text) if text.len() > bound => {
            let cut = (0..=bound)
                .rev()
                .find(|&at| text.is_char_boundary(at))
                .unwrap_or(0);
            let missing = text.len() - cut;
            text.truncate(cut);
            text.push_str(&format!("[… {missing} bytes more]"));
        }
        serde_json::Value::Array(list) => {
            let kept = (bound / 16).min(list.len());
            let missing = list.len() - kept;
            list.truncate(kept);
            list.iter_mut().for_each(|element| clip(element, bound));
            if missing > 0 {
                list.push(format!("[… {missing} more]").into());
            }
        }
        serde_json::Value::Object(members) => {
            members.values_mut().for_each(|member| clip(member, bound));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(event: Event) -> Record {
        Record {
            version: VERSION,
            seq: 7,
            time: time_text(SystemTime::UNIX_EPOCH),
            run: Some(RunId::from_random(0)),
            event,
            previous: Hash::ZERO,
        }
    }

    #[test]
    fn a_record_is_one_flat_line_and_comes_back() {
        let rule = Rule {
            id: "filesystem.write[0]".into(),
            origin: "stockade.toml:7".into(),
            reason: String::new(),
        };
        let decision = Decision::new(b"/etc/x\n\x1b", ObjectKind::Write, &rule)
            .with_grant("filesystem.write = [\"/etc/x\"]");
        let record = record(Event::Denied(decision));
        let line = record.to_line().unwrap();
        let text = String::from_utf8(line.clone()).unwrap();
        let expected = concat!(
            r#"{"version":1,"seq":7,"time":"1970-01-01T00:00:00.000Z","run":"000000000000","#,
            r#""event":"denied","object":"/etc/x\\n\\u{1b}","kind":"write","#,
            r#""rule":"filesystem.write[0]","origin":"stockade.toml:7","#,
            r#""smallest_grant":"filesystem.write = [\"/etc/x\"]","person_may_grant":true,"#,
            r#""previous":"0000000000000000000000000000000000000000000000000000000000000000"}"#,
        );
        assert_eq!(text.trim_end(), expected);
        assert_eq!(Record::from_line(&line).unwrap(), record);
    }

    #[test]
    fn every_event_comes_back_and_has_the_name_that_is_stored() {
        let hash = Hash::of(b"x");
        let events = [
            Event::Started { process: 1 },
            Event::refused(Some(Guarantee::PR7), "reason", "remedy"),
            Event::step_failed("view.bind /usr", "error"),
            Event::LimitHit {
                limit: "limits.memory".into(),
            },
            Event::Exited {
                code: None,
                signal: Some(9),
                duration_ms: 1,
                peak_memory_bytes: None,
            },
            Event::SandboxStarted { name: "n".into() },
            Event::SandboxEnded {
                name: "n".into(),
                reason: "r".into(),
            },
            Event::ExecStarted {
                exec: 1,
                command: vec!["c".into()],
            },
            Event::ExecEnded {
                exec: 1,
                code: None,
                signal: Some(9),
                error: String::new(),
                duration_ms: 1,
            },
            trusted(&AbsolutePath::root(), hash),
            untrusted(&AbsolutePath::root(), hash),
            Event::Collected {
                object: "o".into(),
                reason: "r".into(),
            },
            Event::LogRepaired {
                damaged_bytes: 1,
                damaged_sha256: hash,
                last_whole: hash,
            },
        ];
        for event in events {
            let record = record(event);
            let line = record.to_line().unwrap();
            assert_eq!(Record::from_line(&line).unwrap(), record);
            let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value["event"], record.event.name());
        }
    }

    #[test]
    fn long_events_are_clipped_with_a_marker_and_still_come_back() {
        for command in [
            vec!["x".repeat(3_000_000)],
            vec!["é".repeat(40); 100_000],
            vec!["\"".repeat(60_000)],
        ] {
            let planned = Event::RunPlanned {
                plan_digest: "d".into(),
                command,
                workspace: "/w".into(),
                guarantees: GuaranteeSummary::default(),
                notes: vec!["n".repeat(100_000); 50],
            };
            let line = record(planned).to_line().unwrap();
            assert!(line.len() <= LINE_BYTES_MAX, "{}", line.len());
            assert!(std::str::from_utf8(&line).unwrap().contains("more]"));
            assert_eq!(Record::from_line(&line).unwrap().seq, 7);
        }
    }

    #[test]
    fn a_later_version_is_refused() {
        let mut record = record(Event::Started { process: 1 });
        record.version = VERSION + 1;
        let line = record.to_line().unwrap();
        let later = LineError::LaterVersion {
            version: VERSION + 1,
        };
        assert_eq!(Record::from_line(&line), Err(later));
        assert_eq!(
            Record::from_line(b"{\"version\":9,\"news\":1}")
                .unwrap_err()
                .to_string(),
            "this line was written by a later stockade (version 9 of the log)"
        );
        assert_eq!(Record::from_line(&line[..40]), Err(LineError::NotARecord));
    }

    #[test]
    fn json_for_a_terminal_is_the_same_value_without_its_escapes() {
        let line = "{\"a\":\"\u{9b}31m\u{202e}é\"}";
        let shown = json_for_terminal(line);
        assert_eq!(shown, "{\"a\":\"\\u009b31m\\u202eé\"}");
        let value = |text| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&shown), value(line));
    }

    #[test]
    fn hashes_and_run_names_have_one_spelling() {
        let hash = Hash::of(b"");
        assert_eq!(
            hash.to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(Hash::parse(&hash.to_string().to_uppercase()), Some(hash));
        assert_eq!(Hash::parse("+1"), None);
        assert_eq!(Hash::parse(&"é".repeat(32)), None);
        let one = RunId::generate().unwrap();
        assert_eq!(one.as_str().len(), 12);
        assert_ne!(one, RunId::generate().unwrap());
    }
}
