//! The process wall's suite on another kernel: Debian's, in QEMU, with control
//! groups of version 2 alone and AppArmor switched on. What runs there is the
//! product as it was built here, on this machine's own directories, which the
//! machine sees without being able to write them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use stockade_sys::counter;
use stockade_testkit::machine::{QEMU, kernel_package};
use stockade_testkit::{binary, has_program, skip};
use stockade_vm::source::{self, Source};

/// Modules besides those that every machine needs, each after what it needs: a
/// distribution's kernel loads them when they are wanted.
const MODULES: [&str; 12] = [
    "overlay",
    "unix_diag",
    "crc32c_generic",
    "libcrc32c",
    "nfnetlink",
    "nf_tables",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_conntrack",
    "nf_nat",
    "nft_chain_nat",
    "nft_redir",
];
/// In MiB.
const MEMORY: &str = "1536";
/// Seconds after which it hangs.
const HANGS_AFTER: &str = "900";

/// The first program: makes of the machine what a distribution's own does, and
/// begins with the work.
const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
r=/root
$b mount -t devtmpfs dev /dev; $b mount -t proc proc /proc; $b mount -t sysfs sys /sys
for m in /modules/*; do $b insmod $m; done
o=trans=virtio,version=9p2000.L,msize=512000,cache=loose
$b mount -t 9p -o $o,ro root $r
for d in dev proc sys; do $b mount --move /$d $r/$d; done
for d in run tmp var/tmp root home mnt; do $b mount -t tmpfs -o mode=1777 none $r/$d; done
$b chmod 755 $r/run $r/home $r/mnt; $b chmod 700 $r/root
$b mkdir -p $r/dev/pts $r/dev/shm $r/dev/mqueue
$b mount -t devpts -o ptmxmode=666 none $r/dev/pts
$b mount -t tmpfs none $r/dev/shm
$b mount -t mqueue none $r/dev/mqueue
$b mount -t cgroup2 none $r/sys/fs/cgroup
$b mount -t securityfs none $r/sys/kernel/security
$b mount -t 9p -o $o share $r/mnt
exec $b switch_root $r /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh /mnt/work
"#;

/// What is done there, by root and by somebody else; each leaves what it said.
const WORK: &str = r#"
cd /sys/fs/cgroup; echo "+memory +pids +cpu" > cgroup.subtree_control
mkdir shell; echo 1 > shell/cgroup.procs
cp /mnt/stockade /var/tmp/stockade
say() { name=$1; shift; "$@" > /mnt/$name 2> /mnt/$name.errors; echo $? > /mnt/$name.code; }
say where sh -c 'uname -r; cat /proc/self/cgroup; cat /sys/kernel/security/lsm'
mkdir /root/p; cd /root/p
say root /var/tmp/stockade run -- sh -c 'id -u; echo one > file; cat file'
say limit /var/tmp/stockade run --wall container --memory 64MiB --report /mnt/report -- tail /dev/zero
say attack-root /var/tmp/stockade doctor --attack --json
mkdir -p /home/user/p; chown -R 1000:1000 /home/user; cd /home/user/p
as="setpriv --reuid=1000 --regid=1000 --clear-groups env HOME=/home/user"
say user $as /var/tmp/stockade run -- sh -c 'id -u; echo one > file; cat file; cat /etc/shadow'
say seen $as /var/tmp/stockade doctor --json
say attack-user $as /var/tmp/stockade doctor --attack --json
sync
echo o > /proc/sysrq-trigger
sleep 60
"#;

/// What the work left.
struct Share(PathBuf);

impl Share {
    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// What was said, and the exit code.
    #[track_caller]
    fn said(&self, name: &str, code: &str) -> String {
        let errors = self.text(&format!("{name}.errors"));
        let found = self.text(&format!("{name}.code"));
        assert_eq!(found.trim(), code, "{name}: {errors}");
        self.text(name)
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap()
    }
}

fn shell(directory: &Path, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("set -eu; {script}")]);
    let status = command.current_dir(directory).status().unwrap();
    assert!(status.success(), "{script}");
}

/// The initial file system: the shell, the modules in their order, the first program.
fn initramfs(place: &Path, package: &Path, modules: &[Vec<u8>]) {
    let inner = place.join("initramfs");
    for name in ["bin", "dev", "modules", "proc", "root", "sys"] {
        fs::create_dir_all(inner.join(name)).unwrap();
    }
    fs::copy("/usr/bin/busybox", inner.join("bin/busybox")).unwrap();
    fs::write(inner.join("init"), INIT).unwrap();
    fs::set_permissions(inner.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    for (number, module) in modules.iter().enumerate() {
        fs::write(inner.join(format!("modules/{number:02}.ko")), module).unwrap();
    }
    let wanted = MODULES.map(|name| format!("'*/{name}.ko.xz'")).join(" ");
    let ordered: String = (0..)
        .zip(MODULES)
        .map(|(place, name)| {
            format!("mv unpacked/{name}.ko.xz initramfs/modules/more-{place:02}.ko.xz; ")
        })
        .collect();
    let package = package.display();
    shell(
        place,
        &format!(
            "mkdir unpacked; dpkg-deb --fsys-tarfile '{package}' | \
             tar -x -C unpacked --wildcards {wanted}; \
             find unpacked -name '*.xz' -exec mv {{}} unpacked/ ';'; {ordered}\
             xz -d initramfs/modules/*.xz; cd initramfs; \
             find . | busybox cpio -o -H newc > ../initramfs.cpio 2>/dev/null"
        ),
    );
}

