//! What a push says before its pack: which references become what
//! (gitprotocol-pack(5), "Reference Update Request").
//!
//! Only what git itself sends is read; anything else is refused. Whether the
//! updates are permitted is left to the policy.

use super::packet::{self, Packet};

/// Largest command list with its shallow lines and options, in bytes.
pub const COMMANDS_BYTES_MAX: usize = 1024 * 1024;
/// Most references that one push updates.
pub const UPDATES_MAX: usize = 4096;
/// Most push options.
pub const OPTIONS_MAX: usize = 64;
/// Longest reference name, in bytes.
pub const REFERENCE_BYTES_MAX: usize = 1024;

/// Collects a command list that comes in pieces.
#[derive(Default)]
pub struct Collector {
    buffer: Vec<u8>,
    /// Up to here the buffer is whole packets.
    whole: usize,
}

/// A complete command list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commands {
    pub updates: Vec<Update>,
    pub report: Report,
    pub side_band: SideBand,
    pub hash: Hash,
    /// How many bytes of the stream are the command list.
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// A full name, `refs/…`.
    pub name: String,
    pub change: Change,
    /// The object it names before, in hexadecimal.
    pub old: String,
    /// The object it names afterwards, in hexadecimal.
    pub new: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Create,
    Move,
    Delete,
}

/// Whether the client wants to be told how each reference fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    Wanted,
    NotWanted,
}

/// Whether the client takes messages beside the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideBand {
    Wanted,
    NotWanted,
}

