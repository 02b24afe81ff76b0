//! Real machines of the real Firecracker, behind its real jailer: the tiny machine
//! of `stockade-guest` boots, is saved, and comes back as several that differ.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use stockade_agent_image::GUEST;
use stockade_guest::{
    ANSWER_BYTES, ASK, ECHO_PORT, END, FACTS_BYTES, FACTS_PORT, Facts, GENERATION_PORT, Generation,
};
use stockade_testkit::machine::firecracker;
use stockade_testkit::processes_with;
use stockade_testkit::tools::soon;
use stockade_vm::firecracker::FirecrackerError;
use stockade_vm::firecracker::configuration::{Configuration, Drive, RateLimiter, TokenBucket};
use stockade_vm::firecracker::host::{Confinement, Groups, Host};
use stockade_vm::firecracker::machine::Machine;
use stockade_vm::firecracker::probe::try_machine;
use stockade_vm::firecracker::snapshot::{Kind, Snapshot};

/// Whom Firecracker runs as.
const USER: u32 = 64_123;
const MEMORY_MIB: u32 = 16;

/// A directory with the tiny machine, for machines and snapshots.
struct Place {
    directory: tempfile::TempDir,
    programs: PathBuf,
}

impl Place {
    fn new(test: &str) -> Option<Self> {
        let programs = firecracker(test)?;
        let directory = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
        fs::write(directory.path().join("guest"), GUEST).unwrap();
        Some(Self {
            directory,
            programs,
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn host(&self) -> Host {
        host(&self.at("machines"), &self.programs)
    }

    fn configuration(&self) -> Configuration {
        Configuration {
            kernel: self.at("guest"),
            arguments: String::new(),
            memory: MEMORY_MIB,
            processors: 1,
            drives: Vec::new(),
        }
    }

    /// What Firecracker sees as its root.
    fn root(&self, machine: &Machine) -> PathBuf {
        let machines = self.at("machines/firecracker");
        machines.join(machine.name()).join("root")
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(self.at("machines/firecracker"))
            .unwrap()
            .next()
            .is_none()
    }
}

fn host(base: &Path, programs: &Path) -> Host {
    let confinement = Confinement::Jailer {
        program: programs.join("jailer"),
        uid: USER,
        gid: USER,
        groups: Groups::of_system().unwrap(),
    };
    Host::open(base, &programs.join("firecracker"), confinement).unwrap()
}

fn ask(machine: &Machine) -> Facts {
    ask_on(machine.connect(FACTS_PORT).unwrap())
}

fn ask_on(mut stream: UnixStream) -> Facts {
    let mut bytes = [0; FACTS_BYTES];
    stream.write_all(&[ASK]).unwrap();
    stream.read_exact(&mut bytes).unwrap();
    Facts::decode(&bytes)
}

/// Its process's id: the machine's name is among its arguments, and among those of
/// nobody else once the jailer has become it.
fn process(machine: &Machine) -> u32 {
    let found = processes_with(machine.name());
    let is_it = |pid: &&u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "firecracker")
    };
    *found.iter().find(is_it).expect("Firecracker runs")
}

fn control_groups_of(machine: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name() == machine {
                    found.push(entry.path());
                }
                waiting.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn a_machine_boots_in_its_jail_and_can_be_spoken_to() {
    let Some(place) = Place::new("a_machine_boots_in_its_jail_and_can_be_spoken_to") else {
        return;
    };
    let host = place.host();
    let limit = RateLimiter {
        bandwidth: Some(TokenBucket {
            size: 1 << 20,
            refill_time: 100,
            one_time_burst: Some(4096),
        }),
        ops: None,
    };
    fs::write(place.at("disk"), [7; 4096]).unwrap();
    fs::set_permissions(place.at("disk"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut machine = host
        .boot(&Configuration {
            drives: vec![Drive {
                name: "data".into(),
                file: place.at("disk"),
                is_root: false,
                limit: Some(limit),
            }],
            ..place.configuration()
        })
        .unwrap();
    is_jailed(&place, &machine);
    let said = machine.configuration().unwrap();
    assert_eq!(said["machine-config"]["mem_size_mib"], MEMORY_MIB);
    assert_eq!(said["machine-config"]["track_dirty_pages"], true);
    assert_eq!(said["drives"][0]["is_read_only"], true);
    let bandwidth = &said["drives"][0]["rate_limiter"]["bandwidth"];
    assert_eq!(
        (&bandwidth["size"], &bandwidth["one_time_burst"]),
        (&(1 << 20).into(), &4096.into())
    );
    assert_eq!(said["network-interfaces"].as_array().map(Vec::len), Some(0));
    speaks(&machine);
    let facts = ask(&machine);
    assert_eq!((facts.asked, facts.generations), (1, 1));
    let (process, name) = (process(&machine), machine.name().to_owned());
    assert_ne!(control_groups_of(&name), Vec::<PathBuf>::new());
    drop(machine);
    assert!(!Path::new(&format!("/proc/{process}")).exists());
    assert_eq!(control_groups_of(&name), Vec::<PathBuf>::new());
    assert!(place.is_empty());
}

fn is_jailed(place: &Place, machine: &Machine) {
    let process = process(machine);
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(field("Uid:"), format!("{USER} {USER} {USER} {USER}"));
    assert_eq!(field("Gid:"), format!("{USER} {USER} {USER} {USER}"));
    assert_eq!(field("CapEff:"), "0000000000000000");
    assert_eq!(field("NSpid:").split(' ').count(), namespaces_deep() + 1);
    assert_eq!(field("Seccomp:"), "2");
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    assert!(
        groups.contains(&format!("/stockade-firecracker/{}", machine.name())),
        "{groups}"
    );
    // Its root is the jail's and nothing else of the host is in it.
    let mut inside: Vec<_> = fs::read_dir(format!("/proc/{process}/root"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    inside.sort();
    let mut own: Vec<_> = fs::read_dir(place.root(machine))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    own.sort();
    assert_eq!(inside, own);
    assert!(!inside.contains(&"proc".to_owned()), "{inside:?}");
    // What it was given cannot be changed by it.
    for name in ["kernel", "drive-data", "configuration"] {
        let status = fs::metadata(place.root(machine).join(name)).unwrap();
        assert_eq!(
            (status.uid(), status.mode() & 0o222),
            (0, status.mode() & 0o200),
            "{name}"
        );
    }
}

/// How many pid namespaces this process itself is in.
fn namespaces_deep() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.unwrap().split_whitespace().count()
}

fn speaks(machine: &Machine) {
    let mut echo = machine.connect(ECHO_PORT).unwrap();
    let bytes: Vec<u8> = (0..50_000u32).map(|number| (number / 7) as u8).collect();
    let mut writer = echo.try_clone().unwrap();
    let sent = bytes.clone();
    let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut back = vec![0; bytes.len()];
    echo.read_exact(&mut back).unwrap();
    writing.join().unwrap();
    assert!(back == bytes);
    let closed = machine.connect(9).unwrap_err();
    assert!(
        matches!(closed, FirecrackerError::Closed { port: 9 }),
        "{closed}"
    );
    // A generation is taken whole or not at all.
    let mut wrong = machine.connect(GENERATION_PORT).unwrap();
    wrong.write_all(b"anything").unwrap();
    assert_eq!(wrong.read(&mut [0; ANSWER_BYTES]).unwrap_or(0), 0);
}

#[test]
fn clones_have_the_memory_and_nothing_that_one_alone_may_have() {
    let Some(place) = Place::new("clones_have_the_memory_and_nothing_that_one_alone_may_have")
    else {
        return;
    };
    let host = place.host();
    let mut first = host.boot(&place.configuration()).unwrap();
    for asked in 1..=3 {
        assert_eq!(ask(&first).asked, asked);
    }
    let mut cut = first.connect(ECHO_PORT).unwrap();
    let snapshot = first.save(Kind::Full, &place.at("full")).unwrap();
    first.resume().unwrap();
    let forgotten = cut.write_all(b"x").is_err() || cut.read(&mut [0]).unwrap_or(0) == 0;
    assert!(forgotten);
    let clones = [
        host.restore(&snapshot).unwrap(),
        host.restore(&snapshot).unwrap(),
    ];
    let all = [&first, &clones[0], &clones[1]];
    let facts = all.map(ask);
    for (machine, facts) in all.iter().zip(&facts) {
        // The memory is the one that was saved: three questions, one generation.
        assert_eq!((facts.asked, facts.generations), (4, 2));
        assert_eq!(facts.identity, machine.generation().identity);
        assert_eq!(facts.mac, machine.generation().mac);
        assert_eq!(facts.clock_ms, machine.generation().clock_ms);
        assert_eq!(facts.mac[0] & 3, 2);
    }
    let different = |of: fn(&Facts) -> &[u8]| facts.iter().map(of).collect::<HashSet<_>>().len();
    assert_eq!(different(|one| &one.identity), 3);
    assert_eq!(different(|one| &one.random), 3);
    assert_eq!(different(|one| &one.mac), 3);
    // What one does the others do not see, and neither does the snapshot.
    assert_eq!(ask(&clones[0]).asked, 5);
    assert_eq!(ask(&clones[1]).asked, 5);
    drop((first, clones));
    let kept = Snapshot::open(&place.at("full")).unwrap();
    assert_eq!(ask(&host.restore(&kept).unwrap()).asked, 4);
}

#[test]
fn a_copy_answers_nobody_before_it_is_told_who_it_is() {
    let Some(place) = Place::new("a_copy_answers_nobody_before_it_is_told_who_it_is") else {
        return;
    };
    let host = place.host();
    let mut machine = host.boot(&place.configuration()).unwrap();
    let before = ask(&machine);
    machine.save(Kind::Full, &place.at("full")).unwrap();
    // Past the driver, which would tell it: the machine itself refuses.
    let root = place.root(&machine);
    let mut api = UnixStream::connect(root.join("api")).unwrap();
    let body = r#"{"state":"Resumed"}"#;
    write!(
        api,
        "PATCH /vm HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut status = [0; 12];
    api.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 204");
    for _ in 0..3 {
        for port in [FACTS_PORT, ECHO_PORT] {
            let refused = machine.connect(port).unwrap_err();
            assert!(
                matches!(refused, FirecrackerError::Closed { .. }),
                "{refused}"
            );
        }
    }
    let generation = Generation {
        identity: [9; 16],
        entropy: [8; 32],
        mac: [2; 6],
        clock_ms: 7,
    };
    let mut stream = machine.connect(GENERATION_PORT).unwrap();
    stream.write_all(&generation.encode()).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, generation.answer());
    let after = ask(&machine);
    assert_eq!((after.identity, after.asked), ([9; 16], before.asked + 1));
}

#[test]
fn a_difference_is_kept_whole_and_has_holes() {
    let Some(place) = Place::new("a_difference_is_kept_whole_and_has_holes") else {
        return;
    };
    let host = place.host();
    fs::write(place.at("disk"), [7; 8192]).unwrap();
    let mut machine = host
        .boot(&Configuration {
            drives: vec![Drive {
                name: "data".into(),
                file: place.at("disk"),
                is_root: false,
                limit: None,
            }],
            ..place.configuration()
        })
        .unwrap();
    let early = machine
        .save(Kind::Difference, &place.at("early"))
        .unwrap_err();
    assert!(matches!(early, FirecrackerError::NoBase), "{early}");
    assert_eq!(ask(&machine).asked, 1);
    machine.save(Kind::Full, &place.at("full")).unwrap();
    machine.resume().unwrap();
    assert_eq!(ask(&machine).asked, 2);
    let second = machine.save(Kind::Difference, &place.at("second")).unwrap();
    machine.resume().unwrap();
    assert_eq!(ask(&machine).asked, 3);
    machine.save(Kind::Difference, &place.at("third")).unwrap();
    // On top of one that was restored, too.
    let mut restored = host.restore(&second).unwrap();
    assert_eq!(ask(&restored).asked, 3);
    restored
        .save(Kind::Difference, &place.at("fourth"))
        .unwrap();
    drop((machine, restored));
    for (name, asked) in [("full", 2), ("second", 3), ("third", 4), ("fourth", 4)] {
        let kept = Snapshot::open(&place.at(name)).unwrap();
        assert_eq!(ask(&host.restore(&kept).unwrap()).asked, asked, "{name}");
        let memory = fs::metadata(place.at(name).join("memory")).unwrap();
        assert_eq!(memory.len(), u64::from(MEMORY_MIB) << 20);
        assert_eq!(
            fs::read(place.at(name).join("drive-data")).unwrap(),
            [7; 8192]
        );
    }
    let taken = machine_error(
        host.boot(&place.configuration()).unwrap(),
        &place.at("full"),
    );
    assert!(taken.contains("File exists"), "{taken}");
}

/// Why it cannot be saved there.
fn machine_error(mut machine: Machine, directory: &Path) -> String {
    machine.save(Kind::Full, directory).unwrap_err().to_string()
}

#[test]
fn a_machine_that_ends_or_never_begins_is_an_error_with_its_words() {
    let Some(place) = Place::new("a_machine_that_ends_or_never_begins_is_an_error_with_its_words")
    else {
        return;
    };
    let host = place.host();
    let machine = host.boot(&place.configuration()).unwrap();
    // It is read beside everything else.
    assert!(soon(|| machine.console().starts_with(b"stockade-guest\n")));
    assert!(machine.first_output_after().is_some());
    let mut stream = machine.connect(FACTS_PORT).unwrap();
    stream.write_all(&[END]).unwrap();
    while !machine.has_ended().unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = machine.connect(FACTS_PORT).unwrap_err();
    assert!(!matches!(ended, FirecrackerError::Closed { .. }), "{ended}");
    drop(machine);
    fs::write(place.at("guest"), "no kernel").unwrap();
    let refused = host.boot(&place.configuration()).unwrap_err();
    assert!(
        matches!(refused, FirecrackerError::Ended { .. }),
        "{refused}"
    );
    assert!(
        refused.to_string().to_lowercase().contains("elf"),
        "{refused}"
    );
    fs::create_dir(place.at("empty")).unwrap();
    let empty = Snapshot::open(&place.at("empty")).unwrap();
    assert!(host.restore(&empty).is_err());
    assert!(place.is_empty());
}

#[test]
fn without_the_jailer_it_is_the_same_machine() {
    let Some(place) = Place::new("without_the_jailer_it_is_the_same_machine") else {
        return;
    };
    let program = place.programs.join("firecracker");
    let host = Host::open(&place.at("machines"), &program, Confinement::Own).unwrap();
    let mut machine = host.boot(&place.configuration()).unwrap();
    let snapshot = machine.save(Kind::Full, &place.at("full")).unwrap();
    let clone = host.restore(&snapshot).unwrap();
    assert_eq!(ask(&clone).generations, 2);
    let (one, other) = (process(&machine), process(&clone));
    drop((machine, clone));
    for process in [one, other] {
        assert!(!Path::new(&format!("/proc/{process}")).exists());
    }
    assert!(place.is_empty());
}

#[test]
fn a_processor_that_runs_no_machine_is_told_apart_from_a_missing_one() {
    let test = "a_processor_that_runs_no_machine_is_told_apart_from_a_missing_one";
    let Some(place) = Place::new(test) else {
        return;
    };
    let programs = ["firecracker", "jailer"].map(|name| place.programs.join(name));
    let tried = |guest| try_machine(&place.at("trial"), &programs[0], &programs[1], guest);
    tried(GUEST).unwrap();
    // Its first instruction is none (ud2), as if the processor could not run it.
    let mut broken = GUEST.to_vec();
    let entry = u64::from_le_bytes(broken[24..32].try_into().unwrap());
    let segments = u64::from_le_bytes(broken[32..40].try_into().unwrap()) as usize;
    let number = |at: usize| u64::from_le_bytes(broken[at..at + 8].try_into().unwrap());
    let offset = (segments..)
        .step_by(56)
        .find(|at| (number(at + 16)..number(at + 16) + number(at + 32)).contains(&entry))
        .map(|at| (entry - number(at + 16) + number(at + 8)) as usize)
        .unwrap();
    broken[offset..offset + 2].copy_from_slice(&[0x0f, 0x0b]);
    let refused = tried(&broken).unwrap_err();
    assert!(refused.reason.contains("does not run"), "{refused}");
    assert!(refused.remedy.contains("nest virtualisation"), "{refused}");
    assert!(!place.at("trial").exists());
}

/// The directory in which this program, started by the test below, makes machines
/// until it is killed.
const VICTIM: &str = "STOCKADE_TEST_FIRECRACKER_VICTIM";

#[test]
fn nothing_of_a_killed_supervisor_stays() {
    let test = "nothing_of_a_killed_supervisor_stays";
    let Some(programs) = firecracker(test) else {
        return;
    };
    if let Some(place) = std::env::var_os(VICTIM) {
        victim(Path::new(&place), &programs);
    }
    let place = Place::new(test).unwrap();
    for round in 0..12u64 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(VICTIM, place.directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // From before the first process is there to after a clone is.
        let base = place.at("machines").to_str().unwrap().to_owned();
        while processes_with(&base).is_empty() && round > 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(round * round * 1500));
        victim.kill().unwrap();
        victim.wait().unwrap();
        // The jailer has the directory among its arguments, Firecracker the
        // machine's name; every process dies by itself.
        let names: Vec<_> = fs::read_dir(place.at("machines/firecracker"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let needles = || names.iter().chain([&base]);
        while needles().any(|needle| !processes_with(needle).is_empty()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A copy of the supervisor that had become nothing yet holds the lock until it
        // notices its end.
        for _ in 0..1000 {
            drop(place.host());
            if place.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(place.is_empty(), "round {round}");
        for name in &names {
            assert_eq!(control_groups_of(name), Vec::<PathBuf>::new());
        }
        if place.at("full").exists() {
            fs::remove_dir_all(place.at("full")).unwrap();
        }
    }
}

fn victim(place: &Path, programs: &Path) -> ! {
    let host = host(&place.join("machines"), programs);
    let configuration = Configuration {
        kernel: place.join("guest"),
        arguments: String::new(),
        memory: MEMORY_MIB,
        processors: 1,
        drives: Vec::new(),
    };
    let mut machine = host.boot(&configuration).unwrap();
    let snapshot = machine.save(Kind::Full, &place.join("full")).unwrap();
    machine.resume().unwrap();
    let _clone = host.restore(&snapshot).unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn the_device_is_opened_or_refused_with_a_remedy() {
    let base = tempfile::tempdir().unwrap();
    let program = Path::new("/usr/bin/firecracker");
    let opened = Host::open(&base.path().join("machines"), program, Confinement::Own);
    let kvm = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    let Err(refused) = opened else {
        assert!(kvm.is_ok());
        return;
    };
    assert!(kvm.is_err());
    let text = refused.to_string();
    assert!(
        text.contains("/dev/kvm cannot be opened") && text.contains("remedy:"),
        "{text}"
    );
}
