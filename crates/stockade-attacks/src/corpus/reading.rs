//! Attacks on what may be read: FS1 and FS3.

use super::{attacks, open, read_secret, tidy, workspace_path};
use crate::{Stage, Verdict};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stockade_sys::hostile;

const SSH: &[&str] = &[
    ".ssh/id_bait",
    ".ssh/config",
    ".gnupg/private-keys-v1.d/bait.key",
];
const CLOUD: &[&str] = &[
    ".aws/credentials",
    ".aws/sso/cache/bait.json",
    ".azure/accessTokens.json",
    ".config/gcloud/application_default_credentials.json",
    ".kube/config",
    ".docker/config.json",
    ".terraform.d/credentials.tfrc.json",
];
const PACKAGES: &[&str] = &[
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
];
const GIT: &[&str] = &[
    ".git-credentials",
    ".netrc",
    ".config/git/credentials",
    ".config/gh/hosts.yml",
    ".config/glab-cli/config.yml",
];
const HISTORY: &[&str] = &[
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
];
const BROWSERS: &[&str] = &[
    ".mozilla/firefox/bait.default/logins.json",
    ".mozilla/firefox/bait.default/cookies.sqlite",
    ".config/google-chrome/Default/Cookies",
    ".config/chromium/Default/Login Data",
];
const KEYRINGS: &[&str] = &[
    ".local/share/keyrings/login.keyring",
    ".password-store/bait.gpg",
    ".config/Bitwarden/data.json",
];
const AGENTS: &[&str] = &[
    ".claude/.credentials.json",
    ".claude.json",
    ".codex/auth.json",
    ".gemini/oauth_creds.json",
    ".config/github-copilot/hosts.json",
];

/// Every credential file that the bait lays in a made-up home.
pub(crate) const CREDENTIALS: &[&[&str]] = &[
    SSH, CLOUD, PACKAGES, GIT, HISTORY, BROWSERS, KEYRINGS, AGENTS,
];

attacks! {
    FS1 "fs1-read-beside", Ordinary, Plain, "reads a file beside the workspace by its path"
        => |stage| read_secret(stage, stage.secret());
    FS1 "fs1-presence-beside", Ordinary, Plain, "learns from the error that a hidden file exists"
        => presence;
    FS1 "fs1-dotdot", Ordinary, Plain, "climbs out of the workspace with .."
        => climb;
    FS1 "fs1-list-neighbours", Ordinary, Plain, "lists the directory that holds the workspace"
        => neighbours;
    FS1 "fs1-symlink-out", Ordinary, Plain, "reads through a link in the workspace"
        => symlink;
    FS1 "fs1-hardlink-out", Ordinary, Plain, "makes a hard link to a file beside the workspace"
        => hardlink;
    FS1 "fs1-proc-root", Ordinary, Plain, "goes through /proc/PID/root and cwd of every process"
        => proc_root;
    FS1 "fs1-file-handle", Ordinary, Plain, "opens a file of the host by its handle"
        => handle;
    FS1 "fs1-root-handle", Ordinary, Never("the handle differs by file system"),
        "guesses the handle of the host's root directory" => root_handle;
    FS1 "fs1-disk-device", Ordinary, Never("the disk differs by machine"),
        "reads the host's disk through a device node, also one of its own" => disk;
    FS1 "fs1-memory-device", Ordinary, Never("depends on the kernel's configuration"),
        "reads physical memory through /dev/mem, /dev/port or /proc/kcore" => memory;
    FS1 "fs1-public-directories", Ordinary, Plain, "reads what the host keeps in /tmp and /dev/shm"
        => |stage| Verdict::all(stage.public_secrets.iter().map(|path| read_secret(stage, path)));
    FS1 "fs1-walk", Ordinary, Plain, "walks the whole view in search of bait"
        => walk;
    FS1 "fs1-old-root", Ordinary, Never("there is no old root without a sandbox"),
        "looks for a root that a set-up left behind" => old_root;
    FS3 "fs3-ssh", Ordinary, Plain,
        "reads keys of ssh and GnuPG" => |stage| credentials(stage, SSH);
    FS3 "fs3-cloud", Ordinary, Plain, "reads credentials of cloud providers"
        => |stage| credentials(stage, CLOUD);
    FS3 "fs3-packages", Ordinary, Plain, "reads tokens of package managers"
        => |stage| credentials(stage, PACKAGES);
    FS3 "fs3-git", Ordinary, Plain, "reads credentials of git and its hosts"
        => |stage| credentials(stage, GIT);
    FS3 "fs3-history", Ordinary, Plain, "reads the history of shells"
        => |stage| credentials(stage, HISTORY);
    FS3 "fs3-browsers", Ordinary, Plain, "reads cookies and passwords of browsers"
        => |stage| credentials(stage, BROWSERS);
    FS3 "fs3-keyrings", Ordinary, Plain, "reads keyrings and password managers"
        => |stage| credentials(stage, KEYRINGS);
    FS3 "fs3-agents", Ordinary, Plain, "reads credentials of coding agents"
        => |stage| credentials(stage, AGENTS);
    FS3 "fs3-link-in-workspace", Ordinary, Plain, "reads ~/.ssh through a link in the workspace"
        => credential_link;
}

