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

/// How a machine begins.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// Its kernel boots; the channel is that of [`Start::Restore`].
    Boot { image: Image<'a>, channel: u32 },
    /// It goes on from a saved state. Numbers of open descriptors: the state,
    /// and a connected stream socket to the host's side of the agent's
    /// protocol.
    Restore { state: u32, channel: u32 },
    /// Its kernel boots, and the agent waits for a host that never comes: nobody
    /// connects to the socket of this path. QEMU's monitor (QMP) is on the
    /// standard streams, and says when the agent waits.
    Save { image: Image<'a>, socket: &'a Path },
}

/// What a kernel boots from.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    /// What the kernel's arguments are known by: letters and digits.
    pub mark: &'a str,
}

/// One machine. A state can only be restored by one that differs from what
/// was saved in nothing but its start and its root.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    pub accelerator: Accelerator,
    /// Memory in MiB.
    pub memory: u32,
    pub processors: u32,
    /// Ticks of the time stamp counter in a millisecond, as the kernel is told
    /// when it boots. Where instructions are translated, the counter is that of
    /// the host's processor.
    pub counter_khz: u32,
    pub start: Start<'a>,
    /// What becomes the machine's root.
    pub root: &'a Path,
    /// Whether it has a network card. What comes from there are connections of
    /// QEMU's own.
    pub network: bool,
    /// What leads into the machine, where there is a card.
    pub forwards: &'a [Forward],
}

/// A port of the loopback that QEMU is on, and one of the machine's card to which
/// it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    pub port: u16,
    pub card_port: u16,
}

/// Translated code that QEMU keeps, in MiB.
const TRANSLATED_MIB: u32 = 128;

/// The network of the one card, which QEMU itself is. Whatever is connected to
/// there is connected to by QEMU, and so in the network namespace that QEMU is
/// in; these addresses stand for its loopback. Nobody's network has them
/// (RFC 7526), so that no destination is covered by them.
pub const USER_NETWORK: &str =
    "user,id=net,ipv6=off,net=192.88.99.0/24,host=192.88.99.2,dns=192.88.99.3";

/// The machine's own address there, as its agent takes it.
const CARD: &str = "192.88.99.15";

/// The name of the port to the agent, by which the monitor speaks of it.
pub const PORT: &str = "agent-port";

/// The kernel's argument that tells a machine from the host, the mark of its
/// image behind it.
pub const MARK: &str = "stockade=";

/// Kernel arguments of every machine: it is quiet, ends QEMU when it ends, and
/// does not test what need not be tested again.
const ALWAYS: &str = "quiet reboot=t panic=-1 no_timer_check cryptomgr.notests random.trust_cpu=on";
/// Where instructions are translated, protecting the processor from its own
/// speculation protects nothing.
const TRANSLATED: &str = "nokaslr mitigations=off";
/// How often a distribution's kernel ticks in a second.
const TICKS: u32 = 250;

