//! What `stockade test` answers is what is enforced: generated trees and
//! policies, each path asked about and tried in a real run.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use stockade_engine::load::{CliSetting, Selection};
use stockade_engine::run::{Request, plan};
use stockade_policy::decide::{Decision, Question, decide};
use stockade_policy::path::AbsolutePath;
use stockade_testkit::World;

/// Generated trees; each is one real run and one process that answers.
const CASES: u32 = 96;
/// Where a child of this test finds the questions (see [`answers`]).
const QUESTIONS: &str = "STOCKADE_TEST_QUESTIONS";
const NAMES: [&str; 7] = ["a", "b", "sub", ".env", "x.key", "hidden", ".ssh"];
const PATTERNS: [&str; 5] = ["**/.env", "*.key", "sub/**", "hidden", "a/b"];
/// What a file of the host prints, and holds, when it can be reached.
const TOKEN: &str = "host-content";

#[derive(Clone, Debug)]
enum Kind {
    File,
    Directory,
    /// To the node with this index.
    Link(usize),
}

#[derive(Clone, Debug)]
struct Node {
    /// Index into the roots: project, home, outside.
    root: usize,
    names: Vec<usize>,
    kind: Kind,
}

#[derive(Clone, Debug)]
struct Case {
    nodes: Vec<Node>,
    read: Vec<usize>,
    write: Vec<usize>,
    hide: Vec<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    let kind = prop_oneof![
        4 => Just(Kind::File),
        2 => Just(Kind::Directory),
        1 => (0..12_usize).prop_map(Kind::Link),
    ];
    let names = prop::collection::vec(0..NAMES.len(), 1..4);
    let node = (0..3_usize, names, kind).prop_map(|(root, names, kind)| Node { root, names, kind });
    let some = |most| prop::collection::vec(0..12_usize, 0..most);
    let hide = prop::collection::vec(0..PATTERNS.len(), 0..3);
    (prop::collection::vec(node, 4..12), some(4), some(3), hide).prop_map(
        |(nodes, read, write, hide)| Case {
            nodes,
            read,
            write,
            hide,
        },
    )
}

/// The tree on disk: which nodes could be made, and where.
struct Tree {
    world: World,
    made: Vec<(PathBuf, Kind)>,
}

impl Tree {
    fn grow(case: &Case) -> Self {
        let world = World::new();
        let roots = [&world.project, &world.home, world.outside()].map(Path::to_path_buf);
        let path = |node: &Node| {
            let names = node.names.iter().map(|&name| NAMES[name]);
            names.fold(roots[node.root].clone(), |path, name| path.join(name))
        };
        let mut made = Vec::new();
        for node in &case.nodes {
            let place = path(node);
            let parent = place.parent().expect("a node has a parent");
            // What an earlier node is in the way of is left out.
            let is_real = || fs::canonicalize(parent).is_ok_and(|resolved| resolved == parent);
            if fs::create_dir_all(parent).is_err() || !is_real() || place.symlink_metadata().is_ok()
            {
                continue;
            }
            let done = match &node.kind {
                Kind::Directory => fs::create_dir(&place).is_ok(),
                Kind::File => {
                    let script = format!("#!/bin/sh\necho {TOKEN}\n");
                    let mode = fs::Permissions::from_mode(0o755);
                    fs::write(&place, script).is_ok() && fs::set_permissions(&place, mode).is_ok()
                }
                Kind::Link(target) => case
                    .nodes
                    .get(*target)
                    .is_some_and(|target| symlink(path(target), &place).is_ok()),
            };
            if done {
                made.push((place, node.kind.clone()));
            }
        }
        Self { world, made }
    }

    fn settings(&self, case: &Case) -> Vec<(&'static str, String)> {
        let node = |&index: &usize| {
            let (path, _) = self.made.get(index)?;
            Some(path.to_str().expect("generated names are ASCII").to_owned())
        };
        let read = case
            .read
            .iter()
            .filter_map(node)
            .map(|path| ("--read", path));
        let write = case
            .write
            .iter()
            .filter_map(node)
            .map(|path| ("--write", path));
        let hide = case
            .hide
            .iter()
            .map(|&index| ("--hide", PATTERNS[index].to_owned()));
        read.chain(write).chain(hide).collect()
    }

