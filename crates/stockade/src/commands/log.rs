//! `stockade log`: shows, follows and verifies the event log.
//!
//! Records are shown as they are stored; everything in them that a terminal
//! would act on is escaped.

mod network;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use stockade_engine::events::{Event, Hash, Record, json_for_terminal};
use stockade_engine::log::{Entry, Filter, Verified, VerifyError, read, verify};
use stockade_engine::state::{Places, StateDirectory};
use stockade_policy::path::printable;

use crate::exit::ExitCode;

/// How often a followed log is looked at.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// Records shown before following, unless `-n` says otherwise.
const FOLLOW_RECORDS: usize = 10;

/// Show what runs did, which rule spoke, and whether the log is intact
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show what runs did, which rule spoke, and whether the log is intact.\n\n\
        Each decision of each run is one record, oldest first. A record names the SHA-256 of the \
        line before it, so a line that was changed, removed or moved shows up with --verify. What \
        a chain cannot show by itself is that lines were cut off at its end: keep the head that \
        --verify prints somewhere else, and pass it later as --anchor.",
    after_long_help = "Examples:\n  \
        stockade log -n 20                     the last twenty records\n  \
        stockade log --run 3f9k                all of the run whose id starts so\n  \
        stockade log --follow --json           records as they are added, for a program\n  \
        stockade log --verify                  check the chain and print its head\n  \
        stockade log --verify --anchor HASH    also check that nothing before HASH was cut\n\n\
        Exit code: 0, or 1 when --verify finds the log changed or damaged."
)]
pub struct Args {
    /// Print each record as one line of JSON, as it is stored
    #[arg(long)]
    json: bool,
    /// Go on with records as they are added, until interrupted
    #[arg(long, short, conflicts_with = "verify")]
    follow: bool,
    /// Only records of the run whose id starts so
    #[arg(long, value_name = "ID", conflicts_with = "verify")]
    run: Option<String>,
    /// Only what the network was used for: decisions, ends of connections,
    /// credentials, alerts, approvals
    #[arg(long, conflicts_with = "verify")]
    network: bool,
    /// Only the last N records
    #[arg(short = 'n', value_name = "N", conflicts_with = "verify")]
    number: Option<usize>,
    /// Check that no line was changed, removed or moved, and print the head
    #[arg(long)]
    verify: bool,
    /// A head printed earlier, which must still be in the log
    #[arg(long, value_name = "HASH", requires = "verify", value_parser = parse_hash)]
    anchor: Option<Hash>,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let mut output = io::BufWriter::new(io::stdout().lock());
    let result = if arguments.verify {
        print_verified(&mut output, &state, arguments)
    } else {
        print_records(&mut output, &state, arguments).map(|()| ExitCode::SUCCESS)
    };
    match result.and_then(|code| Ok(output.flush().map(|()| code)?)) {
        // A reader such as `head` has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

fn parse_hash(text: &str) -> Result<Hash, String> {
    Hash::parse(text).ok_or_else(|| "expected 64 hexadecimal digits".to_owned())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn print_records(
    output: &mut impl Write,
    state: &StateDirectory,
    arguments: &Args,
) -> anyhow::Result<()> {
    let mut records = read(
        state,
        Filter {
            run: arguments.run.clone(),
        },
    )?;
    let number = match arguments.number {
        None if arguments.follow => Some(FOLLOW_RECORDS),
        number => number,
    };
    if !arguments.json {
        let head = match arguments.network {
            true => network::head(),
            false => row(["TIME", "RUN", "EVENT", "OBJECT", "RULE"]),
        };
        writeln!(output, "{head}")?;
    }
    match number {
        None => {
            for entry in records.by_ref() {
                print_entry(output, &entry?, arguments)?;
            }
        }
        Some(number) => {
            let mut last = VecDeque::new();
            for entry in records.by_ref() {
                let entry = entry?;
                if !is_wanted(&entry, arguments) {
                    continue;
                }
                last.push_back(entry);
                if last.len() > number {
                    last.pop_front();
                }
            }
            for entry in &last {
                print_entry(output, entry, arguments)?;
            }
        }
    }
    if !arguments.follow {
        return Ok(());
    }
    let mut follow = records.follow();
    loop {
        output.flush()?;
        thread::sleep(FOLLOW_INTERVAL);
        for entry in follow.poll()? {
            print_entry(output, &entry, arguments)?;
        }
    }
}

/// Lines that are no records are never filtered away.
fn is_wanted(entry: &Entry, arguments: &Args) -> bool {
    match entry {
        Entry::Record { record, .. } => !arguments.network || network::is_about(&record.event),
        Entry::Unreadable { .. } => true,
    }
}

fn print_entry(output: &mut impl Write, entry: &Entry, arguments: &Args) -> io::Result<()> {
    if !is_wanted(entry, arguments) {
        return Ok(());
    }
    match entry {
        Entry::Record { line, .. } if arguments.json => {
            writeln!(output, "{}", json_for_terminal(line))
        }
        Entry::Record { record, .. } if arguments.network => {
            writeln!(output, "{}", network::record_row(record))
        }
        Entry::Record { record, .. } => writeln!(output, "{}", record_row(record)),
        // In JSON output every line is a record; `--verify` tells the rest.
        Entry::Unreadable { .. } if arguments.json => Ok(()),
        Entry::Unreadable { file, line, text } => {
            writeln!(output, "{file}:{line} is not a record: {text}")
        }
    }
}

fn record_row(record: &Record) -> String {
    let run = record
        .run
        .as_ref()
        .map_or_else(|| "-".to_owned(), ToString::to_string);
    let (object, rule) = describe(&record.event);
    let [time, object, rule] =
        [&record.time, &object, &rule].map(|text| printable(text.as_bytes()));
    row([&time, &run, record.event.name(), &object, &rule])
}

/// Wide enough for what is usual; longer cells push the rest to the right
/// rather than being cut.
fn row([time, run, event, object, rule]: [&str; 5]) -> String {
    format!("{time:<24}  {run:<12}  {event:<12}  {object:<40}  {rule}")
        .trim_end()
        .to_owned()
}

/// The columns `OBJECT` and `RULE`.
fn describe(event: &Event) -> (String, String) {
    let none = String::new;
    match event {
        Event::RunPlanned {
            command,
            plan_digest,
            notes,
            ..
        } => {
            let weakened = if notes.is_empty() { "" } else { ", with notes" };
            (command.join(" "), format!("plan {plan_digest}{weakened}"))
        }
        Event::Started { process } => (format!("process {process}"), none()),
        Event::Allowed(decision) | Event::Denied(decision) => (
            format!("{} {}", decision.kind.name(), decision.object),
            format!("{} ({})", decision.rule, decision.origin),
        ),
        Event::Refused {
            guarantee, reason, ..
        } => (reason.clone(), guarantee.clone().unwrap_or_default()),
        Event::StepFailed { step, error } => (format!("{step}: {error}"), none()),
        Event::LimitHit { limit } => (none(), limit.clone()),
        Event::Exited {
            code,
            signal,
            duration_ms,
            ..
        } => {
            let how = how(*code, *signal);
            (format!("{how} after {duration_ms} ms"), none())
        }
        Event::SandboxStarted { name } => (name.clone(), none()),
        Event::SandboxEnded { name, reason } => (format!("{name}: {reason}"), none()),
        Event::ExecStarted { exec, command } => (format!("{exec}: {}", command.join(" ")), none()),
        Event::ExecEnded {
            exec,
            code,
            signal,
            error,
            duration_ms,
        } => {
            let how = match error.is_empty() {
                true => how(*code, *signal),
                false => error.clone(),
            };
            (format!("{exec}: {how} after {duration_ms} ms"), none())
        }
        Event::NetworkDecided(_)
        | Event::CredentialUsed { .. }
        | Event::NetworkAlert { .. }
        | Event::NetworkClosed(_)
        | Event::NetworkLost { .. }
        | Event::Approval(_)
        | Event::PolicyReloaded { .. } => network::describe(event),
        Event::Trusted { path, sha256 } | Event::Untrusted { path, sha256 } => {
            (path.clone(), format!("sha256 {sha256}"))
        }
        Event::Collected { object, reason } => (format!("{object}: {reason}"), none()),
        Event::LogRepaired { damaged_bytes, .. } => {
            (format!("{damaged_bytes} damaged bytes before this"), none())
        }
    }
}

fn how(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

fn print_verified(
    output: &mut impl Write,
    state: &StateDirectory,
    arguments: &Args,
) -> anyhow::Result<ExitCode> {
    match verify(state, arguments.anchor) {
        Ok(verified) if arguments.json => {
            let tears: Vec<_> = verified
                .tears
                .iter()
                .map(|tear| {
                    serde_json::json!({
                        "file": tear.file, "line": tear.line, "damaged_bytes": tear.damaged_bytes,
                    })
                })
                .collect();
            let value = serde_json::json!({
                "version": 1, "intact": true, "lines": verified.lines, "files": verified.files,
                "first_seq": verified.first_seq, "last_seq": verified.last_seq,
                "head": verified.head, "tears": tears,
            });
            writeln!(output, "{value}")?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(verified) => {
            print_summary(output, &verified)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(VerifyError::Broken(broken)) => {
            if arguments.json {
                let value = serde_json::json!({
                    "version": 1, "intact": false, "file": broken.file, "line": broken.line,
                    "reason": broken.reason,
                });
                writeln!(output, "{value}")?;
            } else {
                writeln!(output, "The log in {} is not intact.", state.path())?;
                writeln!(output, "  {broken}")?;
            }
            Ok(ExitCode::FAILURE)
        }
        Err(VerifyError::Log(error)) => Err(error).context("the log could not be verified"),
    }
}

fn print_summary(output: &mut impl Write, verified: &Verified) -> io::Result<()> {
    let Verified {
        lines,
        files,
        first_seq,
        last_seq,
        head,
        tears,
    } = verified;
    writeln!(
        output,
        "The chain holds: records {first_seq} to {last_seq} (lines: {lines}, files: {files})."
    )?;
    for tear in tears {
        writeln!(
            output,
            "A crash cut a write short, which {}:{} records ({} bytes).",
            tear.file, tear.line, tear.damaged_bytes
        )?;
    }
    writeln!(output, "head {head}")?;
    writeln!(
        output,
        "Keep the head elsewhere: with `--verify --anchor {head}` it shows later\nthat nothing up \
         to here was cut off or rewritten."
    )
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use stockade_engine::events::{Decision, ObjectKind, RunId, VERSION, time_text};

    use super::*;

    #[test]
    fn a_row_has_the_rule_and_no_escape() {
        let record = Record {
            version: VERSION,
            seq: 1,
            time: time_text(SystemTime::UNIX_EPOCH),
            run: Some(RunId::from_random(0)),
            // As an edited log could hold it, past the escaping of new events.
            event: Event::Denied(Decision {
                object: "/x\u{1b}[2J\n".to_owned(),
                kind: ObjectKind::Write,
                rule: "filesystem.write".to_owned(),
                origin: "built-in".to_owned(),
                smallest_grant: None,
                person_may_grant: false,
            }),
            previous: Hash::ZERO,
        };
        assert_eq!(
            record_row(&record),
            "1970-01-01T00:00:00.000Z  000000000000  denied        write /x\\u{1b}[2J\\n\
             \u{20}                      filesystem.write (built-in)"
        );
    }
}
