//! Tests of the log: concurrent writers, tears, tampering and rotation.

use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use stockade_policy::path::AbsolutePath;

use super::verify::verify_within;
use super::*;

struct Fixture {
    _scratch: tempfile::TempDir,
    directory: PathBuf,
    state: StateDirectory,
}

impl Fixture {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("stockade");
        let path = AbsolutePath::parse(directory.as_os_str().as_bytes()).unwrap();
        let state = StateDirectory::open_at(&path).unwrap();
        Self {
            _scratch: scratch,
            directory,
            state,
        }
    }

    /// A log of `count` events.
    fn with_events(count: u32) -> Self {
        let fixture = Self::new();
        fixture.append(count);
        fixture
    }

    fn append(&self, count: u32) -> Appended {
        let events: Vec<_> = (0..count)
            .map(|process| Event::Started { process })
            .collect();
        self.log().append(None, &events, now()).unwrap()
    }

    fn log(&self) -> Log {
        Log::open(&self.state).unwrap()
    }

    fn newest(&self) -> PathBuf {
        self.directory.join(NEWEST)
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.newest())
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    fn write_lines(&self, lines: &[String]) {
        fs::write(
            self.newest(),
            lines
                .iter()
                .map(|line| format!("{line}\n"))
                .collect::<String>(),
        )
        .unwrap();
    }

    fn append_raw(&self, bytes: &[u8]) {
        fs::OpenOptions::new()
            .append(true)
            .open(self.newest())
            .unwrap()
            .write_all(bytes)
            .unwrap();
    }

    fn broken(&self) -> Broken {
        match verify(&self.state, None) {
            Err(VerifyError::Broken(broken)) => broken,
            other => panic!("expected a broken chain, got {other:?}"),
        }
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)
}

#[test]
fn an_empty_log_and_a_first_record() {
    let fixture = Fixture::new();
    assert_eq!(verify(&fixture.state, None).unwrap().head, Hash::ZERO);
    let run = RunId::generate().unwrap();
    let appended = fixture
        .log()
        .append(Some(&run), &[Event::Started { process: 1 }], now())
        .unwrap();
    let verified = verify(&fixture.state, Some(appended.head)).unwrap();
    assert_eq!(
        (verified.lines, verified.files, verified.last_seq),
        (1, 1, 1)
    );
    assert_eq!(verified.head, appended.head);
    let first = Record::from_line(fixture.lines()[0].as_bytes()).unwrap();
    assert_eq!(
        (first.previous, first.time.as_str()),
        (Hash::ZERO, "2023-11-14T22:13:20.123Z")
    );
}

#[test]
fn threads_interleave_whole_lines_in_one_chain() {
    let fixture = Fixture::new();
    let log = fixture.log();
    thread::scope(|scope| {
        for process in 0..8 {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..200 {
                    log.append(None, &[Event::Started { process }], now())
                        .unwrap();
                }
            });
        }
    });
    let verified = verify(&fixture.state, None).unwrap();
    assert_eq!((verified.lines, verified.last_seq), (1600, 1600));
    assert_eq!(verified.tears, []);
}

const CHILD_DIRECTORY: &str = "STOCKADE_TEST_LOG_DIRECTORY";

/// Not a test of its own: what the processes of the next tests run.
#[test]
fn child_appends() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else {
        return;
    };
    let path = AbsolutePath::parse(directory.as_os_str().as_bytes()).unwrap();
    let log = Log::open(&StateDirectory::open_at(&path).unwrap()).unwrap();
    let rounds = if std::env::var_os("STOCKADE_TEST_ENDLESS").is_some() {
        u32::MAX
    } else {
        200
    };
    for process in 0..rounds {
        let events = [
            Event::Started { process },
            Event::LimitHit {
                limit: "x".repeat(5000),
            },
        ];
        log.append(None, &events, now()).unwrap();
    }
}

