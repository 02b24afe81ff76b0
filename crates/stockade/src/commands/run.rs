//! `stockade run`: runs a command in a fresh sandbox.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;
use stockade_engine::notice::Notices;
use stockade_engine::outcome::{EXIT_NOT_FOUND, EXIT_REFUSED, End};
use stockade_engine::run::{
    Corpus, Finished, Planned, Prepared, Refusal, Request, plan_to_run, run as run_planned,
};
use stockade_policy::path::printable;
use stockade_sys::rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use stockade_sys::rustix::io::Errno;

use super::options::PolicyOptions;
use super::review::{self, Ending};
use crate::exit::ExitCode;
use crate::show;

/// Run a command in a fresh sandbox
#[derive(Debug, Default, clap::Args)]
#[command(
    long_about = "Run a command in a fresh sandbox.\n\n\
        The command works as it does outside, except that it can write only the project and \
        private temporary files, sees no credential, no other process and no service of this \
        machine, and reaches only hosts that a policy names (none without one). The run ends when \
        the command ends: whatever it left in the background has half a second to finish and is then killed.",
    after_long_help = "Examples:\n  \
        stockade run -- npm test\n  \
        stockade run --read toolchains -- cargo test\n  \
        stockade run --allow registry.example.com -- npm ci\n  \
        stockade run --publish 3000 -- npm run dev\n  \
        stockade run --wall-time 10m --memory 2GiB -- make -j4\n  \
        stockade run --report result.json -- pytest\n\n\
        Exit code:\n  \
        the command's own; 128+n when signal n ended it;\n  \
        124  the wall-time limit ended it\n  \
        125  stockade refused or failed, and nothing ran\n  \
        126  the command was found and could not be executed\n  \
        127  the command was not found"
)]
pub struct Args {
    #[command(flatten)]
    policy: PolicyOptions,
    /// Run in DIR, which must lie in the project
    #[arg(long, short = 'C', value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Go on from a snapshot or a fork of the workspace, in review mode
    #[arg(long, value_name = "NAME")]
    on: Option<String>,
    /// Write how it ended to FILE as JSON: exit or signal, limit, guarantees
    /// with evidence, plan digest, duration, peak memory
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Say nothing on standard error but refusals
    #[arg(long, short)]
    quiet: bool,
    /// Say how each guarantee is held before the command starts
    #[arg(long, short, conflicts_with = "quiet")]
    verbose: bool,
    /// Test aid: make the named step fail, to see that nothing runs
    #[arg(long, value_name = "STEP", hide = true)]
    fail_step: Option<String>,
    /// For `doctor --attack`: also grant the program of this process
    #[arg(long, hide = true)]
    attack_corpus: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    /// The arguments of `stockade run -- COMMAND…`: no option at all.
    pub fn plain(command: Vec<OsString>) -> Self {
        Self {
            command,
            ..Self::default()
        }
    }
}

/// Runs the command and returns its exit code. `prepared` was made before the
/// arguments were looked at, because the kernel takes its time.
pub fn run(arguments: &Args, prepared: Result<Prepared, Refusal>) -> anyhow::Result<ExitCode> {
    let request = Request {
        argv: arguments.command.clone(),
        directory: arguments.directory.clone(),
        selection: arguments.policy.selection(),
        fail_step: arguments.fail_step.clone(),
        corpus: if arguments.attack_corpus {
            Corpus::Granted
        } else {
            Corpus::Absent
        },
        on: arguments.on.clone(),
        notices: match arguments.quiet {
            true => Notices::Silent,
            false => Notices::Said,
        },
        ..Request::default()
    };
    let voice = if arguments.quiet {
        Voice::Quiet
    } else if arguments.verbose {
        Voice::Verbose
    } else {
        Voice::Normal
    };
    perform(&request, prepared, arguments.report.as_deref(), voice)
}

/// How much is said besides what the command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    Quiet,
    Normal,
    Verbose,
}

/// Plans, runs, reports.
pub fn perform(
    request: &Request,
    prepared: Result<Prepared, Refusal>,
    report: Option<&Path>,
    voice: Voice,
) -> anyhow::Result<ExitCode> {
    // Opened first: a run whose report cannot be written is not started.
    let report = report
        .map(|path| create(path).with_context(|| format!("cannot write {}", path.display())))
        .transpose()?;
    match prepared.and_then(|prepared| attempt(request, prepared, voice)) {
        Ok((planned, finished)) => {
            let is_said = voice != Voice::Quiet;
            let ending = match &finished.layer {
                Some(layer) if is_said || report.is_some() => Some(Ending::of(&planned, layer)),
                _ => None,
            };
            if let Some(file) = report {
                write_report(file, &report_json(&planned, &finished, ending.as_ref())?)?;
            }
            if let Some(ending) = ending
                && is_said
            {
                ending.conclude(&planned);
            }
            let code = code(finished.outcome.exit_code());
            // The process is about to end: taking the plan apart would be work
            // for nothing.
            std::mem::forget((planned, finished));
            Ok(code)
        }
        Err(refusal) => {
            if let Some(file) = report {
                write_report(file, &refusal_json(&refusal))?;
            }
            Err(refusal.into())
        }
    }
}