    /// Questions in the order in which they are tried: what changes nothing
    /// first.
    fn questions(&self) -> Vec<(char, String)> {
        let mut questions = Vec::new();
        // 'd' is writing into a directory.
        for action in ['r', 'x', 'w', 'd'] {
            for (path, kind) in &self.made {
                let text = path.to_str().expect("generated names are ASCII").to_owned();
                match (kind, action) {
                    (Kind::File, 'r' | 'x' | 'w') | (Kind::Directory, 'd') => {
                        questions.push((action, text));
                    }
                    // 'l' is reading through a link.
                    (Kind::Link(_), 'r') if path.is_file() => questions.push(('l', text)),
                    _ => {}
                }
            }
        }
        questions
    }
}

/// Tries every path in one run; the answers by question, or the refusal.
fn tried(
    world: &World,
    settings: &[(&str, String)],
    questions: &[(char, String)],
) -> Result<Vec<bool>, String> {
    let mut script = String::from("exec 2> /dev/null\n");
    for (action, path) in questions {
        let attempt = match action {
            'r' | 'l' => format!("grep -q {TOKEN} '{path}'"),
            'x' => format!("test \"$('{path}')\" = {TOKEN}"),
            'w' => format!("mkdir -p \"$(dirname '{path}')\" && : >> '{path}'"),
            _ => format!("mkdir -p '{path}' && : > '{path}/probe'"),
        };
        script.push_str(&format!(
            "if ( {attempt} ); then echo yes; else echo no; fi\n"
        ));
    }
    let mut command = world.stockade();
    command.args(["run", "--quiet"]);
    for (option, value) in settings {
        command.arg(option).arg(value);
    }
    let output = command
        .args(["--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output();
    let output = output.expect("stockade starts");
    match output.status.code() {
        Some(0) => Ok(yes_and_no(&output.stdout)),
        Some(125) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        other => panic!("{other:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn yes_and_no(output: &[u8]) -> Vec<bool> {
    let text = String::from_utf8_lossy(output);
    text.lines()
        .filter(|line| matches!(*line, "yes" | "no"))
        .map(|line| line == "yes")
        .collect()
}

/// Asks the plan, in a child of this test that stands where the run stands;
/// `None` when there is no plan.
fn asked(
    world: &World,
    settings: &[(&str, String)],
    questions: &[(char, String)],
) -> Option<Vec<bool>> {
    let mut text = String::new();
    for (option, value) in settings {
        text.push_str(&format!("{option} {value}\n"));
    }
    for (action, path) in questions {
        text.push_str(&format!("{action} {path}\n"));
    }
    let file = world.write(world.outside().join("questions"), text);
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    command
        .args(["--exact", "answers", "--nocapture"])
        .current_dir(&world.project)
        .env_clear();
    command
        .env("HOME", &world.home)
        .env("USER", "tester")
        .env("LANG", "C.UTF-8");
    command
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env(QUESTIONS, &file);
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("the test starts itself");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    // The file is no part of the tree.
    fs::remove_file(file).expect("the questions can be removed");
    if output.stdout.windows(7).any(|window| window == b"refused") {
        return None;
    }
    Some(yes_and_no(&output.stdout))
}

/// Not a test of its own: the half of [`asked`] that runs in a child.
#[test]
fn answers() {
    let Some(file) = std::env::var_os(QUESTIONS) else {
        return;
    };
    let text = fs::read_to_string(file).expect("the questions can be read");
    let (options, questions): (Vec<_>, Vec<_>) = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .partition(|(word, _)| word.starts_with("--"));
    let mut settings: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for (option, value) in options {
        let key = match option {
            "--read" => "filesystem.read",
            "--write" => "filesystem.write",
            _ => "filesystem.hide",
        };
        settings.entry(key).or_default().push(value.to_owned());
    }
    let settings = settings
        .into_iter()
        .map(|(key, values)| CliSetting { key, values })
        .collect();
    let request = Request {
        argv: vec![OsString::from("sh")],
        selection: Selection {
            project: None,
            settings,
        },
        ..Request::default()
    };
    let Ok(planned) = plan(&request) else {
        return println!("\nrefused");
    };
    println!();
    for (action, path) in questions {
        // As `stockade test` does: links of the host are resolved.
        let resolved = fs::canonicalize(path).expect("what is asked about exists");
        let path = AbsolutePath::parse(resolved.as_os_str().as_bytes()).expect("it is absolute");
        let question = match action {
            "r" | "l" => Question::Read(path),
            "x" => Question::Execute(path),
            _ => Question::Write(path),
        };
        let permitted = matches!(decide(&planned.plan, &question), Decision::Permit { .. });
        println!("{}", if permitted { "yes" } else { "no" });
    }
}

fn agrees(case: &Case, tally: &mut Tally) -> Result<(), TestCaseError> {
    let tree = Tree::grow(case);
    let settings = tree.settings(case);
    let questions = tree.questions();
    let asked = asked(&tree.world, &settings, &questions);
    let tried = tried(&tree.world, &settings, &questions);
    let (asked, tried) = match (asked, tried) {
        (None, Err(_)) => {
            tally.refused += 1;
            return Ok(());
        }
        (Some(asked), Ok(tried)) => (asked, tried),
        (asked, tried) => {
            let message = format!("{settings:?}: asked {asked:?}, tried {tried:?}");
            return Err(TestCaseError::fail(message));
        }
    };
    tally.ran += 1;
    prop_assert_eq!(asked.len(), questions.len());
    prop_assert_eq!(tried.len(), questions.len());
    for ((question, asked), tried) in questions.iter().zip(asked).zip(tried) {
        // Inside, a link may itself be absent; what it leads to is asked
        // about under its own name.
        *if tried {
            &mut tally.allowed
        } else {
            &mut tally.denied
        } += 1;
        let agrees = asked == tried || (question.0 == 'l' && asked);
        let message = format!("{question:?} under {settings:?}: asked {asked}, tried {tried}");
        prop_assert!(agrees, "{}", message);
    }
    Ok(())
}

#[test]
fn what_is_answered_is_what_is_enforced() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("STOCKADE_TEST_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("STOCKADE_TEST_SEED={seed} repeats this run");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: number("STOCKADE_TEST_CASES").map_or(CASES, |cases| cases as u32),
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let tally = Cell::new(Tally::default());
    let result = runner.run(&case(), |case| {
        let mut counted = tally.get();
        let result = agrees(&case, &mut counted);
        tally.set(counted);
        result
    });
    // A failure prints the smallest case that was found, with its tree.
    result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let tally = tally.get();
    println!("{tally:?}");
    // The comparison is not empty: of each kind there is something.
    assert!(tally.allowed > 0 && tally.denied > 0, "{tally:?}");
    assert!(tally.ran > tally.refused, "{tally:?}");
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    ran: u32,
    refused: u32,
    allowed: u32,
    denied: u32,
}

/// The command line says the same as the library.
#[test]
fn the_command_answers_with_rule_and_exit_code() {
    let world = World::new();
    let data = world.write("data/file", "x");
    let data = data.to_str().expect("a world's path is ASCII");
    let ask = |options: &[&str], action: &str, path: &str| {
        let mut command = world.stockade();
        command
            .arg("test")
            .args(options)
            .args(["--json", action, path])
            .stdin(Stdio::null());
        let output = command.output().expect("stockade starts");
        let answer: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("an answer is JSON");
        (output.status.code(), answer)
    };
    let (code, answer) = ask(&[], "read", data);
    assert_eq!((code, &answer["allowed"]), (Some(1), &false.into()));
    let grant = answer["denial"]["smallest_grant"]
        .as_str()
        .expect("a grant is proposed");
    assert!(grant.contains("/home/data/file"), "{grant}");
    let (code, answer) = ask(&["--read", "~/data"], "read", data);
    assert_eq!((code, &answer["allowed"]), (Some(0), &true.into()));
    assert_eq!(answer["origin"], "command line");
    let (code, _) = ask(&["--read", "~/data"], "write", data);
    assert_eq!(code, Some(1));
    world.policy("[filesystem]\nread = [\"system\", \"~/data\"]\n");
    let (code, answer) = ask(&[], "exec", data);
    assert_eq!(code, Some(0));
    assert!(
        answer["origin"]
            .as_str()
            .is_some_and(|origin| origin.contains("stockade.toml:3"))
    );
}
