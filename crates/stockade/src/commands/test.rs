//! `stockade test`: asks the plan one question.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use serde_json::json;
use stockade_engine::run::{Request, plan};
use stockade_policy::decide::{Decision, Question, decide_at};
use stockade_policy::path::{AbsolutePath, printable};

use super::options::PolicyOptions;
use crate::exit::ExitCode;

/// Ask whether something is allowed, and by which rule
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Ask whether something is allowed, and by which rule. The answer comes from the \
        plan that `stockade run` would apply.",
    after_long_help = "Examples:\n  \
        stockade test read ~/.ssh/id_ed25519\n  \
        stockade test write src/main.rs\n  \
        stockade test exec /usr/bin/git\n  \
        stockade test connect example.com:443\n\n\
        Exit code: 0 allowed, 1 denied, 125 the question could not be answered."
)]
pub struct Args {
    #[command(flatten)]
    policy: PolicyOptions,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    /// What is to be done
    #[arg(value_enum)]
    action: Action,
    /// A path, or HOST:PORT
    target: OsString,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Action {
    Read,
    Write,
    Exec,
    Connect,
}

/// Prints the answer.
pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let request = Request {
        argv: vec![OsString::from("true")],
        directory: None,
        selection: arguments.policy.selection(),
        ..Request::default()
    };
    let planned = plan(&request)?;
    let question = question(arguments)?;
    let decision = decide_at(&planned.plan, &question, now_unix());
    let target = printable(arguments.target.as_bytes());
    if arguments.json {
        let answer = match &decision {
            Decision::Permit { rule, note } => json!({
                "version": 1, "allowed": true, "rule": rule.id, "origin": rule.origin,
                "reason": rule.reason, "note": note,
            }),
            Decision::Denied(denial) => json!({
                "version": 1, "allowed": false, "denial": denial.record(),
            }),
        };
        println!("{answer}");
    } else {
        match &decision {
            Decision::Permit { rule, note } => {
                println!("allowed  {target}");
                println!("  rule   {} ({}): {}", rule.id, rule.origin, rule.reason);
                if let Some(note) = note {
                    println!("  note   {note}");
                }
            }
            Decision::Denied(denial) => {
                println!("denied   {target}");
                println!("  why    {}", denial.reason);
                println!(
                    "  rule   {} ({}): {}",
                    denial.rule.id, denial.rule.origin, denial.rule.reason
                );
                let remedy = denial
                    .remedy()
                    .unwrap_or_else(|| "no policy of yours can".into());
                println!("  allow  {}", remedy.replace('\n', "\n         "));
            }
        }
    }
    let allowed = matches!(decision, Decision::Permit { .. });
    Ok(if allowed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Rules may expire.
fn now_unix() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(u64::MAX, |since| since.as_secs())
}

fn question(arguments: &Args) -> anyhow::Result<Question> {
    if matches!(arguments.action, Action::Connect) {
        let text = arguments
            .target
            .to_str()
            .context("a host name is plain ASCII")?;
        let Some((host, port)) = text.rsplit_once(':') else {
            bail!("`{text}` is no HOST:PORT");
        };
        let port = port
            .parse()
            .with_context(|| format!("`{port}` is no port"))?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        return Ok(Question::Connect { host, port });
    }
    let path = resolve(&arguments.target)?;
    Ok(match arguments.action {
        Action::Read => Question::Read(path),
        Action::Write => Question::Write(path),
        _ => Question::Execute(path),
    })
}

/// The path with links resolved as far as it exists; the rest is taken as it
/// stands.
fn resolve(target: &OsStr) -> anyhow::Result<AbsolutePath> {
    let mut path = PathBuf::from(target);
    if let Ok(rest) = path.strip_prefix("~") {
        let home = std::env::var_os("HOME").context("HOME is not set")?;
        path = Path::new(&home).join(rest);
    }
    let mut existing = std::env::current_dir()?.join(path);
    let mut rest = Vec::new();
    loop {
        if let Ok(resolved) = std::fs::canonicalize(&existing) {
            let base = AbsolutePath::parse(resolved.into_os_string().into_vec())?;
            rest.reverse();
            return Ok(base.join(rest.join(&b'/'))?);
        }
        let Some(name) = existing.file_name() else {
            bail!("`{}` cannot be resolved", printable(target.as_bytes()));
        };
        rest.push(name.as_bytes().to_vec());
        if !existing.pop() {
            bail!("`{}` cannot be resolved", printable(target.as_bytes()));
        }
    }
}