/// Creates or empties the file of a report. No link is followed, since an
/// earlier run could have made it; below /dev and /proc none can, and there
/// links are how a caller names its own descriptors.
pub fn create(path: &Path) -> anyhow::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let resolve = match path.starts_with("/dev") || path.starts_with("/proc") {
        true => ResolveFlags::empty(),
        false => ResolveFlags::NO_SYMLINKS,
    };
    match openat2(CWD, path, flags, Mode::from_raw_mode(0o666), resolve) {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP) => {
            bail!("there is a link in the path\n  remedy: name the file by its real path")
        }
        Err(error) => Err(error.into()),
    }
}

/// Plans, runs and says how it ended.
pub fn attempt(
    request: &Request,
    mut prepared: Prepared,
    voice: Voice,
) -> Result<(Planned, Finished), Refusal> {
    let planned = plan_to_run(request, &mut prepared)?;
    if voice != Voice::Quiet {
        for note in &planned.plan.notes {
            show::line(&format!("stockade: note: {note}"));
        }
    }
    if voice == Voice::Verbose {
        for (guarantee, hold) in &planned.plan.guarantees {
            show::line(&format!("stockade: {guarantee}: {}", held(hold)));
        }
    }
    let finished = run_planned(request, &planned, prepared)?;
    if let End::NotExecuted { errno } = finished.outcome.end {
        // A refusal, so it is said also when all else is quiet.
        show::line(&not_executed(request, errno, finished.outcome.exit_code()));
    }
    if voice != Voice::Quiet {
        say_how_it_ended(&finished);
    }
    Ok((planned, finished))
}

fn held(hold: &stockade_policy::plan::Hold) -> String {
    use stockade_policy::plan::Hold;
    match hold {
        Hold::Held { by, .. } => format!("held by {by}"),
        Hold::Partial { by, lost, .. } => format!("in part, by {by}; lost: {lost}"),
        Hold::NotHeld { because } => format!("not held: {because}"),
    }
}

fn not_executed(request: &Request, errno: i32, exit_code: i32) -> String {
    let name = request
        .argv
        .first()
        .map(|name| printable(name.as_bytes()))
        .unwrap_or_default();
    match exit_code {
        EXIT_NOT_FOUND => format!("stockade: the command {name:?} was not found inside"),
        _ => {
            let error = std::io::Error::from_raw_os_error(errno);
            format!("stockade: the command {name:?} cannot be executed: {error}")
        }
    }
}

fn say_how_it_ended(finished: &Finished) {
    for limit in &finished.outcome.limits_hit {
        show::line(&format!("stockade: the limit {} was reached", limit.key()));
    }
    for denial in &finished.denials {
        show::denial(denial);
    }
    if let Some(network) = &finished.network {
        super::network::say(network);
    }
    if let Some(names) = &finished.names {
        super::names::say(names);
    }
    if let Some(failure) = &finished.failure {
        show::line(&format!(
            "stockade: the run was ended because stockade failed: {failure}"
        ));
    } else if finished.outcome.end == End::Lost {
        show::line(
            "stockade: the sandbox was killed from outside; how the command ended is unknown",
        );
    }
    if let Some(error) = &finished.log_error {
        show::line(&format!(
            "stockade: the end of the run is not in the log: {error}"
        ));
    }
}

fn report_json(
    planned: &Planned,
    finished: &Finished,
    ending: Option<&Ending<'_>>,
) -> anyhow::Result<serde_json::Value> {
    let mut report = serde_json::to_value(finished.outcome.report(&planned.plan))?;
    let denials: Vec<_> = finished
        .denials
        .iter()
        .map(|denial| denial.record())
        .collect();
    if let Some(object) = report.as_object_mut() {
        object.insert("denials".into(), serde_json::to_value(denials)?);
        object.insert("network".into(), serde_json::to_value(&finished.network)?);
        object.insert("workspace".into(), serde_json::to_value(&finished.names)?);
        object.insert("layer".into(), review::report(planned, ending));
    }
    Ok(report)
}

fn refusal_json(refusal: &Refusal) -> serde_json::Value {
    let unenforceable: Vec<_> = match refusal {
        Refusal::Unenforceable(items) => items
            .iter()
            .map(|item| {
                json!({
                    "guarantee": item.guarantee.id(),
                    "wall": item.wall,
                    "reason": item.reason,
                    "remedy": item.remedy,
                })
            })
            .collect(),
        _ => Vec::new(),
    };
    json!({
        "version": 1,
        "outcome": "refused",
        "exit_code": EXIT_REFUSED,
        "message": refusal.to_string(),
        "unenforceable": unenforceable,
    })
}

fn write_report(mut file: File, report: &serde_json::Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.write_all(b"\n"))
        .context("cannot write the report")
}

/// Exit codes fit a byte: waitpid(2) gives no more.
pub fn code(code: i32) -> ExitCode {
    ExitCode::from((code & 0xff) as u8)
}