fn child(fixture: &Fixture) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "log::tests::child_appends"])
        .env(CHILD_DIRECTORY, &fixture.directory);
    command.stdout(std::process::Stdio::null());
    command
}

#[test]
fn processes_interleave_whole_lines_in_one_chain() {
    let fixture = Fixture::new();
    let mut children: Vec<_> = (0..4).map(|_| child(&fixture).spawn().unwrap()).collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(verify(&fixture.state, None).unwrap().lines, 4 * 200 * 2);
}

#[test]
fn killed_writers_leave_a_log_that_the_next_one_continues() {
    let fixture = Fixture::new();
    for round in 0..5 {
        let mut command = child(&fixture);
        let mut child = command.env("STOCKADE_TEST_ENDLESS", "1").spawn().unwrap();
        let started = Instant::now();
        while !fixture.newest().exists() && started.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(20 + 7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        fixture.append(1);
        verify(&fixture.state, None).unwrap();
    }
}

#[test]
fn a_torn_end_is_reported_recorded_and_chained() {
    let full = Fixture::with_events(3).lines();
    let last = full[2].as_bytes();
    for cut in [1, 20, last.len() - 1, last.len()] {
        let fixture = Fixture::with_events(2);
        fixture.append_raw(&last[..cut]);
        let broken = fixture.broken();
        assert_eq!(broken.line, 3);
        assert!(broken.reason.contains("cut short"), "{broken}");
        assert!(fixture.append(1).repaired);
        assert!(!fixture.append(1).repaired);
        let verified = verify(&fixture.state, None).unwrap();
        assert_eq!(verified.tears.len(), 1, "cut at {cut}");
        let expected = if cut == last.len() { 0 } else { cut as u64 + 1 };
        assert_eq!(verified.tears[0].damaged_bytes, expected);
    }
}

#[test]
fn a_repair_that_is_itself_torn_is_repaired() {
    let fixture = Fixture::with_events(2);
    fixture.append_raw(b"{\"version\":1,\"se");
    let before = fs::read(fixture.newest()).unwrap();
    fixture.append(1);
    let repaired = fs::read(fixture.newest()).unwrap();
    for cut in before.len() + 1..repaired.len() {
        fs::write(fixture.newest(), &repaired[..cut]).unwrap();
        fixture.append(1);
        let verified = verify(&fixture.state, None).unwrap();
        assert!(!verified.tears.is_empty(), "cut at {cut}");
    }
}

#[test]
fn a_file_that_holds_only_a_torn_line_or_zeros_is_repaired() {
    for bytes in [&b"{\"vers"[..], &[0; 5000], b"\n", b"\xff\n\n"] {
        let fixture = Fixture::new();
        fixture.log();
        fixture.append_raw(bytes);
        fixture.append(1);
        let verified = verify(&fixture.state, None).unwrap();
        assert_eq!((verified.tears.len(), verified.last_seq), (1, 2));
    }
}

#[test]
fn every_kind_of_tampering_is_found() {
    type Tamper = fn(&mut Vec<String>);
    let cases: [(&str, u64, Tamper); 7] = [
        ("edit", 4, |lines| {
            lines[2] = lines[2].replace("\"process\":2", "\"process\":9")
        }),
        ("edit the time", 2, |lines| {
            lines[0] = lines[0].replace("2023", "2022")
        }),
        ("delete", 3, |lines| drop(lines.remove(2))),
        ("delete the first", 0, |lines| drop(lines.remove(0))),
        ("reorder", 3, |lines| lines.swap(2, 3)),
        ("repeat", 4, |lines| lines.insert(3, lines[2].clone())),
        ("garble", 4, |lines| lines[2] = "garbage".into()),
    ];
    for (kind, line, tamper) in cases {
        let fixture = Fixture::with_events(6);
        let mut lines = fixture.lines();
        tamper(&mut lines);
        fixture.write_lines(&lines);
        assert_eq!(fixture.broken().line, line, "{kind}: {}", fixture.broken());
        // Going on to write does not hide it.
        fixture.append(1);
        fixture.broken();
    }
}

#[test]
fn truncation_within_a_line_is_found_and_between_lines_only_with_an_anchor() {
    let fixture = Fixture::with_events(6);
    let head = verify(&fixture.state, None).unwrap().head;
    let bytes = fs::read(fixture.newest()).unwrap();
    fs::write(fixture.newest(), &bytes[..bytes.len() - 5]).unwrap();
    assert_eq!(fixture.broken().line, 6);

    fixture.write_lines(&Fixture::with_events(6).lines()[..5]);
    assert_eq!(verify(&fixture.state, None).unwrap().lines, 5);
    let error = verify(&fixture.state, Some(head)).unwrap_err();
    assert!(
        error.to_string().contains("cut off or rewritten"),
        "{error}"
    );

    // A chain written anew is as sound as the first, but not the anchored one.
    let rewritten = Fixture::with_events(5);
    rewritten.append(4);
    assert_eq!(verify(&rewritten.state, None).unwrap().lines, 9);
    assert!(verify(&rewritten.state, Some(head)).is_err());
    assert!(verify(&Fixture::with_events(9).state, Some(head)).is_ok());
}

#[test]
fn a_forged_repair_does_not_hide_a_changed_line() {
    let fixture = Fixture::with_events(2);
    fixture.append_raw(b"{\"vers");
    fixture.append(1);
    let mut lines = fixture.lines();
    lines[2] = "{\"other".into();
    fixture.write_lines(&lines);
    assert!(matches!(
        verify(&fixture.state, None),
        Err(VerifyError::Broken(_))
    ));
}

#[test]
fn rotation_keeps_the_chain_and_a_bounded_number_of_files() {
    let fixture = Fixture::new();
    let bounds = Bounds {
        file_bytes_max: 2000,
        rotated_files_max: 3,
    };
    let log = Log {
        state: fixture.state.clone(),
        bounds,
    };
    for process in 0..200 {
        log.append(None, &[Event::Started { process }], now())
            .unwrap();
        let verified = verify_within(&fixture.state, None, bounds).unwrap();
        assert_eq!(verified.last_seq, u64::from(process) + 1);
    }
    let verified = verify_within(&fixture.state, None, bounds).unwrap();
    assert_eq!(verified.files, 4);
    assert!(verified.first_seq > 100);
    for entry in fs::read_dir(&fixture.directory).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().len() <= 2000);
    }

    // A missing file in the middle, and missing oldest files.
    let gone = fixture.directory.join(rotated_name(2));
    let content = fs::read(&gone).unwrap();
    fs::remove_file(&gone).unwrap();
    assert!(verify_within(&fixture.state, None, bounds).is_err());
    fs::write(&gone, content).unwrap();
    fs::set_permissions(&gone, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    verify_within(&fixture.state, None, bounds).unwrap();
    fs::remove_file(fixture.directory.join(rotated_name(3))).unwrap();
    fs::remove_file(&gone).unwrap();
    let error = verify_within(&fixture.state, None, bounds).unwrap_err();
    assert!(error.to_string().contains("files are missing"), "{error}");
}

