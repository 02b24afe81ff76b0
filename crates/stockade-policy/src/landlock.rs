//! Landlock's access rights, by the ABI version that brought them.
//!
//! Pure numbers: which rights a ruleset handles and which a rule may grant. The
//! kernel refuses a right that it does not know (EINVAL), and a right for
//! directories on a file (EINVAL), so every mask here is already limited to the
//! ABI and to the kind of object. Source: landlock(7) and linux/landlock.h.

/// Execute a file. ABI 1.
pub const FS_EXECUTE: u64 = 1 << 0;
/// Open a file for writing. ABI 1.
pub const FS_WRITE_FILE: u64 = 1 << 1;
/// Open a file for reading. ABI 1.
pub const FS_READ_FILE: u64 = 1 << 2;
/// Open a directory or list it. ABI 1; directories only.
pub const FS_READ_DIR: u64 = 1 << 3;
/// Remove an empty directory or rename one. ABI 1; directories only.
pub const FS_REMOVE_DIR: u64 = 1 << 4;
/// Unlink or rename a file. ABI 1; directories only.
pub const FS_REMOVE_FILE: u64 = 1 << 5;
/// Make, rename or link a character device. ABI 1; directories only.
pub const FS_MAKE_CHAR: u64 = 1 << 6;
/// Make or rename a directory. ABI 1; directories only.
pub const FS_MAKE_DIR: u64 = 1 << 7;
/// Make, rename or link a regular file. ABI 1; directories only.
pub const FS_MAKE_REG: u64 = 1 << 8;
/// Make, rename or link a unix socket. ABI 1; directories only.
pub const FS_MAKE_SOCK: u64 = 1 << 9;
/// Make, rename or link a named pipe. ABI 1; directories only.
pub const FS_MAKE_FIFO: u64 = 1 << 10;
/// Make, rename or link a block device. ABI 1; directories only.
pub const FS_MAKE_BLOCK: u64 = 1 << 11;
/// Make, rename or link a symbolic link. ABI 1; directories only.
pub const FS_MAKE_SYM: u64 = 1 << 12;
/// Link or rename between directories. ABI 2; directories only. Where it is not
/// granted, or not known, such calls fail with EXDEV.
pub const FS_REFER: u64 = 1 << 13;
/// Truncate a file. ABI 3.
pub const FS_TRUNCATE: u64 = 1 << 14;
/// Send commands to a device (ioctl(2)). ABI 5.
pub const FS_IOCTL_DEV: u64 = 1 << 15;
/// Connect to a unix socket by path that was made outside the domain. ABI 9.
pub const FS_RESOLVE_UNIX: u64 = 1 << 16;

/// Bind a TCP socket to a port. ABI 4.
pub const NET_BIND_TCP: u64 = 1 << 0;
/// Connect a TCP socket to a port. ABI 4.
pub const NET_CONNECT_TCP: u64 = 1 << 1;
/// Bind a UDP socket to a port. ABI 10.
pub const NET_BIND_UDP: u64 = 1 << 2;
/// Connect a UDP socket, or send a datagram, to a port. ABI 10.
pub const NET_CONNECT_SEND_UDP: u64 = 1 << 3;

/// No connection to abstract unix sockets outside the domain. ABI 6.
pub const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
/// No signals to processes outside the domain. ABI 6.
pub const SCOPE_SIGNAL: u64 = 1 << 1;

/// What a ruleset handles: all that it does not grant is then denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    pub fs: u64,
    pub net: u64,
    pub scoped: u64,
}

/// What a rule's path is; the kernel takes other rights for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    Directory,
    File,
    /// A device node that the view offers, such as /dev/null or a terminal.
    Device,
}

/// All rights that this ABI knows, without network rights. With a private
/// network namespace a ruleset leaves the network alone: rules are per port, and
/// any port of the private loopback may be used. ABI 0 handles nothing.
pub fn handled(abi: u32) -> Rights {
    let mut rights = Rights {
        fs: 0,
        net: 0,
        scoped: 0,
    };
    for (since, fs) in FS_BY_ABI {
        if abi >= *since {
            rights.fs |= fs;
        }
    }
    if abi >= 6 {
        rights.scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL;
    }
    rights
}

/// As [`handled`], with the network rights too: for the form without a private
/// network namespace, where no rule means no port at all. Before ABI 4 nothing
/// and before ABI 10 only TCP is covered.
pub fn handled_landlock_only(abi: u32) -> Rights {
    let tcp = if abi >= 4 {
        NET_BIND_TCP | NET_CONNECT_TCP
    } else {
        0
    };
    let udp = if abi >= 10 {
        NET_BIND_UDP | NET_CONNECT_SEND_UDP
    } else {
        0
    };
    Rights {
        net: tcp | udp,
        ..handled(abi)
    }
}