/// The arguments for `qemu-system-x86_64`, without its name.
pub fn arguments(machine: &Machine<'_>) -> Vec<OsString> {
    let (accelerator, processor, more) = match machine.accelerator {
        Accelerator::Kvm => ("kvm".to_owned(), "host", String::new()),
        Accelerator::Tcg => (
            format!("tcg,tb-size={TRANSLATED_MIB}"),
            "max",
            translated(machine.counter_khz),
        ),
    };
    let root = after(
        "local,id=root,security_model=none,multidevs=remap,path=",
        machine.root,
    );
    let channel = match machine.start {
        Start::Boot { channel, .. } | Start::Restore { channel, .. } => {
            format!("socket,id=agent,fd={channel}").into()
        }
        Start::Save { socket, .. } => after("socket,id=agent,server=on,wait=off,path=", socket),
    };
    let port = format!("virtserialport,chardev=agent,name=stockade,id={PORT}");
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
    match machine.start {
        Start::Boot { image, .. } | Start::Save { image, .. } => {
            add("-kernel", image.kernel.into());
            add("-initrd", image.initramfs.into());
            let mark = image.mark;
            add("-append", format!("{ALWAYS} {more} {MARK}{mark}").into());
        }
        Start::Restore { state, .. } => add("-incoming", format!("fd:{state}").into()),
    }
    if let Start::Save { .. } = machine.start {
        add("-qmp", "stdio".into());
    }
    add("-chardev", channel);
    add("-device", "virtio-serial-device".into());
    add("-device", port.into());
    add("-fsdev", root);
    add(
        "-device",
        "virtio-9p-device,fsdev=root,mount_tag=root".into(),
    );
    if machine.network {
        let forward = |one: &Forward| {
            let Forward { port, card_port } = one;
            format!(",hostfwd=tcp:127.0.0.1:{port}-{CARD}:{card_port}")
        };
        let forwards: String = machine.forwards.iter().map(forward).collect();
        add("-netdev", format!("{USER_NETWORK}{forwards}").into());
        add("-device", "virtio-net-device,netdev=net".into());
    }
    let alone = ["-nodefaults", "-no-user-config", "-no-reboot"];
    arguments.extend(alone.map(OsString::from));
    arguments
}

/// Kernel arguments where instructions are translated: clocks cannot be
/// calibrated there, so the kernel is told how fast its counter is.
fn translated(counter_khz: u32) -> String {
    let loops = u64::from(counter_khz) * 1000 / u64::from(TICKS);
    format!("lpj={loops} tsc_early_khz={counter_khz} {TRANSLATED}")
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

    fn image() -> Image<'static> {
        Image {
            kernel: Path::new("/state/kernel"),
            initramfs: Path::new("/state/initramfs"),
            mark: "0123abc",
        }
    }

    fn machine() -> Machine<'static> {
        Machine {
            accelerator: Accelerator::Tcg,
            memory: 256,
            processors: 2,
            counter_khz: 2_500_000,
            start: Start::Boot {
                image: image(),
                channel: 3,
            },
            root: Path::new("/a,path=/b"),
            network: false,
            forwards: &[],
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
            "lpj=10000000 tsc_early_khz=2500000",
            "mitigations=off stockade=0123abc -chardev",
            "-chardev socket,id=agent,fd=3",
            "multidevs=remap,path=/a,,path=/b -device",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("net"), "{text}");
        assert_eq!(text.matches(" -device ").count(), 3);
    }

    #[test]
    fn what_is_restored_has_the_devices_of_what_was_saved() {
        let socket = Path::new("/tmp/agent");
        let devices = |start| {
            let text = text(&Machine { start, ..machine() });
            let devices = text.split(" -device ").skip(1);
            devices
                .map(|device| device.split(' ').next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let saved = Start::Save {
            image: image(),
            socket,
        };
        let restored = Start::Restore {
            state: 4,
            channel: 3,
        };
        assert_eq!(devices(saved), devices(restored));
        let text = text(&Machine {
            start: restored,
            ..machine()
        });
        assert!(text.contains("-incoming fd:4"), "{text}");
        assert!(!text.contains("-kernel") && !text.contains("qmp"), "{text}");
    }

    #[test]
    fn a_processor_needs_no_crutches_and_a_network_is_one_card() {
        let forwards = [Forward {
            port: 3000,
            card_port: 1,
        }];
        let text = text(&Machine {
            accelerator: Accelerator::Kvm,
            network: true,
            forwards: &forwards,
            ..machine()
        });
        assert!(text.contains("-accel kvm -cpu host"), "{text}");
        assert!(
            !text.contains("mitigations=off") && !text.contains("tsc_early_khz"),
            "{text}"
        );
        assert!(text.contains("-netdev user,id=net,ipv6=off,net="), "{text}");
        let forward = ",hostfwd=tcp:127.0.0.1:3000-192.88.99.15:1 -device";
        assert!(text.contains(forward), "{text}");
        assert_eq!(text.matches(" -device ").count(), 4);
    }
}
