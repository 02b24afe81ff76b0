//! Secrets that tests plant outside, the forms in which they must not be found
//! inside, and a look at the egress process from outside.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::World;
use crate::net::Internet;
use crate::tools::soon;

/// Looks like no provider's token; has signs that encodings change.
pub const SECRET: &str = "planted-Zq7w_/Xc0ffee+41~SecretOfTheTest";

/// Writes the secret where only its owner may read it, and returns the line of
/// a policy that names it.
pub fn plant(world: &World, name: &str, secret: &str) -> String {
    use std::io::Write;
    let path = world.outside().join(name);
    let _none = fs::remove_file(&path).is_err();
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(secret.as_bytes()));
    written.expect("a file can be written");
    format!("from = {{ file = \"{}\" }}", path.display())
}

/// The secret as it is and in the encodings in which it could come back.
pub fn forms(secret: &str) -> Vec<Vec<u8>> {
    let hex = |upper: bool| {
        let digits = secret.bytes().map(|byte| match upper {
            true => format!("{byte:02X}"),
            false => format!("{byte:02x}"),
        });
        digits.collect::<String>().into_bytes()
    };
    let percent = |kept: fn(u8) -> bool| {
        let signs = secret.bytes().map(|byte| match kept(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        });
        signs.collect::<String>().into_bytes()
    };
    let mut forms = vec![
        secret.as_bytes().to_vec(),
        hex(false),
        hex(true),
        percent(|byte| byte.is_ascii_alphanumeric()),
        percent(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)),
    ];
    for before in 0..3 {
        let text = [&b"xx"[..before.min(2)], secret.as_bytes()].concat();
        let coded = base64(&text);
        // The first and the last letters also hold what stands around it.
        let inner = &coded[if before == 0 { 0 } else { 4 }..coded.len() / 4 * 4 - 4];
        forms.push(inner.as_bytes().to_vec());
        forms.push(inner.replace('+', "-").replace('/', "_").into_bytes());
    }
    forms.sort();
    forms.dedup();
    forms
}

/// The first form of the secret that is in `bytes`, as text.
pub fn found(secret: &str, bytes: &[u8]) -> Option<String> {
    let is_there = |form: &&Vec<u8>| {
        let first = form[0];
        let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == first);
        starts
            .into_iter()
            .any(|(at, _)| bytes[at..].starts_with(form))
    };
    let forms = forms(secret);
    let form = forms.iter().find(is_there)?;
    Some(String::from_utf8_lossy(form).into_owned())
}

/// Fails when a form of the secret is in `bytes`.
#[track_caller]
pub fn assert_absent(secret: &str, what: &str, bytes: &[u8]) {
    if let Some(form) = found(secret, bytes) {
        panic!("{what} has the secret as {form}");
    }
}

/// The same for a large file, with grep(1).
pub fn found_in_file(secret: &str, path: &Path) -> Option<String> {
    let patterns = path.with_extension("patterns");
    fs::write(&patterns, forms(secret).join(&b'\n')).expect("patterns can be written");
    let mut grep = Command::new("grep");
    grep.args(["-aoF", "-m1", "-f"]).arg(&patterns).arg(path);
    let output = grep.env("LC_ALL", "C").output().expect("grep starts");
    assert!(output.status.code() < Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned)
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let number = group
            .iter()
            .fold(0u32, |number, byte| (number << 8) | u32::from(*byte))
            << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * place)) as usize & 63];
            text.push(match place <= group.len() {
                true => char::from(letter),
                false => '=',
            });
        }
    }
    text
}

/// A shell script inside, in the background.
pub fn start(internet: &Internet, world: &World, script: &str) -> Child {
    let mut command = world.stockade();
    command.args(["run", "--", "sh", "-c", script]);
    let mut command = internet.on_machine(&command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("nsenter starts")
}

/// `stockade ARGUMENTS`, outside and beside a run; standard output.
pub fn outside(world: &World, arguments: &[&str]) -> String {
    let mut command = world.stockade();
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().expect("stockade starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The records of the log, of one event.
pub fn records(world: &World, event: &str) -> Vec<serde_json::Value> {
    let log = outside(world, &["log", "--json"]);
    let records = log
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line is a record"));
    records.filter(|record| record["event"] == event).collect()
}

/// Process id of the egress process of a run: the one that descends from it.
///
/// # Panics
///
/// When there is none within 20 seconds.
pub fn egress_of(run: &Child) -> u32 {
    let mut found = None;
    let one = soon(|| {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        found = processes
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|process| {
                let line = fs::read(format!("/proc/{process}/cmdline"));
                line.is_ok_and(|line| line == b"stockade\0egress\0")
            })
            .find(|process| descends(*process, run.id()));
        found.is_some()
    });
    assert!(one, "the run has no egress process");
    found.expect("it was found")
}

fn descends(mut process: u32, ancestor: u32) -> bool {
    while process > 1 {
        if process == ancestor {
            return true;
        }
        match status(process, "PPid:") {
            Some(parent) => process = parent as u32,
            None => return false,
        }
    }
    false
}

/// Resident memory of a process in KiB, while it lives.
pub fn resident_kib(process: u32) -> Option<u64> {
    status(process, "VmRSS:")
}

fn status(process: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Waits for the end of a run and returns with it the most memory that its
/// egress process was seen to have, in KiB.
pub fn watched(mut run: Child) -> (crate::Finished, u64) {
    let egress = egress_of(&run);
    let mut most = 0;
    // Pipes are read meanwhile, or the run could not end.
    let readers = (
        drain(run.stdout.take().expect("a pipe")),
        drain(run.stderr.take().expect("a pipe")),
    );
    let status = loop {
        most = most.max(resident_kib(egress).unwrap_or(0));
        if let Some(status) = run.try_wait().expect("the run can be waited for") {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let output = std::process::Output {
        status,
        stdout: readers.0.join().expect("the reader does not panic"),
        stderr: readers.1.join().expect("the reader does not panic"),
    };
    (crate::Finished::of(output), most)
}

fn drain<R: std::io::Read + Send + 'static>(mut pipe: R) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _cut = pipe.read_to_end(&mut bytes).is_err();
        bytes
    })
}

/// A Python program among the origins, killed when dropped. It must create
/// the file that its first argument names once it listens.
#[derive(Debug)]
pub struct Remote(Child);

impl Remote {
    pub fn start(internet: &Internet, world: &World, script: &str) -> Self {
        Self::spawn(world, |command| internet.among_origins(command), script)
    }

    /// The same on the machine on which Stockade runs.
    pub fn on_machine(internet: &Internet, world: &World, script: &str) -> Self {
        Self::spawn(world, |command| internet.on_machine(command), script)
    }

    fn spawn(world: &World, place: impl Fn(&Command) -> Command, script: &str) -> Self {
        let mark = world.outside().join("remote-listens");
        let _none = fs::remove_file(&mark).is_err();
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", script]).arg(&mark);
        let mut command = place(&command);
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .expect("nsenter starts");
        assert!(soon(|| mark.exists()), "the remote program does not listen");
        Self(child)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _gone = self.0.kill().is_err();
        let _reaped = self.0.wait().is_err();
    }
}