/// Boots the machine and waits for its end; what it showed on its console.
fn machine(place: &Path) -> String {
    let khz = counter::ticks_per_millisecond();
    let arguments = format!(
        "console=ttyS0 quiet reboot=t panic=-1 no_timer_check cryptomgr.notests \
         random.trust_cpu=on lpj={} tsc_early_khz={khz} nokaslr mitigations=off",
        u64::from(khz) * 4
    );
    let share = format!(
        "local,id=share,security_model=none,path={}",
        place.join("share").display()
    );
    let output = Command::new("timeout")
        .args([HANGS_AFTER, QEMU])
        .args(["-machine", "microvm,isa-serial=on,pit=on,pic=on,rtc=on"])
        .args(["-accel", "tcg", "-cpu", "max", "-m", MEMORY, "-smp", "1"])
        .args(["-display", "none", "-nodefaults", "-no-user-config"])
        .args(["-no-reboot", "-serial", "stdio"])
        .args(["-kernel", "kernel", "-initrd", "initramfs.cpio"])
        .args(["-append", &arguments, "-fsdev"])
        .arg("local,id=root,security_model=none,multidevs=remap,readonly=on,path=/")
        .args(["-device", "virtio-9p-device,fsdev=root,mount_tag=root"])
        .args(["-fsdev", &share])
        .args(["-device", "virtio-9p-device,fsdev=share,mount_tag=share"])
        .current_dir(place)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{console}");
    console
}

#[test]
fn the_process_wall_holds_on_another_kernel() {
    let test = "the_process_wall_holds_on_another_kernel";
    let Some(package) = kernel_package(test) else {
        return;
    };
    for program in ["busybox", "dpkg-deb", "xz", "strip", "setpriv"] {
        if !has_program(program) {
            return skip(test, "microvm", &format!("there is no {program} on PATH"));
        }
    }
    let directory = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
    let place = directory.path();
    let share = Share(place.join("share"));
    fs::create_dir(&share.0).unwrap();
    let (kernel, modules) = source::read(&Source::Package(package.clone())).unwrap();
    fs::write(place.join("kernel"), &kernel.image).unwrap();
    let modules: Vec<_> = modules.into_iter().map(|module| module.content).collect();
    initramfs(place, &package, &modules);
    fs::write(share.0.join("work"), WORK).unwrap();
    let program = binary();
    let program = program.display();
    shell(&share.0, &format!("strip -o stockade '{program}'"));

    let console = machine(place);
    let said = share.said("where", "0");
    let [release, group, modules] = said.lines().collect::<Vec<_>>()[..] else {
        panic!("{said} {console}");
    };
    // It is that kernel, with one hierarchy of control groups and no other.
    assert_eq!((release, group), (&*kernel.release, "0::/shell"));
    for module in ["landlock", "apparmor"] {
        assert!(modules.split(',').any(|one| one == module), "{modules}");
    }
    assert_eq!(share.said("root", "0"), "0\none\n");
    // Whoever counts memory is the group's, and says so.
    let errors = share.text("limit.errors");
    assert!(errors.contains("limits.memory"), "{errors}");
    let report = share.json("report");
    assert_eq!(report["limits_hit"], serde_json::json!(["memory"]));
    let said = share.said("user", "1");
    assert_eq!(said, "1000\none\n", "{}", share.text("user.errors"));
    let seen = share.json("seen");
    for name in ["namespaces", "landlock", "redirect"] {
        let mut checks = seen["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["name"] == name).unwrap();
        assert_eq!(check["works"], true, "{check:#}");
    }
    for who in ["root", "user"] {
        nothing_escaped(&share, &format!("attack-{who}"));
    }
}

/// Of the whole corpus.
fn nothing_escaped(share: &Share, name: &str) {
    share.said(name, "0");
    let table = share.json(name);
    let rows = table["rows"].as_array().unwrap();
    let of = |verdict: &str| -> Vec<&Value> {
        let rows = rows.iter();
        rows.filter(|row| row["verdict"] == verdict).collect()
    };
    assert_eq!(of("escaped"), Vec::<&Value>::new());
    assert!(of("stopped").len() > 180, "{table:#}");
}
