//! Attacks on other processes: PR3, and on the end of the sandbox: PR4.

use super::{attacks, open, processes, read_secret};
use crate::inside::{Linger, leave_process};
use crate::verdict::error_name;
use crate::{Stage, Verdict};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use stockade_sys::hostile;

/// SIGCONT, SIGSTOP and SIGKILL (signal(7)).
const CONTINUE: i32 = 18;
const STOP: i32 = 19;
const KILL: i32 = 9;

attacks! {
    PR3 "pr3-see-victim", Ordinary, Plain, "finds a process of the host in /proc" => see;
    PR3 "pr3-victim-environment", Ordinary, Plain, "reads the environment of a process of the host"
        => |stage| read_secret(stage, format!("/proc/{}/environ", stage.victim));
    PR3 "pr3-victim-memory", Ordinary, Plain, "reads memory of a process of the host"
        => |stage| memory_of(stage, stage.victim);
    PR3 "pr3-trace-victim", Ordinary, Plain, "traces a process of the host"
        => |stage| Verdict::of(hostile::ptrace_seize(stage.victim), |()| "traces it".into());
    PR3 "pr3-signal-victim", Ordinary, Plain, "signals a process of the host"
        => |stage| unless_ours(stage, hostile::kill(stage.victim, CONTINUE));
    PR3 "pr3-signal-group", Ordinary, Plain, "signals the process group of a process of the host"
        => |stage| Verdict::of(hostile::kill(-stage.victim, 0), |()| "may signal it".into());
    PR3 "pr3-signal-everyone", Ordinary, Never("continues every stopped process"),
        "signals every process that it may, while a stopped one of the host is watched"
        => |_| match hostile::kill(-1, CONTINUE) {
            Ok(()) => Verdict::Inconclusive("sent; outside it shows whom it reached".into()),
            Err(error) => Verdict::refused(&error),
        };
    PR3 "pr3-signal-by-owner", Ordinary, Plain,
        "has the kernel signal a process of the host (F_SETOWN)"
        => |stage| unless_ours(stage, own_signals(stage.victim));
    PR3 "pr3-pidfd-victim", Ordinary, Plain, "takes descriptors out of a process of the host"
        => |stage| Verdict::of(steal(stage.victim), |_| "has its descriptor".into());
    PR3 "pr3-limits-victim", Ordinary, Plain, "reads limits of a process of the host"
        => |stage| unless_ours(stage, hostile::prlimit_read(stage.victim));
    PR3 "pr3-compare-victim", Ordinary, Plain, "compares itself with a process of the host (kcmp)"
        => |stage| unless_ours(stage, hostile::kcmp(std::process::id() as i32, stage.victim));
    PR3 "pr3-init-environment", Ordinary, Never("the host's init is not the launcher"),
        "reads environment, map and descriptors of process 1" => init_files;
    PR3 "pr3-init-memory", Ordinary, Never("the host's init is not the launcher"),
        "reads and writes memory of process 1" => init_memory;
    PR3 "pr3-init-trace", Ordinary, Never("the host's init is not the launcher"), "traces process 1"
        => |_| Verdict::all([
            Verdict::of(hostile::ptrace_seize(1), |()| "traces it".into()),
            Verdict::of(hostile::ptrace_attach(1), |()| "traced it".into()),
        ]);
    PR3 "pr3-init-descriptors", Ordinary, Never("the host's init is not the launcher"),
        "takes descriptors out of process 1 with pidfd_getfd(2)"
        => |_| Verdict::of(steal(1), |_| "has its descriptor".into());
    PR3 "pr3-init-stop", Ordinary, Never("would stop the host's init"), "stops and kills process 1"
        => stop_init;
    PR3 "pr3-search-proc", Ordinary, Plain,
        "searches environments, arguments and threads of all processes for a secret" => search;
    PR4 "pr4-daemon", Ordinary, Plain, "leaves a process in a session of its own"
        => |stage| leave(stage, "pr4-daemon", Linger::Quiet);
    PR4 "pr4-deaf-daemon", Ordinary, Plain, "leaves a process that ignores every signal"
        => |stage| leave(stage, "pr4-deaf-daemon", Linger::Deaf);
    PR4 "pr4-respawning-pair", Ordinary, Plain, "leaves two processes that start each other again"
        => |stage| leave(stage, "pr4-respawning-pair", Linger::Respawning);
    PR4 "pr4-holds-streams", Ordinary, Plain,
        "leaves a process that holds the caller's streams open"
        => |stage| leave(stage, "pr4-holds-streams", Linger::HoldsStreams);
    PR4 "pr4-stopped", Ordinary, Plain, "leaves a process that is stopped"
        => |stage| leave(stage, "pr4-stopped", Linger::Stopped);
}

/// A number may name a process of the sandbox by chance; then nothing was
/// gained.
fn unless_ours<T>(stage: &Stage, result: io::Result<T>) -> Verdict {
    let path = format!("/proc/{}/cmdline", stage.victim);
    let arguments = std::fs::read(path).unwrap_or_default();
    match result {
        Ok(_) if !arguments.is_empty() && !stage.is_victim(&arguments) => {
            Verdict::Stopped("the number names a process of our own".into())
        }
        other => Verdict::of(other, |_| "the kernel obeyed".into()),
    }
}

