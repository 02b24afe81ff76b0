//! Runs the corpus: one sandbox for each kind of need, then the check outside.
//!
//! How a sandbox is started is the caller's business; it gets a [`Start`] and
//! returns what was printed.

use crate::bait::{Bait, Terminal};
use crate::inside::{Line, ON_TERMINAL, STARTED};
use crate::{Attack, Needs, Row, SmallLimits, Stage, Table, Verdict, all};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long one sandbox may take, all its attacks together.
const PATIENCE: Duration = Duration::from_secs(180);

/// Limits that are small enough to be tried out, and large enough for the
/// attacks themselves.
pub const SMALL: SmallLimits = SmallLimits {
    memory_bytes: 192 << 20,
    processes: 64,
    open_files: 256,
    disk_bytes: 16 << 20,
    disk_inodes: 4096,
};

/// One sandbox to be started.
pub struct Start {
    pub needs: Needs,
    /// Arguments of the hidden subcommand inside.
    pub arguments: Vec<String>,
    /// The directory that the policy grants and in which the command starts.
    pub workspace: PathBuf,
    /// The front's `HOME`, when it is made up.
    pub home: Option<PathBuf>,
    /// Secrets for the front's environment.
    pub environment: Vec<(String, String)>,
    /// Limits that the policy must set.
    pub limits: Option<SmallLimits>,
    /// Where the front finds the caller's own policy, when there is one.
    configuration: Option<PathBuf>,
    stdin: File,
    terminal: Option<(PathBuf, File)>,
}

/// Runs the attacks that `chosen` picks and returns what became of each.
/// `launch` starts one sandbox and returns what it printed; its error makes
/// the attacks of that sandbox open questions.
pub fn run(
    bait: &mut Bait,
    chosen: impl Fn(&Attack) -> bool,
    mut launch: impl FnMut(&Start) -> io::Result<Vec<u8>>,
) -> io::Result<Table> {
    let attacks: Vec<&'static Attack> = all().iter().filter(|attack| chosen(attack)).collect();
    let mut verdicts = BTreeMap::new();
    for (needs, ids) in batches(&attacks) {
        let rounds = if needs == Needs::TwoRuns { 2 } else { 1 };
        for round in 1..=rounds {
            let start = prepare(bait, needs, &ids, round)?;
            let answers = launch(&start).map(|output| lines(&output));
            verdicts.extend(ids.iter().map(|id| (*id, answer(&answers, id, needs))));
        }
    }
    for (id, outside) in bait.verify_after() {
        if let Some((inside, tried)) = verdicts.remove(id) {
            verdicts.insert(id, (with_outside(inside, outside, tried), tried));
        }
    }
    let rows = attacks.iter().filter_map(|attack| {
        Some(Row {
            guarantee: attack.guarantee,
            id: attack.id.into(),
            summary: attack.summary.into(),
            verdict: verdicts.remove(attack.id)?.0,
        })
    });
    Ok(Table {
        rows: rows.collect(),
    })
}

/// Which attacks share a sandbox: those with small limits share none, since
/// one may use up what the next one needs.
fn batches(attacks: &[&'static Attack]) -> Vec<(Needs, Vec<&'static str>)> {
    let mut batches: Vec<(Needs, Vec<&'static str>)> = Vec::new();
    for attack in attacks {
        match batches.iter_mut().find(|(needs, _)| *needs == attack.needs) {
            Some((needs, ids)) if *needs != Needs::SmallLimits => ids.push(attack.id),
            _ => batches.push((attack.needs, vec![attack.id])),
        }
    }
    batches
}

fn prepare(bait: &mut Bait, needs: Needs, ids: &[&str], round: u32) -> io::Result<Start> {
    let limits = (needs == Needs::SmallLimits).then_some(SMALL);
    let terminal = if needs == Needs::Terminal {
        let Terminal {
            controller, path, ..
        } = bait.open_terminal()?;
        Some((path.clone(), File::from(controller.try_clone()?)))
    } else {
        None
    };
    let stage = Stage {
        limits,
        round,
        ..bait.stage().clone()
    };
    let configuration = match needs {
        Needs::WayOut => Some(bait.way_out()?),
        _ => None,
    };
    Ok(Start {
        needs,
        configuration,
        arguments: vec![
            "--stage".into(),
            serde_json::to_string(&stage)?,
            "--only".into(),
            ids.join(","),
        ],
        workspace: stage.workspace,
        home: stage.home,
        environment: bait.environment(),
        limits,
        stdin: bait.stdin()?,
        terminal,
    })
}

impl Start {
    /// Starts a front and returns what it printed. `front` is the whole command
    /// line up to and including the hidden subcommand inside; `hidden` is the
    /// hidden subcommand outside, which gives the front a terminal. The front
    /// is killed when it does not end in time.
    pub fn output(&self, hidden: &[OsString], front: &[OsString]) -> io::Result<Vec<u8>> {
        let mut line: Vec<OsString> = Vec::new();
        if let Some((path, _)) = &self.terminal {
            line.extend_from_slice(hidden);
            line.extend([ON_TERMINAL.into(), path.into()]);
        }
        line.extend_from_slice(front);
        line.extend(self.arguments.iter().map(OsString::from));
        let [program, arguments @ ..] = line.as_slice() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.workspace);
        command.envs(self.environment.iter().cloned());
        if let Some(home) = &self.home {
            // Nothing of the caller's own files takes part.
            command
                .env("HOME", home)
                .env_remove("XDG_CONFIG_HOME")
                .env_remove("XDG_STATE_HOME");
        }
        if let Some(configuration) = &self.configuration {
            command.env("XDG_CONFIG_HOME", configuration);
        }
        command
            .stdin(self.stdin.try_clone()?)
            .stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = self.collect(&mut child)?;
        await_end(&mut child)?;
        // What was printed last may still be on its way to the reader.
        std::thread::sleep(Duration::from_millis(50));
        let bytes = output
            .lock()
            .map_err(|_| io::Error::other("the reader failed"))?;
        Ok(bytes.clone())
    }

    /// Reads the front's output, or the screen of its terminal, as it comes. A
    /// process that was left behind may hold the stream open for longer than
    /// the front lives, so nobody waits for its end.
    fn collect(&self, child: &mut Child) -> io::Result<Arc<Mutex<Vec<u8>>>> {
        let mut source: Box<dyn Read + Send> = match (&self.terminal, child.stdout.take()) {
            (Some((_, controller)), _) => Box::new(controller.try_clone()?),
            (None, Some(stdout)) => Box::new(stdout),
            (None, None) => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        let output = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&output);
        std::thread::spawn(move || {
            let mut block = [0_u8; 4096];
            while let Ok(bytes @ 1..) = source.read(&mut block) {
                match sink.lock() {
                    Ok(mut sink) => sink.extend_from_slice(&block[..bytes]),
                    Err(_) => return,
                }
            }
        });
        Ok(output)
    }
}

fn await_end(child: &mut Child) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the sandbox did not end in time",
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The report lines among what was printed. A terminal adds carriage returns,
/// and the front may print text of its own.
fn lines(output: &[u8]) -> BTreeMap<String, Verdict> {
    let text = String::from_utf8_lossy(output);
    let found = text.lines().filter_map(|line| {
        let start = line.find('{')?;
        serde_json::from_str::<Line>(line[start..].trim_end()).ok()
    });
    found.map(|line| (line.id, line.verdict)).collect()
}

/// Whether an attack was tried at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Yes,
    No,
}

