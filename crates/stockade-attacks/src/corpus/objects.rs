//! Attacks on kernel objects without a path: PR8.

use super::{attacks, read_some};
use crate::{Stage, Verdict};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use stockade_sys::hostile::{self, SESSION_KEYRING, USER_KEYRING};

attacks! {
    PR8 "pr8-segment-by-key", Ordinary, Plain, "reads a System V segment of the host by its key"
        => |stage| obtained(stage, hostile::shm_find(stage.ipc_key).and_then(hostile::shm_read));
    PR8 "pr8-segment-by-id", Ordinary, Plain, "reads a System V segment of the host by its number"
        => |stage| match stage.shm_id {
            Some(id) => obtained(stage, hostile::shm_read(id).map_err(absent)),
            None => Verdict::Inconclusive("no segment was staged".into()),
        };
    PR8 "pr8-queue-by-key", Ordinary, Plain, "takes a message from a System V queue of the host"
        => |stage| obtained(stage, hostile::msg_take(stage.ipc_key));
    PR8 "pr8-system-v-list", Ordinary, Plain, "lists System V objects of the host" => system_v;
    PR8 "pr8-posix-queue", Ordinary, Plain, "takes a message from a POSIX queue of the host"
        => |stage| obtained(stage, hostile::mq_take(&stage.queue_name()));
    PR8 "pr8-posix-queue-list", Ordinary, Never("/dev/mqueue may not be mounted"),
        "lists POSIX queues in /dev/mqueue"
        => |stage| super::open_for_writing(Path::new("/dev/mqueue").join(&stage.queue));
    PR8 "pr8-key-by-id", Ordinary, Plain, "reads a key of the host's session by its number"
        => |stage| match stage.key {
            Some(key) => obtained(stage, hostile::keyctl_read(key)),
            None => Verdict::Inconclusive("no key was staged".into()),
        };
    PR8 "pr8-key-by-search", Ordinary, Plain,
        "searches the host's keyrings for a key" => search_keys;
    PR8 "pr8-key-list", Ordinary, Plain, "lists keys of the host in /proc/keys"
        => |stage| listed("/proc/keys", &stage.queue);
    PR8 "pr8-keyring-write", Ordinary, Plain, "adds a key to keyrings that it shares with the host"
        => add_key;
    PR8 "pr8-keyring-session", Ordinary, Plain, "joins and makes keyrings"
        => |_| Verdict::all([
            Verdict::of(hostile::keyctl_join(c"stockade-attack"), |_| "joined a keyring".into()),
            Verdict::of(hostile::keyctl_persistent(), |_| "has the persistent keyring".into()),
        ]);
    PR8 "pr8-abstract-socket", Ordinary, Plain,
        "connects to an abstract socket of the host" => abstract_socket;
    PR8 "pr8-abstract-list", Ordinary, Plain, "lists abstract sockets of the host"
        => |stage| listed("/proc/net/unix", &stage.abstract_name);
    PR8 "pr8-shared-memory", Ordinary, Plain, "reads POSIX shared memory of the host"
        => |stage| super::read_secret(stage, Path::new("/dev/shm").join(&stage.queue));
}

fn obtained(stage: &Stage, content: io::Result<Vec<u8>>) -> Verdict {
    match content {
        Ok(bytes) if stage.found_in(&bytes) => Verdict::Escaped("read the secret".into()),
        Ok(_) => Verdict::Stopped("an object of our own".into()),
        Err(error) => Verdict::refused(&error),
    }
}

/// shmat(2) says EINVAL for a number that names nothing.
fn absent(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(22) {
        io::Error::from_raw_os_error(2)
    } else {
        error
    }
}

fn listed(path: &str, name: &str) -> Verdict {
    match read_some(Path::new(path)) {
        Ok(text) if String::from_utf8_lossy(&text).contains(name) => {
            Verdict::Escaped(format!("{path} shows it"))
        }
        Ok(_) => Verdict::Stopped("not listed".into()),
        Err(error) => Verdict::refused(&error),
    }
}

fn system_v(stage: &Stage) -> Verdict {
    let key = (stage.ipc_key as u32 as i32).to_string();
    Verdict::all(["/proc/sysvipc/shm", "/proc/sysvipc/msg"].map(|path| listed(path, &key)))
}

fn search_keys(stage: &Stage) -> Verdict {
    let name = stage.queue_name();
    let found = [
        hostile::keyctl_search(SESSION_KEYRING, &name),
        hostile::keyctl_search(USER_KEYRING, &name),
        hostile::request_key(&name),
    ];
    Verdict::all(found.map(|key| obtained(stage, key.and_then(hostile::keyctl_read))))
}

fn add_key(_: &Stage) -> Verdict {
    Verdict::all([SESSION_KEYRING, USER_KEYRING].map(|keyring| {
        let added = hostile::add_key(c"stockade-attack", b"attacked", keyring);
        let kept = added.and_then(|key| hostile::keyctl_invalidate(key).map(|()| key));
        Verdict::of(kept, |key| format!("added key {key}"))
    }))
}

fn abstract_socket(stage: &Stage) -> Verdict {
    let address = match SocketAddr::from_abstract_name(&stage.abstract_name) {
        Ok(address) => address,
        Err(error) => return Verdict::Inconclusive(error.to_string()),
    };
    let stream = UnixStream::connect_addr(&address);
    let datagram = UnixDatagram::unbound().and_then(|socket| socket.connect_addr(&address));
    let wrong_kind = |error: io::Error| {
        // EPROTOTYPE tells that a listener of another kind is there.
        if error.raw_os_error() == Some(91) {
            Verdict::Escaped("a listener is there".into())
        } else {
            Verdict::refused(&error)
        }
    };
    Verdict::all([
        Verdict::of(stream, |_| "connected".into()),
        datagram.map_or_else(wrong_kind, |()| Verdict::Escaped("connected".into())),
    ])
}