fn credentials(stage: &Stage, names: &[&str]) -> Verdict {
    let Some(home) = &stage.home else {
        return Verdict::Inconclusive("no made-up home was staged".into());
    };
    Verdict::all(names.iter().map(|name| read_secret(stage, home.join(name))))
}

fn credential_link(stage: &Stage) -> Verdict {
    let Some(home) = &stage.home else {
        return Verdict::Inconclusive("no made-up home was staged".into());
    };
    through_link(stage, &home.join(".ssh"), "id_bait")
}

fn presence(stage: &Stage) -> Verdict {
    let real = std::fs::symlink_metadata(stage.secret());
    let made_up = std::fs::symlink_metadata(stage.beside.join("no-such-file"));
    match (real, made_up) {
        (Ok(_), _) => Verdict::Escaped("the hidden file shows its metadata".into()),
        (Err(real), Err(made_up)) if real.raw_os_error() != made_up.raw_os_error() => {
            Verdict::Escaped(format!("errors differ: {real} against {made_up}"))
        }
        (Err(error), _) => Verdict::refused(&error),
    }
}

fn climb(stage: &Stage) -> Verdict {
    let Ok(target) = stage.secret().strip_prefix("/").map(Path::to_path_buf) else {
        return Verdict::Inconclusive("the bait has a relative path".into());
    };
    let mut path = stage.workspace.clone();
    path.extend(std::iter::repeat_n("..", 64));
    let by_path = read_secret(stage, path.join(&target));
    let by_steps = climb_by_steps(stage, &target);
    Verdict::all([by_path, by_steps])
}

