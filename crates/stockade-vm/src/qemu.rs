//! The command line of QEMU.
//!
//! A machine has what is named here and nothing else: no default device, no
//! display, no monitor, no firmware menu, no disk. What it can reach is the
//! channel, the exported view and, if it is asked for, QEMU's user network.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// What executes the machine's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor (`/dev/kvm`).
    Kvm,
    /// QEMU, which translates them: slow, and possible everywhere.
    Tcg,
}

/// Whom commands run as in the machine, and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest<'a> {
    pub uid: u32,
    pub gid: u32,
    pub umask: u32,
    /// Letters, digits and `-`.
    pub name: &'a str,
    /// Directories that are the machine's own memory: temporary ones, because
    /// the exported view takes neither sockets nor named pipes. One with a
    /// character that means something to the kernel's command line is left as
    /// it is.
    pub private: &'a [&'a Path],
}

/// One machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    pub accelerator: Accelerator,
    /// Memory in MiB.
    pub memory: u32,
    pub processors: u32,
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    /// What becomes the machine's root.
    pub root: &'a Path,
    /// Number of an open descriptor: a connected stream socket to the host's
    /// side of the agent's protocol.
    pub channel: u32,
    /// Whether it has a network card. What comes from there are connections of
    /// QEMU's own.
    pub network: bool,
    pub guest: Guest<'a>,
}

/// Translated code that QEMU keeps, in MiB.
const TRANSLATED_MIB: u32 = 128;

/// The network of the one card, which QEMU itself is. Whatever is connected to
/// there is connected to by QEMU, and so in the network namespace that QEMU is
/// in; these addresses stand for its loopback. Nobody's network has them
/// (RFC 7526), so that no destination is covered by them.
pub const USER_NETWORK: &str =
    "user,id=net,ipv6=off,net=192.88.99.0/24,host=192.88.99.2,dns=192.88.99.3";

/// Kernel arguments of every machine: it is quiet, ends QEMU when it ends, and
/// does not test what need not be tested again.
const ALWAYS: &str = "quiet reboot=t panic=-1 no_timer_check cryptomgr.notests random.trust_cpu=on";
/// Where instructions are translated, clocks cannot be calibrated, and
/// protecting the processor from its own speculation protects nothing.
const TRANSLATED: &str = "lpj=4000000 tsc_early_khz=1000000 nokaslr mitigations=off";

/// The arguments for `qemu-system-x86_64`, without its name.
pub fn arguments(machine: &Machine<'_>) -> Vec<OsString> {
    let (accelerator, processor, more) = match machine.accelerator {
        Accelerator::Kvm => ("kvm".to_owned(), "host", ""),
        Accelerator::Tcg => (format!("tcg,tb-size={TRANSLATED_MIB}"), "max", TRANSLATED),
    };
    let guest = &machine.guest;
    let kernel_arguments = format!(
        "{ALWAYS} {more} stockade={}:{}:{:o}:{} stockade_private={}",
        guest.uid,
        guest.gid,
        guest.umask,
        guest.name,
        private(guest.private)
    );
    let root = after(
        "local,id=root,security_model=none,multidevs=remap,path=",
        machine.root,
    );
    let (kernel, initramfs) = (machine.kernel.into(), machine.initramfs.into());
    let channel = format!("socket,id=agent,fd={}", machine.channel);
    let port = "virtserialport,chardev=agent,name=stockade";
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    add(
        "-machine",
        "microvm,isa-serial=off,pit=on,pic=on,rtc=on".into(),
    );
    add("-accel", accelerator.into());
    add("-cpu", processor.into());
    add("-m", machine.memory.to_string().into());
    add("-smp", machine.processors.to_string().into());
    add("-display", "none".into());
    add("-kernel", kernel);
    add("-initrd", initramfs);
    add("-append", kernel_arguments.into());
    add("-chardev", channel.into());
    add("-device", "virtio-serial-device".into());
    add("-device", port.into());
    add("-fsdev", root);
    add(
        "-device",
        "virtio-9p-device,fsdev=root,mount_tag=root".into(),
    );
    if machine.network {
        add("-netdev", USER_NETWORK.into());
        add("-device", "virtio-net-device,netdev=net".into());
    }
    let alone = ["-nodefaults", "-no-user-config", "-no-reboot"];
    arguments.extend(alone.map(OsString::from));
    arguments
}

/// Paths with `:` between, as the agent reads them.
fn private(paths: &[&Path]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@".contains(&byte);
    let paths = paths.iter().filter_map(|path| path.to_str());
    let paths: Vec<_> = paths.filter(|path| path.bytes().all(plain)).collect();
    paths.join(":")
}

/// An option that ends in a path, in which a comma is written twice.
fn after(option: &str, path: &Path) -> OsString {
    let mut bytes = option.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        bytes.extend_from_slice(if byte == b',' {
            b",,"
        } else {
            std::slice::from_ref(&byte)
        });
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine<'static> {
        Machine {
            accelerator: Accelerator::Tcg,
            memory: 256,
            processors: 2,
            kernel: Path::new("/state/kernel"),
            initramfs: Path::new("/state/initramfs"),
            root: Path::new("/a,path=/b"),
            channel: 3,
            network: false,
            guest: Guest {
                uid: 1000,
                gid: 100,
                umask: 0o027,
                name: "sandbox",
                private: &[],
            },
        }
    }

    fn text(machine: &Machine<'_>) -> String {
        let arguments = arguments(machine);
        let arguments: Vec<_> = arguments.iter().map(|one| one.to_string_lossy()).collect();
        arguments.join(" ")
    }

    #[test]
    fn a_machine_has_what_is_named_and_nothing_else() {
        let text = text(&machine());
        for part in [
            "-nodefaults -no-user-config -no-reboot",
            "-accel tcg,tb-size=128 -cpu max -m 256 -smp 2 -display none",
            "-kernel /state/kernel -initrd /state/initramfs",
            "tsc_early_khz=1000000",
            "stockade=1000:100:27:sandbox",
            "-chardev socket,id=agent,fd=3",
            "multidevs=remap,path=/a,,path=/b -device",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("net"), "{text}");
        assert_eq!(text.matches(" -device ").count(), 3);
    }

    #[test]
    fn a_private_directory_adds_nothing_to_the_kernels_arguments() {
        let one = machine();
        let paths = ["/tmp", "/a b", "/a:b", "/a\"b", "/var/tmp"].map(Path::new);
        let guest = Guest {
            private: &paths,
            ..one.guest
        };
        let text = text(&Machine { guest, ..one });
        assert!(
            text.contains(":sandbox stockade_private=/tmp:/var/tmp -"),
            "{text}"
        );
    }

    #[test]
    fn a_processor_needs_no_crutches_and_a_network_is_one_card() {
        let text = text(&Machine {
            accelerator: Accelerator::Kvm,
            network: true,
            ..machine()
        });
        assert!(text.contains("-accel kvm -cpu host"), "{text}");
        assert!(
            !text.contains("mitigations=off") && !text.contains("tsc_early_khz"),
            "{text}"
        );
        assert!(text.contains("-netdev user,id=net,ipv6=off,net="), "{text}");
        assert_eq!(text.matches(" -device ").count(), 4);
    }
}