/// Rights of a rule that grants reading, listing and executing.
pub fn read_rights(abi: u32, object: Object) -> u64 {
    let rights = match object {
        Object::Directory => FS_EXECUTE | FS_READ_FILE | FS_READ_DIR,
        Object::File => FS_EXECUTE | FS_READ_FILE,
        Object::Device => FS_READ_FILE | FS_IOCTL_DEV,
    };
    rights & handled(abi).fs
}

/// Rights of a rule that grants writing, and reading with it.
///
/// Never granted: making devices, and connecting to unix sockets that were made
/// outside. A device takes commands, because a terminal is one; a directory below
/// which devices appear, such as /dev/pts, needs [`device_directory_rights`].
pub fn write_rights(abi: u32, object: Object) -> u64 {
    const CHANGE_ENTRIES: u64 = FS_REMOVE_DIR
        | FS_REMOVE_FILE
        | FS_MAKE_DIR
        | FS_MAKE_REG
        | FS_MAKE_SOCK
        | FS_MAKE_FIFO
        | FS_MAKE_SYM
        | FS_REFER;
    let rights = match object {
        Object::Directory => FS_WRITE_FILE | FS_TRUNCATE | CHANGE_ENTRIES,
        // O_TRUNC on a device does nothing, but the right is checked: a shell's
        // `>/dev/null` needs it.
        Object::File | Object::Device => FS_WRITE_FILE | FS_TRUNCATE,
    };
    read_rights(abi, object) | (rights & handled(abi).fs)
}

/// Rights of a rule for a part that is written through a process outside:
/// nothing that makes, opens for writing or takes away a name but a socket's,
/// in which nothing can be planted.
pub fn supervised_rights(abi: u32, object: Object) -> u64 {
    let sockets = match object {
        Object::Directory => FS_MAKE_SOCK,
        Object::File | Object::Device => 0,
    };
    read_rights(abi, object) | (sockets & handled(abi).fs)
}

/// Rights of a rule for a directory of devices, such as the private /dev/pts.
pub fn device_directory_rights(abi: u32) -> u64 {
    let rights = FS_READ_DIR | FS_READ_FILE | FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL_DEV;
    rights & handled(abi).fs
}

const FS_BY_ABI: &[(u32, u64)] = &[
    (1, (FS_MAKE_SYM << 1) - 1),
    (2, FS_REFER),
    (3, FS_TRUNCATE),
    (5, FS_IOCTL_DEV),
    (9, FS_RESOLVE_UNIX),
];

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// Rights that the kernel takes on a file (ACCESS_FILE, security/landlock/fs.c).
    const FILE_RIGHTS: u64 =
        FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV | FS_RESOLVE_UNIX;

    #[test]
    fn every_abi_handles_what_the_kernel_documents() {
        let table: String = (0..=10)
            .map(|abi| {
                let Rights { fs, net, scoped } = handled_landlock_only(abi);
                format!("{abi:2}: fs {fs:#07x} net {net:#x} scoped {scoped:#x}\n")
            })
            .collect();
        expect![[r#"
             0: fs 0x00000 net 0x0 scoped 0x0
             1: fs 0x01fff net 0x0 scoped 0x0
             2: fs 0x03fff net 0x0 scoped 0x0
             3: fs 0x07fff net 0x0 scoped 0x0
             4: fs 0x07fff net 0x3 scoped 0x0
             5: fs 0x0ffff net 0x3 scoped 0x0
             6: fs 0x0ffff net 0x3 scoped 0x3
             7: fs 0x0ffff net 0x3 scoped 0x3
             8: fs 0x0ffff net 0x3 scoped 0x3
             9: fs 0x1ffff net 0x3 scoped 0x3
            10: fs 0x1ffff net 0xf scoped 0x3
        "#]]
        .assert_eq(&table);
    }

    #[test]
    fn with_a_private_network_the_network_is_left_alone() {
        for abi in 0..=12 {
            assert_eq!(handled(abi).net, 0);
        }
    }

    #[test]
    fn rules_carry_only_rights_that_the_kernel_takes() {
        for abi in 0..=12 {
            let handled = handled(abi).fs;
            for object in [Object::Directory, Object::File, Object::Device] {
                let (read, write) = (read_rights(abi, object), write_rights(abi, object));
                assert_eq!(read & !handled, 0);
                assert_eq!(write & !handled, 0);
                assert_eq!(read & !write, 0, "writing includes reading");
                assert_eq!(write & (FS_MAKE_CHAR | FS_MAKE_BLOCK | FS_RESOLVE_UNIX), 0);
                if object != Object::Directory {
                    assert_eq!(write & !FILE_RIGHTS, 0, "{object:?} at ABI {abi}");
                }
            }
            assert_eq!(device_directory_rights(abi) & !handled, 0);
        }
    }

    #[test]
    fn reading_never_grants_a_change() {
        let changes = !(FS_EXECUTE | FS_READ_FILE | FS_READ_DIR | FS_IOCTL_DEV);
        for object in [Object::Directory, Object::File, Object::Device] {
            assert_eq!(read_rights(10, object) & changes, 0);
        }
    }
}