fn climb_by_steps(stage: &Stage, target: &Path) -> Verdict {
    let step = || -> io::Result<Vec<u8>> {
        let mut directory = open(&stage.workspace, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for _ in 0..64 {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            directory = rustix::fs::openat(&directory, "..", flags, Mode::empty())?.into();
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, target, flags, Mode::empty())?;
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match step() {
        Ok(bytes) if stage.found_in(&bytes) => Verdict::Escaped("read the secret".into()),
        Ok(_) => Verdict::Stopped("something else is there".into()),
        Err(error) => Verdict::refused(&error),
    }
}

fn neighbours(stage: &Stage) -> Verdict {
    let parent = stage.workspace.parent().unwrap_or(Path::new("/"));
    let expected = [Some(&stage.workspace), stage.home.as_ref()];
    match std::fs::read_dir(parent) {
        Err(error) => Verdict::refused(&error),
        Ok(entries) => {
            let stranger = entries
                .flatten()
                .map(|entry| entry.path())
                .find(|path| !expected.contains(&Some(path)));
            match stranger {
                Some(path) => Verdict::Escaped(format!("saw {}", path.display())),
                None => Verdict::Stopped("only what is granted shows".into()),
            }
        }
    }
}

fn symlink(stage: &Stage) -> Verdict {
    through_link(stage, &stage.beside, "secret")
}

fn through_link(stage: &Stage, target: &Path, name: &str) -> Verdict {
    let link = workspace_path(stage, "link");
    if let Err(error) = std::os::unix::fs::symlink(target, &link) {
        return Verdict::Inconclusive(format!("cannot make a link: {error}"));
    }
    let verdict = read_secret(stage, link.join(name));
    tidy(&link);
    verdict
}

fn hardlink(stage: &Stage) -> Verdict {
    let link = workspace_path(stage, "hardlink");
    let made = std::fs::hard_link(stage.secret(), &link);
    let verdict = Verdict::of(made, |()| "linked the secret into the workspace".into());
    tidy(&link);
    verdict
}

fn proc_root(stage: &Stage) -> Verdict {
    let Ok(target) = stage.secret().strip_prefix("/").map(Path::to_path_buf) else {
        return Verdict::Inconclusive("the bait has a relative path".into());
    };
    let names = ["1".to_owned(), "self".to_owned(), "thread-self".to_owned()];
    let others = super::processes().into_iter().map(|pid| pid.to_string());
    let climb: PathBuf = std::iter::repeat_n("..", 64).collect();
    Verdict::all(names.into_iter().chain(others).flat_map(|pid| {
        let process = Path::new("/proc").join(pid);
        [
            read_secret(stage, process.join("root").join(&target)),
            read_secret(stage, process.join("cwd").join(&climb).join(&target)),
        ]
    }))
}

fn handle(stage: &Stage) -> Verdict {
    let Some(handle) = &stage.handle else {
        return Verdict::Inconclusive("the file system has no handles".into());
    };
    let places = [
        stage.workspace.as_path(),
        Path::new("/"),
        Path::new("/usr"),
        Path::new("/tmp"),
    ];
    Verdict::all(places.map(|place| {
        let read = || -> io::Result<Vec<u8>> {
            let mount = open(place, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let mut bytes = Vec::new();
            File::from(hostile::open_by_handle(mount.as_fd(), handle)?)
                .take(4096)
                .read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) if stage.found_in(&bytes) => Verdict::Escaped("read the secret".into()),
            Ok(_) => Verdict::Stopped("another file".into()),
            // A stale handle only means that this is another file system.
            Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
        }
    }))
}

fn root_handle(stage: &Stage) -> Verdict {
    let open_root = |inode: u32| -> io::Result<File> {
        let mount = open(&stage.workspace, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut bytes = inode.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        hostile::open_by_handle(mount.as_fd(), &(1, bytes)).map(File::from)
    };
    Verdict::all([2, 128, 256].map(|inode| match open_root(inode) {
        Ok(_) => Verdict::Escaped(format!("opened inode {inode} of the host's file system")),
        Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
    }))
}

fn disk(stage: &Stage) -> Verdict {
    let mut verdicts = Vec::new();
    for entry in std::fs::read_dir("/dev").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if ["sd", "vd", "nvme", "xvd", "dm-", "loop", "md"]
            .iter()
            .any(|disk| name.starts_with(disk))
        {
            let opened = open(&entry.path(), OFlags::RDONLY);
            verdicts.push(Verdict::of(opened, |_| format!("opened /dev/{name}")));
        }
    }
    for directory in [
        stage.workspace.as_path(),
        Path::new("/tmp"),
        Path::new("/dev"),
    ] {
        let node = directory.join(format!(".stockade-node-{}", std::process::id()));
        let permissions = Mode::RUSR | Mode::WUSR;
        let made = rustix::fs::mknodat(CWD, &node, FileType::BlockDevice, permissions, stage.disk);
        let opened = made
            .map_err(io::Error::from)
            .and_then(|()| open(&node, OFlags::RDONLY));
        verdicts.push(match opened {
            Ok(_) => Verdict::Escaped("opened the host's disk through a node of its own".into()),
            Err(error) => Verdict::Stopped(crate::verdict::error_name(&error)),
        });
        tidy(&node);
    }
    Verdict::all(verdicts)
}

fn memory(_: &Stage) -> Verdict {
    let paths = ["/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore"];
    Verdict::all(paths.map(|path| {
        Verdict::of(open(Path::new(path), OFlags::RDONLY), |_| {
            format!("opened {path}")
        })
    }))
}

fn walk(stage: &Stage) -> Verdict {
    let end = Instant::now() + Duration::from_secs(7);
    let skipped = [
        Path::new("/proc"),
        Path::new("/sys"),
        stage.workspace.as_path(),
    ];
    let mut open = VecDeque::from([PathBuf::from("/tmp"), PathBuf::from("/")]);
    let mut seen = 0_usize;
    while let Some(directory) = open.pop_front() {
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            seen += 1;
            if entry.file_name().to_string_lossy().contains(&stage.queue) {
                return Verdict::Escaped(format!("found {}", path.display()));
            }
            let below = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if below && !skipped.contains(&path.as_path()) {
                open.push_back(path);
            }
        }
        if Instant::now() > end {
            return Verdict::Stopped(format!("no bait among the first {seen} names"));
        }
    }
    Verdict::Stopped(format!("no bait among {seen} names"))
}

fn old_root(stage: &Stage) -> Verdict {
    let Ok(target) = stage.secret().strip_prefix("/").map(Path::to_path_buf) else {
        return Verdict::Inconclusive("the bait has a relative path".into());
    };
    let roots = [
        "/oldroot",
        "/.oldroot",
        "/old",
        "/put_old",
        "/newroot",
        "/host",
        "/mnt",
        "/media",
    ];
    Verdict::all(roots.map(|root| read_secret(stage, Path::new(root).join(&target))))
}
