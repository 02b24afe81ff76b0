//! Attacks on the system call filter: PR1.

use super::{attacks, open};
use crate::verdict::error_name;
use crate::{Stage, Verdict};
use rustix::fs::OFlags;
use std::io;
use std::path::Path;
use stockade_sys::hostile;

const UNIX: i32 = 1;
const INET: i32 = 2;
const STREAM: i32 = 1;

attacks! {
    PR1 "pr1-io-uring", Ordinary, WhereKernelHasIt, "makes an io_uring, which acts past the filter"
        => |_| Verdict::of(hostile::io_uring_setup(), |_| "made a ring".into());
    PR1 "pr1-int80-call", Ordinary, WhereKernelHasIt, "calls through the 32-bit table"
        => |_| Verdict::of(hostile::int80_getpid(), |pid| format!("getpid answered {pid}"));
    PR1 "pr1-int80-socket", Ordinary, WhereKernelHasIt, "makes a socket through the 32-bit table"
        => |_| Verdict::of(hostile::int80_socket(INET, STREAM), |_| "made a socket".into());
    PR1 "pr1-int80-socketcall", Ordinary, WhereKernelHasIt,
        "makes a socket through 32-bit socketcall"
        => |_| Verdict::of(hostile::int80_socketcall(UNIX, STREAM), |_| "made a socket".into());
    PR1 "pr1-x32-call", Ordinary, Never("few kernels have the table"), "calls through the x32 table"
        => |_| Verdict::of(hostile::x32_getpid(), |pid| format!("getpid answered {pid}"));
    PR1 "pr1-x32-socket", Ordinary, Never("few kernels have the table"),
        "makes a socket through the x32 table"
        => |_| Verdict::of(hostile::x32_socket(16, 3), |_| "made a socket".into());
    PR1 "pr1-high-bits", Ordinary, Plain,
        "hides a forbidden socket family behind bits that the kernel drops" => high_bits;
    PR1 "pr1-bpf", Ordinary, WhereKernelHasIt, "makes a BPF map"
        => |_| Verdict::of(hostile::bpf_map(), |_| "made a map".into());
    PR1 "pr1-perf", Ordinary, WhereKernelHasIt, "opens a performance event"
        => |_| Verdict::of(hostile::perf_event(), |_| "opened an event".into());
    PR1 "pr1-userfaultfd", Ordinary, WhereKernelHasIt, "handles page faults of the kernel"
        => |_| Verdict::all([0, 1].map(|flags|
            Verdict::of(hostile::userfaultfd(flags), |_| "opened a userfaultfd".into())));
    PR1 "pr1-kexec", Ordinary, WhereKernelHasIt,
        "reaches kexec_load(2)" => |_| reached(hostile::kexec_load());
    PR1 "pr1-module", Ordinary, WhereKernelHasIt,
        "reaches init_module(2)" => |_| reached(hostile::init_module());
    PR1 "pr1-reboot", Ordinary, Plain, "reaches reboot(2)" => |_| reached(hostile::reboot());
    PR1 "pr1-swap", Ordinary, WhereKernelHasIt,
        "reaches swapoff(2)" => |_| match hostile::swapoff() {
        Err(error) if error_name(&error) == "ENOENT" =>
            Verdict::Escaped("the kernel looked for the swap file".into()),
        other => reached(other),
    };
    PR1 "pr1-accounting", Ordinary, WhereKernelHasIt,
        "reaches acct(2)" => |_| reached(hostile::acct_off());
    PR1 "pr1-kernel-log", Ordinary, Plain, "reads the kernel's log"
        => |_| Verdict::of(hostile::kernel_log(), |log| format!("read {} bytes", log.len()));
    PR1 "pr1-clock", Ordinary, Never("touches the clock"), "sets the clock"
        => |_| Verdict::of(hostile::set_clock(), |()| "set the clock".into());
    PR1 "pr1-port-access", Ordinary, WhereKernelHasIt, "asks for the machine's ports with iopl(2)"
        => |_| Verdict::of(hostile::iopl(), |()| "may use ports".into());
    PR1 "pr1-segments", Ordinary, WhereKernelHasIt, "reaches modify_ldt(2)"
        => |_| Verdict::of(hostile::modify_ldt(), |()| "read the table".into());
    PR1 "pr1-fanotify", Ordinary, WhereKernelHasIt, "watches files with fanotify"
        => |_| Verdict::of(hostile::fanotify(), |_| "opened a watch".into());
    PR1 "pr1-quota", Ordinary, Never("flushes quotas"), "reaches quotactl(2)"
        => |_| Verdict::of(hostile::quotactl(), |()| "flushed quotas".into());
    PR1 "pr1-personality", Ordinary, Plain, "asks for readable memory to be executable"
        => |_| Verdict::of(hostile::personality(0x0040_0000), |()| "changed personality".into());
    PR1 "pr1-devices", Ordinary, Never("depends on the kernel's modules"),
        "opens devices that lead into the kernel" => devices;
}

/// Calls whose arguments are wrong on purpose: those errors come only after
/// the kernel agreed to serve us.
fn reached(result: io::Result<()>) -> Verdict {
    match result {
        Ok(()) => Verdict::Escaped("the kernel obeyed".into()),
        Err(error) if matches!(error_name(&error).as_str(), "EINVAL" | "ENOEXEC" | "EFAULT") => {
            Verdict::Escaped(format!(
                "the kernel looked at the request: {}",
                error_name(&error)
            ))
        }
        Err(error) => Verdict::refused(&error),
    }
}

fn high_bits(_: &Stage) -> Verdict {
    Verdict::all([17, 38, 40].map(|family| {
        let made = hostile::socket_high_bits(family, 3);
        Verdict::of(made, |_| format!("made a socket of family {family}"))
    }))
}

fn devices(_: &Stage) -> Verdict {
    let paths = [
        "/dev/kvm",
        "/dev/net/tun",
        "/dev/vhost-net",
        "/dev/vhost-vsock",
        "/dev/vsock",
        "/dev/userfaultfd",
        "/dev/loop-control",
        "/dev/mapper/control",
        "/dev/uinput",
        "/dev/hwrng",
        "/dev/cpu_dma_latency",
        "/dev/kmsg",
        "/dev/console",
    ];
    Verdict::all(paths.map(|path| {
        Verdict::of(open(Path::new(path), OFlags::RDONLY), |_| {
            format!("opened {path}")
        })
    }))
}