/// The hash function that names objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha1,
    Sha256,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCommands {
    #[error(transparent)]
    Packet(#[from] packet::BadPacket),
    #[error("the list of commands is longer than {COMMANDS_BYTES_MAX} bytes")]
    TooLong,
    #[error("more than {UPDATES_MAX} references are updated at once")]
    TooMany,
    #[error("more than {OPTIONS_MAX} push options")]
    TooManyOptions,
    #[error("a command is not `old new reference`")]
    Malformed,
    #[error("a reference has a name that git does not allow")]
    BadReference,
    #[error("a reference is named twice")]
    Twice,
    #[error("signed pushes (git push --signed) are not supported")]
    Signed,
    #[error("the hash function is not known")]
    UnknownHash,
}

impl Commands {
    /// Whether a pack follows: git sends none when it only deletes.
    pub fn have_pack(&self) -> bool {
        let needs_objects = |update: &Update| update.change != Change::Delete;
        self.updates.iter().any(needs_objects)
    }
}

impl Hash {
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

impl Collector {
    /// Takes the next piece. Once the list is complete it is returned with all
    /// that was collected, of which the first `bytes` are the list.
    pub fn feed(&mut self, piece: &[u8]) -> Result<Option<(Commands, Vec<u8>)>, BadCommands> {
        self.buffer.extend_from_slice(piece);
        while let Some((packet, bytes)) = packet::parse(&self.buffer[self.whole..])? {
            self.whole += bytes;
            // Only a flush can complete the list, so that many small pieces
            // do not cost more than a few large ones.
            if packet == Packet::Flush
                && let Some(commands) = parse(&self.buffer)?
            {
                return Ok(Some((commands, std::mem::take(&mut self.buffer))));
            }
            if self.whole > COMMANDS_BYTES_MAX {
                return Err(BadCommands::TooLong);
            }
        }
        Ok(None)
    }

    /// Whether nothing has come yet.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// Reads the command list at the start of `input`; `None` when more of it is
/// to come.
pub fn parse(input: &[u8]) -> Result<Option<Commands>, BadCommands> {
    let mut reader = Reader { input, used: 0 };
    let Some(lines) = reader.section()? else {
        return Ok(None);
    };
    let mut commands = Commands {
        updates: Vec::new(),
        report: Report::NotWanted,
        side_band: SideBand::NotWanted,
        hash: Hash::Sha1,
        bytes: 0,
    };
    let mut options = Options::NotSent;
    let (shallow, list) = split_shallow(&lines);
    if let Some(first) = list.first() {
        let (command, capabilities) = split_capabilities(first);
        options = commands.read_capabilities(capabilities)?;
        commands.add(command)?;
        for line in &list[1..] {
            commands.add(line)?;
        }
    }
    for line in shallow {
        object_name(&line[SHALLOW.len()..], commands.hash)?;
    }
    if options == Options::Sent {
        let Some(options) = reader.section()? else {
            return Ok(None);
        };
        if options.len() > OPTIONS_MAX {
            return Err(BadCommands::TooManyOptions);
        }
    }
    commands.bytes = reader.used;
    Ok(Some(commands))
}

#[derive(PartialEq, Eq)]
enum Options {
    Sent,
    NotSent,
}

const SHALLOW: &[u8] = b"shallow ";

struct Reader<'a> {
    input: &'a [u8],
    used: usize,
}

impl<'a> Reader<'a> {
    /// The lines up to a flush packet, which is consumed.
    fn section(&mut self) -> Result<Option<Vec<&'a [u8]>>, BadCommands> {
        let mut lines = Vec::new();
        loop {
            if self.used > COMMANDS_BYTES_MAX {
                return Err(BadCommands::TooLong);
            }
            let Some((packet, bytes)) = packet::parse(&self.input[self.used..])? else {
                return Ok(None);
            };
            self.used += bytes;
            match packet {
                Packet::Flush => return Ok(Some(lines)),
                Packet::Data(line) if !line.is_empty() => {
                    lines.push(line.strip_suffix(b"\n").unwrap_or(line));
                }
                _ => return Err(BadCommands::Malformed),
            }
            // Shallow lines come before the commands; each kind is bounded.
            if lines.len() > 2 * UPDATES_MAX {
                return Err(BadCommands::TooMany);
            }
        }
    }
}

impl Commands {
    /// Keeps what the answer depends on; other capabilities pass.
    fn read_capabilities(&mut self, text: &[u8]) -> Result<Options, BadCommands> {
        let mut options = Options::NotSent;
        for capability in text.split(|byte| *byte == b' ') {
            match capability {
                b"report-status" | b"report-status-v2" => self.report = Report::Wanted,
                b"side-band-64k" | b"side-band" => self.side_band = SideBand::Wanted,
                b"push-options" => options = Options::Sent,
                b"object-format=sha1" => self.hash = Hash::Sha1,
                b"object-format=sha256" => self.hash = Hash::Sha256,
                other if other.starts_with(b"object-format") => {
                    return Err(BadCommands::UnknownHash);
                }
                other if other.starts_with(b"push-cert") => return Err(BadCommands::Signed),
                _ => {}
            }
        }
        Ok(options)
    }

    fn add(&mut self, line: &[u8]) -> Result<(), BadCommands> {
        if line.starts_with(b"push-cert") {
            return Err(BadCommands::Signed);
        }
        if self.updates.len() == UPDATES_MAX {
            return Err(BadCommands::TooMany);
        }
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let mut next = || parts.next().ok_or(BadCommands::Malformed);
        let (old, new, name) = (next()?, next()?, next()?);
        let (old, new) = (object_name(old, self.hash)?, object_name(new, self.hash)?);
        let is_zero = |name: &str| name.bytes().all(|digit| digit == b'0');
        let change = match (is_zero(old), is_zero(new)) {
            (true, true) => return Err(BadCommands::Malformed),
            (true, false) => Change::Create,
            (false, true) => Change::Delete,
            (false, false) => Change::Move,
        };
        let name = reference(name).ok_or(BadCommands::BadReference)?;
        if self.updates.iter().any(|update| update.name == name) {
            return Err(BadCommands::Twice);
        }
        self.updates.push(Update {
            name: name.to_owned(),
            change,
            old: old.to_owned(),
            new: new.to_owned(),
        });
        Ok(())
    }
}

fn split_shallow<'a, 'b>(lines: &'b [&'a [u8]]) -> (&'b [&'a [u8]], &'b [&'a [u8]]) {
    let is_shallow = |line: &&[u8]| line.starts_with(SHALLOW);
    let count = lines.iter().take_while(|line| is_shallow(line)).count();
    lines.split_at(count)
}

fn split_capabilities(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|byte| *byte == 0) {
        Some(end) => (&line[..end], &line[end + 1..]),
        None => (line, b""),
    }
}

fn object_name(text: &[u8], hash: Hash) -> Result<&str, BadCommands> {
    let digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if text.len() != 2 * hash.bytes() || !text.iter().all(digit) {
        return Err(BadCommands::Malformed);
    }
    str::from_utf8(text).map_err(|_| BadCommands::Malformed)
}