/// What became of one attack inside. No answer counts as a stop only where the
/// limit may have ended everything, and only when the sandbox had started.
fn answer(
    answers: &io::Result<BTreeMap<String, Verdict>>,
    id: &str,
    needs: Needs,
) -> (Verdict, Tried) {
    let answers = match answers {
        Ok(answers) => answers,
        Err(error) => {
            let why = format!("the sandbox did not run: {error}");
            return (Verdict::Inconclusive(why), Tried::No);
        }
    };
    if let Some(verdict) = answers.get(id) {
        return (verdict.clone(), Tried::Yes);
    }
    let started = answers.contains_key(STARTED);
    if started && needs == Needs::SmallLimits {
        return (
            Verdict::Stopped("the limit ended the whole sandbox".into()),
            Tried::Yes,
        );
    }
    let why = if started {
        "the sandbox ended before the attack answered"
    } else {
        "the sandbox did not start"
    };
    (Verdict::Inconclusive(why.into()), Tried::No)
}

/// That nothing changed outside proves nothing about an attack that was not
/// tried; that something did is an escape in any case.
fn with_outside(inside: Verdict, outside: Verdict, tried: Tried) -> Verdict {
    match (tried, &outside) {
        (Tried::Yes, _) | (_, Verdict::Escaped(_)) => inside.joined(outside),
        (Tried::No, _) => inside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_lines_are_found_among_other_text() {
        let output =
            b"note: hello\r\n{\"id\":\"a\",\"verdict\":\"stopped\",\"detail\":\"EPERM\"}\r\n{}\n";
        let found = lines(output);
        assert_eq!(found.len(), 1);
        assert_eq!(found["a"], Verdict::Stopped("EPERM".into()));
    }

    #[test]
    fn silence_is_no_proof() {
        let nothing = Ok(BTreeMap::new());
        let (verdict, tried) = answer(&nothing, "a", Needs::SmallLimits);
        assert!(matches!(verdict, Verdict::Inconclusive(_)));
        let stopped = Verdict::Stopped("nothing outside changed".into());
        assert_eq!(with_outside(verdict.clone(), stopped, tried), verdict);
        let started = Ok(BTreeMap::from([(STARTED.into(), verdict.clone())]));
        assert!(matches!(
            answer(&started, "a", Needs::Ordinary).0,
            Verdict::Inconclusive(_)
        ));
        assert!(matches!(
            answer(&started, "a", Needs::SmallLimits).0,
            Verdict::Stopped(_)
        ));
    }

    #[test]
    fn small_limits_share_no_sandbox() {
        let attacks: Vec<&Attack> = all().iter().collect();
        let batches = batches(&attacks);
        let ids: usize = batches.iter().map(|(_, ids)| ids.len()).sum();
        assert_eq!(ids, attacks.len());
        let alone =
            |(needs, ids): &(Needs, Vec<&str>)| *needs != Needs::SmallLimits || ids.len() == 1;
        assert!(batches.iter().all(alone));
    }
}
