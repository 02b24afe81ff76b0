//! A held call, decoded: one form for each thing that can be done to a name,
//! whichever of the kernel's calls asked for it.

use rustix::fs::OFlags;
use stockade_policy::facts::Architecture;
use stockade_policy::seccomp;
use stockade_sys::seccomp::Notification;

/// AT_FDCWD of linux/fcntl.h.
pub(super) const HERE: i32 = -100;
/// AT_REMOVEDIR, AT_SYMLINK_FOLLOW and AT_EMPTY_PATH of linux/fcntl.h.
const REMOVE_DIRECTORY: u64 = 0x200;
const FOLLOW: u64 = 0x400;
const EMPTY_PATH: u64 = 0x1000;

/// A path argument: a directory of the caller, and an address in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) directory: i32,
    pub(super) address: u64,
}

/// How the source of a link is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Name,
    /// A link in the last place is followed.
    Followed,
    /// The descriptor itself (AT_EMPTY_PATH).
    Descriptor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Open {
        at: Named,
        flags: OFlags,
        mode: u32,
    },
    MakeDirectory {
        at: Named,
        mode: u32,
    },
    MakeNode {
        at: Named,
        mode: u32,
    },
    Rename {
        from: Named,
        to: Named,
        flags: u32,
    },
    Link {
        from: Named,
        source: Source,
        to: Named,
    },
    Symlink {
        /// Address of where it leads.
        target: u64,
        at: Named,
    },
    Remove {
        at: Named,
        directory: bool,
    },
    Truncate {
        at: Named,
        length: i64,
    },
}

/// The numbers of this architecture, looked up once.
pub(super) struct Decoder(Vec<(&'static str, u32)>);

impl Decoder {
    pub(super) fn new(architecture: Architecture) -> Self {
        Self(seccomp::names::held(architecture))
    }

    /// `None` for a call that is not held by the filter.
    pub(super) fn decode(&self, call: &Notification) -> Option<Call> {
        let name = self
            .0
            .iter()
            .find(|(_, number)| *number == call.number)
            .map(|(name, _)| *name)?;
        Some(decode(name, &call.arguments))
    }
}

fn at(directory: u64, address: u64) -> Named {
    Named {
        // The kernel looks at the low 32 bits.
        directory: directory as u32 as i32,
        address,
    }
}

fn here(address: u64) -> Named {
    Named {
        directory: HERE,
        address,
    }
}

fn decode(name: &str, arguments: &[u64; 6]) -> Call {
    let &[a, b, c, d, ..] = arguments;
    let flags = |bits: u64| OFlags::from_bits_retain(bits as u32);
    match name {
        "open" => Call::Open {
            at: here(a),
            flags: flags(b),
            mode: c as u32,
        },
        "creat" => Call::Open {
            at: here(a),
            flags: OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
            mode: b as u32,
        },
        "openat" => Call::Open {
            at: at(a, b),
            flags: flags(c),
            mode: d as u32,
        },
        "mkdir" => Call::MakeDirectory {
            at: here(a),
            mode: b as u32,
        },
        "mkdirat" => Call::MakeDirectory {
            at: at(a, b),
            mode: c as u32,
        },
        "mknod" => Call::MakeNode {
            at: here(a),
            mode: b as u32,
        },
        "mknodat" => Call::MakeNode {
            at: at(a, b),
            mode: c as u32,
        },
        _ => decode_moving(name, arguments),
    }
}

/// The calls that name two places, or take one away.
fn decode_moving(name: &str, arguments: &[u64; 6]) -> Call {
    let &[a, b, c, d, e, _] = arguments;
    match name {
        "rename" => Call::Rename {
            from: here(a),
            to: here(b),
            flags: 0,
        },
        "renameat" => Call::Rename {
            from: at(a, b),
            to: at(c, d),
            flags: 0,
        },
        "renameat2" => Call::Rename {
            from: at(a, b),
            to: at(c, d),
            flags: e as u32,
        },
        "link" => Call::Link {
            from: here(a),
            source: Source::Name,
            to: here(b),
        },
        "linkat" => Call::Link {
            from: at(a, b),
            source: match e {
                e if e & EMPTY_PATH != 0 => Source::Descriptor,
                e if e & FOLLOW != 0 => Source::Followed,
                _ => Source::Name,
            },
            to: at(c, d),
        },
        "symlink" => Call::Symlink {
            target: a,
            at: here(b),
        },
        "symlinkat" => Call::Symlink {
            target: a,
            at: at(b, c),
        },
        "unlink" => Call::Remove {
            at: here(a),
            directory: false,
        },
        "rmdir" => Call::Remove {
            at: here(a),
            directory: true,
        },
        "unlinkat" => Call::Remove {
            at: at(a, b),
            directory: c & REMOVE_DIRECTORY != 0,
        },
        // The last of the filter's list.
        _ => Call::Truncate {
            at: here(a),
            length: b as i64,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_held_call_has_its_form() {
        for architecture in [Architecture::X86_64, Architecture::Aarch64] {
            let decoder = Decoder::new(architecture);
            for name in seccomp::names::ALWAYS {
                let Some(number) = seccomp::number(architecture, name) else {
                    continue;
                };
                let call = Notification {
                    id: 1,
                    thread: 1,
                    number,
                    arguments: [1, 2, 3, 4, 5, 6],
                };
                let is_truncate = matches!(decoder.decode(&call), Some(Call::Truncate { .. }));
                assert_eq!(is_truncate, *name == "truncate", "{name}");
            }
            let read = seccomp::number(architecture, "read").unwrap();
            let call = Notification {
                id: 1,
                thread: 1,
                number: read,
                arguments: [0; 6],
            };
            assert_eq!(decoder.decode(&call), None);
        }
    }

    #[test]
    fn directories_are_the_low_half_of_their_argument() {
        let Call::MakeDirectory { at, .. } = decode("mkdirat", &[0xffff_ff9c, 7, 0o755, 0, 0, 0])
        else {
            panic!("mkdirat makes directories");
        };
        assert_eq!(at.directory, HERE);
    }
}