#[test]
fn a_crash_between_two_renames_of_a_rotation_loses_nothing() {
    let fixture = Fixture::new();
    let bounds = Bounds {
        file_bytes_max: 1000,
        rotated_files_max: 3,
    };
    let log = Log {
        state: fixture.state.clone(),
        bounds,
    };
    let append = |count: u32| {
        for process in 0..count {
            log.append(None, &[Event::Started { process }], now())
                .unwrap();
        }
    };
    append(40);
    // The state after the first two renames, then after all of them.
    for renames in 1..=3 {
        let name = |number| match number {
            0 => NEWEST.to_owned(),
            _ => rotated_name(number),
        };
        for number in (1..=3).rev().take(renames) {
            fs::rename(
                fixture.directory.join(name(number - 1)),
                fixture.directory.join(name(number)),
            )
            .unwrap();
        }
        verify_within(&fixture.state, None, bounds).unwrap();
        append(40);
        assert_eq!(
            verify_within(&fixture.state, None, bounds).unwrap().files,
            4
        );
    }
}

#[test]
fn a_later_version_is_not_taken_for_damage() {
    let fixture = Fixture::with_events(1);
    fixture.append_raw(b"{\"version\":2,\"other\":1}\n");
    let before = fs::read(fixture.newest()).unwrap();
    let error = Log::open(&fixture.state).unwrap_err().to_string();
    assert!(error.contains("later stockade"), "{error}");
    assert_eq!(fs::read(fixture.newest()).unwrap(), before);
}