fn see(stage: &Stage) -> Verdict {
    let shown = processes().into_iter().find(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        stage.is_victim(&arguments)
    });
    match shown {
        Some(pid) => Verdict::Escaped(format!("sees it as process {pid}")),
        None => Verdict::Stopped("not among the processes shown".into()),
    }
}

/// Reads the stack, which holds the environment.
fn memory_of(stage: &Stage, pid: i32) -> Verdict {
    let map = match std::fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(map) => map,
        Err(error) => return Verdict::refused(&error),
    };
    let stack = map
        .lines()
        .find(|line| line.ends_with("[stack]"))
        .and_then(|line| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            Some((
                u64::from_str_radix(start, 16).ok()?,
                u64::from_str_radix(end, 16).ok()?,
            ))
        });
    let Some((start, end)) = stack else {
        return Verdict::Stopped("its map shows no stack".into());
    };
    let bytes = (end - start).min(1 << 20) as usize;
    let by_call = hostile::process_vm_read(pid, end - bytes as u64, bytes);
    let by_file = open(Path::new(&format!("/proc/{pid}/mem")), OFlags::RDONLY).and_then(|file| {
        let mut buffer = vec![0_u8; bytes];
        file.read_exact_at(&mut buffer, end - bytes as u64)?;
        Ok(buffer)
    });
    Verdict::all([by_call, by_file].map(|read| match read {
        Ok(memory) if stage.found_in(&memory) => Verdict::Escaped("read the secret".into()),
        Ok(_) => Verdict::Stopped("no secret there".into()),
        Err(error) => Verdict::refused(&error),
    }))
}

fn own_signals(pid: i32) -> io::Result<()> {
    let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    hostile::set_signal_owner(near.as_fd(), pid)
}

fn steal(pid: i32) -> io::Result<impl AsFd> {
    let process = hostile::pidfd_open(pid)?;
    hostile::pidfd_getfd(process.as_fd(), 0)
}

fn init_files(stage: &Stage) -> Verdict {
    let names = [
        "environ",
        "maps",
        "auxv",
        "mem",
        "map_files",
        "fd",
        "io",
        "stack",
        "syscall",
    ];
    let opened = names.map(|name| {
        let path = format!("/proc/1/{name}");
        let listed = match name {
            "fd" | "map_files" => listed_entries(&path),
            _ => open(Path::new(&path), OFlags::RDONLY).and_then(|mut file| {
                let mut sink = Vec::new();
                io::Read::read_to_end(&mut io::Read::take(&mut file, 4096), &mut sink)?;
                if stage.found_in(&sink) {
                    Ok(u64::MAX)
                } else {
                    Ok(sink.len() as u64)
                }
            }),
        };
        match listed {
            Ok(0) => Verdict::Stopped("empty".into()),
            Ok(size) => Verdict::Escaped(format!("{path} gave {size}")),
            // Reading address 0 of a memory file that did open.
            Err(error) if name == "mem" && error_name(&error) == "EIO" => {
                Verdict::Escaped("opened /proc/1/mem".into())
            }
            Err(error) => Verdict::refused(&error),
        }
    });
    Verdict::all(opened)
}

/// How many entries of such a directory tell where they lead. The numbers alone
/// show to every process of the same user and give nothing away.
fn listed_entries(path: &str) -> io::Result<u64> {
    let mut refused = None;
    let mut told = 0;
    for entry in std::fs::read_dir(path)? {
        match std::fs::read_link(entry?.path()) {
            Ok(_) => told += 1,
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if told == 0 => Err(error),
        _ => Ok(told),
    }
}

fn init_memory(stage: &Stage) -> Verdict {
    let read = hostile::process_vm_read(1, 0x1000, 16);
    let refused_read = match read {
        Err(error) if error_name(&error) == "EFAULT" => {
            Verdict::Escaped("may read its memory".into())
        }
        other => Verdict::of(other, |_| "read its memory".into()),
    };
    let write = Verdict::of(hostile::process_vm_write_nothing(1, 0x1000), |()| {
        "may write its memory".into()
    });
    Verdict::all([refused_read, write, memory_of(stage, 1)])
}

fn stop_init(_: &Stage) -> Verdict {
    // The kernel accepts signals to the first process of a namespace and
    // drops them, so only the state tells.
    let sent = [STOP, KILL].map(|signal| hostile::kill(1, signal));
    std::thread::sleep(std::time::Duration::from_millis(100));
    match super::status("1", "State") {
        Ok(state) if state.starts_with('T') || state.starts_with('Z') => {
            Verdict::Escaped(format!("process 1 is {state}"))
        }
        Ok(_) if sent.iter().all(Result::is_ok) => Verdict::Stopped("signals had no effect".into()),
        Ok(_) => Verdict::Stopped("signals were refused".into()),
        Err(error) => Verdict::refused(&error),
    }
}

fn search(stage: &Stage) -> Verdict {
    let mut files = Vec::new();
    for pid in processes() {
        for name in ["environ", "cmdline"] {
            files.push(format!("/proc/{pid}/{name}"));
        }
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        files.extend(tasks.map(|task| format!("{}/environ", task.path().display())));
    }
    Verdict::all(files.into_iter().map(|file| read_secret(stage, file)))
}

fn leave(stage: &Stage, id: &str, how: Linger) -> Verdict {
    match leave_process(how, &format!("{}:{id}", stage.linger_mark())) {
        Ok(()) => Verdict::Inconclusive("left; outside it shows whether it lives on".into()),
        Err(error) => Verdict::refused(&error),
    }
}