/// A full name as git-check-ref-format(1) wants it.
fn reference(name: &[u8]) -> Option<&str> {
    let name = str::from_utf8(name).ok()?;
    let forbidden = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let segment =
        |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let good = name.len() <= REFERENCE_BYTES_MAX
        && name.starts_with("refs/")
        && !name.contains(forbidden)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && name.split('/').all(segment);
    good.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: &str = "0000000000000000000000000000000000000000";
    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";

    fn list(lines: &[String]) -> Vec<u8> {
        let mut output = Vec::new();
        for line in lines {
            packet::write_data(&mut output, line.as_bytes());
        }
        packet::write_flush(&mut output);
        output
    }

    fn parse_one(line: String) -> Result<Commands, BadCommands> {
        parse(&list(&[line])).map(|commands| commands.expect("the list is whole"))
    }

    #[test]
    fn what_git_sends_is_read() {
        let mut input = list(&[
            format!("shallow {TWO}"),
            format!(
                "{ONE} {TWO} refs/heads/main\0 report-status-v2 side-band-64k object-format=sha1 agent=git/2"
            ),
            format!("{ZERO} {TWO} refs/tags/v1"),
            format!("{ONE} {ZERO} refs/heads/old\n"),
        ]);
        let bytes = input.len();
        for end in 0..bytes {
            assert_eq!(parse(&input[..end]), Ok(None));
        }
        input.extend_from_slice(b"PACK");
        let commands = parse(&input).unwrap().unwrap();
        assert_eq!(commands.bytes, bytes);
        assert!(commands.have_pack());
        assert_eq!(commands.report, Report::Wanted);
        assert_eq!(commands.side_band, SideBand::Wanted);
        let seen: Vec<_> = commands
            .updates
            .iter()
            .map(|u| (&*u.name, u.change))
            .collect();
        assert_eq!(
            seen,
            [
                ("refs/heads/main", Change::Move),
                ("refs/tags/v1", Change::Create),
                ("refs/heads/old", Change::Delete),
            ]
        );
    }

    #[test]
    fn options_follow_in_their_own_section() {
        let mut input = list(&[format!("{ZERO} {ONE} refs/heads/a\0push-options")]);
        assert_eq!(parse(&input), Ok(None));
        input.extend(list(&["ci.skip".to_owned()]));
        assert_eq!(parse(&input).unwrap().unwrap().bytes, input.len());
    }

    #[test]
    fn an_empty_list_is_what_git_probes_with() {
        let commands = parse(b"0000").unwrap().unwrap();
        assert!(commands.updates.is_empty() && !commands.have_pack());
    }

    #[test]
    fn anything_else_is_refused() {
        for (line, problem) in [
            (
                format!("{ZERO} {ZERO} refs/heads/a"),
                BadCommands::Malformed,
            ),
            (format!("{ONE} {TWO}"), BadCommands::Malformed),
            (format!("{ONE} {TWO}0 refs/heads/a"), BadCommands::Malformed),
            (
                format!("{} {TWO} refs/heads/a", "A".repeat(40)),
                BadCommands::Malformed,
            ),
            (format!("{ONE} {TWO} main"), BadCommands::BadReference),
            (
                format!("{ONE} {TWO} refs/heads/../x"),
                BadCommands::BadReference,
            ),
            (
                format!("{ONE} {TWO} refs/heads/a b"),
                BadCommands::BadReference,
            ),
            (
                format!("{ONE} {TWO} refs/heads/a.lock"),
                BadCommands::BadReference,
            ),
            (format!("{ONE} {TWO} refs//a"), BadCommands::BadReference),
            ("push-cert\0".to_owned(), BadCommands::Signed),
            (
                format!("{ONE} {TWO} refs/heads/a\0push-cert=x"),
                BadCommands::Signed,
            ),
            (
                format!("{ONE} {TWO} refs/heads/a\0object-format=md5"),
                BadCommands::UnknownHash,
            ),
        ] {
            assert_eq!(parse_one(line.clone()), Err(problem), "{line}");
        }
        let twice = vec![format!("{ONE} {TWO} refs/heads/a"); 2];
        assert_eq!(parse(&list(&twice)), Err(BadCommands::Twice));
        let late = [
            format!("{ONE} {TWO} refs/heads/a"),
            format!("shallow {ONE}"),
        ];
        assert_eq!(parse(&list(&late)), Err(BadCommands::Malformed));
        assert_eq!(parse(b"0001"), Err(BadCommands::Malformed));
        let many: Vec<String> = (0..=UPDATES_MAX)
            .map(|n| format!("{ONE} {TWO} refs/heads/{n}"))
            .collect();
        assert_eq!(parse(&list(&many)), Err(BadCommands::TooMany));
    }

    proptest::proptest! {
        #[test]
        fn pieces_make_no_difference(text: Vec<u8>, options: bool, border in 0_usize..300) {
            let capability = if options { "push-options" } else { "quiet" };
            let mut input = list(&[format!("{ONE} {TWO} refs/heads/a\0{capability}")]);
            input.extend_from_slice(&text);
            let whole = Collector::default().feed(&input).map(|done| done.map(|(all, _)| all));
            let (first, second) = input.split_at(border.min(input.len()));
            let mut collector = Collector::default();
            let parts = match collector.feed(first) {
                Ok(None) => collector.feed(second).map(|done| done.map(|(all, _)| all)),
                early => early.map(|done| done.map(|(all, _)| all)),
            };
            proptest::prop_assert_eq!(parts, whole);
        }
    }
}