#[test]
fn a_log_that_cannot_be_written_is_an_error() {
    let fixture = Fixture::with_events(1);
    fs::remove_file(fixture.newest()).unwrap();
    fs::create_dir(fixture.newest()).unwrap();
    assert!(Log::open(&fixture.state).is_err());
    fs::remove_dir(fixture.newest()).unwrap();
    std::os::unix::fs::symlink("/dev/full", fixture.newest()).unwrap();
    assert!(
        Log::open(&fixture.state)
            .unwrap_err()
            .to_string()
            .contains("symbolic link")
    );
}

#[test]
fn reading_filters_by_run_and_shows_unreadable_lines() {
    let fixture = Fixture::new();
    let runs = [RunId::from_random(1), RunId::from_random(2)];
    for run in [&runs[0], &runs[1], &runs[0]] {
        fixture
            .log()
            .append(Some(run), &[Event::Started { process: 1 }], now())
            .unwrap();
    }
    fixture.append_raw(b"\x1b[31m\n");
    let filter = Filter {
        run: Some(runs[0].as_str().to_owned()),
    };
    let entries: Vec<_> = read(&fixture.state, filter)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(entries.len(), 3);
    assert!(matches!(&entries[1], Entry::Record { record, .. } if record.seq == 3));
    let expected = Entry::Unreadable {
        file: NEWEST.to_owned(),
        line: 4,
        text: "\\u{1b}[31m".to_owned(),
    };
    assert_eq!(entries[2], expected);
}

#[test]
fn following_misses_nothing_across_rotations() {
    let fixture = Fixture::with_events(3);
    let mut follow = read(&fixture.state, Filter::default()).unwrap().follow();
    assert_eq!(follow.poll().unwrap(), []);
    let bounds = Bounds {
        file_bytes_max: 1000,
        rotated_files_max: 8,
    };
    let log = Log {
        state: fixture.state.clone(),
        bounds,
    };
    let mut seen = Vec::new();
    for process in 0..30 {
        log.append(None, &[Event::Started { process }], now())
            .unwrap();
        if process % 9 == 0 {
            seen.extend(follow.poll().unwrap());
        }
    }
    seen.extend(follow.poll().unwrap());
    let numbers: Vec<_> = seen
        .iter()
        .map(|entry| match entry {
            Entry::Record { record, .. } => record.seq,
            Entry::Unreadable { .. } => 0,
        })
        .collect();
    assert_eq!(numbers, (4..34).collect::<Vec<_>>());
}

/// Prints the cost of an append; the bound is loose because tests are not
/// optimised and share the machine.
#[test]
fn an_append_is_cheap() {
    let fixture = Fixture::with_events(1000);
    let log = fixture.log();
    let started = Instant::now();
    for process in 0..1000 {
        log.append(None, &[Event::Started { process }], now())
            .unwrap();
    }
    let each = started.elapsed() / 1000;
    eprintln!("one append: {each:?}");
    assert!(each < Duration::from_millis(5), "{each:?}");
}
