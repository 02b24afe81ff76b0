//! A plan as people see it.

use expect_test::expect;

use super::*;
use crate::compile::fixtures::{compiled, facts, policy};

#[test]
fn words_are_quoted_only_when_they_must_be() {
    assert_eq!(quoted(b"--color=always"), "--color=always");
    assert_eq!(quoted(b"a b"), "'a b'");
    assert_eq!(quoted(b"it's"), "'it'\\''s'");
    assert_eq!(quoted(b""), "''");
    assert_eq!(quoted(b"\x1b[31m"), "'\\u{1b}[31m'");
}

#[test]
fn durations_name_their_units() {
    assert_eq!(duration_text(600_000), "10 min");
    assert_eq!(duration_text(3_661_001), "1 h 1 min 1 s 1 ms");
    assert_eq!(duration_text(0), "0 s");
}

/// Without the first line and the figures of the filter, which other tests fix.
#[test]
fn a_page_for_people() {
    let page = page();
    let shown = part(&page, "Wall ", "Guarantees");
    expect![[r#"
        Wall process, with namespaces, Landlock and seccomp

        Command
          npm test
          in /home/u/project
          as uid 1000, gid 1000, umask 022

        Readable
          /etc        settings that libraries and programs read  [filesystem.read[0]]
          /opt        programs installed outside the package manager  [filesystem.read[0]]
          /usr        programs, libraries and their data  [filesystem.read[0]]
          /usr/bin    programs  [filesystem.read[0]]
          /usr/lib64  the dynamic loader  [filesystem.read[0]]

        Writable
          /dev/full        devices that show nothing of the machine  [built-in.devices]
          /dev/null        devices that show nothing of the machine  [built-in.devices]
          /dev/random      devices that show nothing of the machine  [built-in.devices]
          /dev/tty         devices that show nothing of the machine  [built-in.devices]
          /dev/urandom     devices that show nothing of the machine  [built-in.devices]
          /dev/zero        devices that show nothing of the machine  [built-in.devices]
          /home/u/project  test  [filesystem.write[0], stockade.toml:1]

        Private: this run's own, nothing of the machine's
          /dev/pts                          terminals of this run  [built-in.terminals]
          /dev/shm                          shared memory and semaphores of this run  [built-in.private]
          /home/u                           an empty home; nothing of the real one is inside  [built-in.private]
          /run                              sockets and state of daemons stay outside  [built-in.private]
          /tmp                              temporary files of this run  [built-in.private]
          /var/tmp                          temporary files of this run  [built-in.private]
          /proc                             processes of this run  [built-in.proc]
          /proc/meminfo                     memory of this run  [built-in.machine]
          /sys/devices/system/cpu/online    processors of this run  [built-in.machine]
          /sys/devices/system/cpu/possible  processors of this run  [built-in.machine]
          /sys/devices/system/cpu/present   processors of this run  [built-in.machine]

        Workspace: live
          /home/u/project  what is written here is written directly  [filesystem.workspace]

        Hidden
          /etc/shadow      password hashes of this machine  [credential.shadow]
          /proc/key-users  lists kernel keys of processes outside  [built-in.keys]
          /proc/keys       lists kernel keys of processes outside  [built-in.keys]

        Guarded: names that run or steer something outside
          303 patterns: what is written there is held until you approve it
          134 patterns: what is written there is named in the report

        Environment (names only)
          HOME LC_ALL LOGNAME PATH STOCKADE TMPDIR TMPPREFIX USER

        Network
          denied as a whole; only the run's own loopback exists

        System calls

        Limits (best effort)
          memory          8 GiB
          processes       4096
          processors      no limit
          processor time  no limit
          wall time       no limit
          open files      65536
          largest file    no limit
          waiting layers  20 GiB
          private files   4 GiB, 1000000 inodes"#]].assert_eq(&shown);
}

#[test]
fn each_guarantee_says_what_it_rests_on() {
    let page = page();
    let shown = part(&page, "Guarantees", "\0");
    expect![[r#"
        Guarantees
          FS1  held      only granted paths can be read; everything else is absent
                         by: mount namespace with a new root; what is not granted is not mounted
          FS2  held      only granted paths can be written
                         by: read-only mounts, and Landlock as a second check
          FS3  held      credential stores are absent even when the directory around them is granted
                         by: credential places are not mounted, left out of what is, or covered
          FS4  held      a guarded path never becomes active outside without approval
                         by: what makes names in the workspace asks the guard; Landlock refuses every other way
          FS5  held      the view cannot be changed from inside, and links made inside steer nothing outside
                         by: no capability and no mount call inside; links that a run can make are not followed
          FS6  in part   writes have a byte and inode budget
                         by: private directories share 4 GiB and 1000000 inodes of a tmpfs
                         lost: in the workspace writes are limited only by the disk
          PR1  held      system calls outside the filter are refused on every ABI
                         by: seccomp filter; other ABIs and io_uring are refused
          PR2  held      no capability and no new privilege is ever gained
                         by: no_new_privs, empty capability sets, system call filter
          PR3  held      no process outside can be seen, signalled, traced or read
                         by: pid namespace with its own /proc; supervisor and launcher are not dumpable
          PR4  held      nothing that ran inside outlives the sandbox
                         by: the pid namespace dies with its first process, which is tied to the supervisor
          PR5  held      no descriptor but 0, 1 and 2 and no environment variable but the listed ones enter
                         by: descriptors closed, launcher emptied and not dumpable, listed variables only
          PR6  held      the caller's terminal cannot be typed into, and standard descriptors cannot be re-opened with more rights
                         by: private streams, Landlock on /proc/self/fd, no TIOCSTI or TIOCLINUX
          PR7  in part   memory, processes, CPU, wall time and open files are limited, and a limit that was hit is named
                         by: rlimits for each process, processor affinity, a wall-time clock and a watchdog
                         lost: limits are best effort, and of shared memory the growth on the whole machine counts: no delegated control group
          PR8  held      kernel objects without a path are private
                         by: ipc and network namespaces; key rings are refused by the system call filter
          NT1  held      nothing leaves except through the egress proxy
                         by: network namespace with nothing but its own loopback; host sockets are covered
          NT2  held      only allowlisted host and port pairs are reachable; an empty list denies all
                         by: there is no way out at all
          NT3  held      no name is resolved outside except allowlisted ones
                         by: there is no way out at all
          NT4  held      loopback of the host, private ranges and metadata are refused after resolution
                         by: there is no way out at all
          NT5  held      over TLS the server name equals the destination
                         by: there is no way out at all
          NT6  held      method, path, git-operation, size and rate rules hold
                         by: there is no way out at all
          CR1  not held  a secret is never inside the sandbox
                         because: no credential is bound
          CR2  not held  a secret is attached only to requests that its binding names
                         because: no credential is bound
          CR3  not held  a credential other than the bound one is refused on a host with a binding
                         because: no credential is bound
          EP1  held      each run starts from a declared state; nothing persists but what the policy names
                         by: a new root and empty private directories each time, gone with the run
          EP2  not held  restore gives back exactly the snapshot
                         because: holds for the project (`stockade snapshot`); this wall has no snapshots of processes
          AU1  held      each decision is one event with the rule that spoke, in a hash-chained log
                         by: hash-chained event log; each decision names its rule
          AU2  held      if any guarantee of the plan lacks evidence, the command does not start
                         by: the gate waits for evidence of every step, else kills and exits 125"#]].assert_eq(&shown);
}

#[test]
fn colours_only_repeat_what_words_say() {
    let plan = compiled(&policy(), &facts()).unwrap();
    let plain = text(&plan, Style::Plain, Detail::Verbose);
    let mut stripped = String::new();
    for (index, part) in text(&plan, Style::Ansi, Detail::Verbose)
        .split('\x1b')
        .enumerate()
    {
        let end = if index == 0 {
            0
        } else {
            part.find('m').unwrap() + 1
        };
        stripped.push_str(&part[end..]);
    }
    assert_eq!(plain, stripped);
    assert!(plain.contains("view.bind /usr"));
}

fn page() -> String {
    let plan = compiled(&policy(), &facts()).unwrap();
    text(&plan, Style::Plain, Detail::Summary)
}

/// The lines of a page from one beginning to the next, without the figures of
/// the filter.
fn part(page: &str, from: &str, to: &str) -> String {
    let lines: Vec<&str> = page
        .lines()
        .skip_while(|line| !line.starts_with(from))
        .take_while(|line| !line.starts_with(to))
        .filter(|line| !line.contains("rules allow"))
        .collect();
    lines.join("\n").trim_end().to_owned()
}

#[test]
fn the_network_part_is_shown_in_full() {
    use crate::compile::network::tests::{facts_with_names, policy_with};
    let source = r#"
network.allow = ["a.example", "db.example:5432"]
network.deny = ["bad.example:25"]
network.publish = ["0:3000"]
network.host_ports = [9000]
network.connections = 10
network.proxy = "http://proxy.example:1"
approval.network = "ask"
[[network.rule]]
host = "api.example"
methods = ["GET"]
paths = ["/x/**"]
allow_private = ["10.0.0.0/8"]
upload_bytes_max = "1KiB"
reason = "the tracker"
[[network.git]]
host = "git.example"
read = ["acme/**"]
ssh_port = 22
[[credential]]
name = "token"
host = "api.example"
from = { env = "SECRET_TOKEN" }
replace = { header = "Authorization" }
variable = "TOKEN"
"#;
    let plan = compiled(&policy_with(source), &facts_with_names()).unwrap();
    let page = text(&plan, Style::Plain, Detail::Summary);
    let from = page.find("\nNetwork\n").unwrap() + 1;
    let to = page.find("\nSystem calls\n").unwrap();
    expect![[r#"
        Network
          through the egress process only: every TCP connection is caught, names included
          what is not listed is held, and you are asked
          may be reached:
            a.example  port 443 80  passthrough  listed in `network.allow`  [network.allow[0], user.toml:3]
            db.example  port 5432  raw  listed in `network.allow`  [network.allow[1], user.toml:3]
            api.example  port 443 80  inspect  the tracker  [network.rule[0], user.toml:10]
                methods GET
                paths /x/**
                also in 10.0.0.0/8
                at most 1024 bytes up
            git.example  port 443  inspect  listed in `network.git`  [network.git[0], user.toml:17]
                git read acme/**
                also over SSH on port 22
          never bad.example port 25  listed in `network.deny`  [network.deny[0], user.toml:4]
          credential token: from your variable SECRET_TOKEN, in the header Authorization for api.example  listed in `credential`  [credential[0], user.toml:21]
                $TOKEN holds a placeholder inside
          port 3000 inside is a free port of 127.0.0.1  listed in `network.publish`  [network.publish[0], user.toml:5]
          port 9000 inside is that of this machine's 127.0.0.1  listed in `network.host_ports`  [network.host_ports[0], user.toml:6]
          of the whole sandbox: at most 10 connections at one time
          through the proxy proxy.example:1, which is told the checked address  listed in `network.proxy`  [network.proxy, user.toml:8]
    "#]].assert_eq(&page[from..to]);
    let value = serde_json::to_value(json(&plan)).unwrap();
    let network = &value["network"];
    assert_eq!(network["sets"][0]["rules"][2]["tls"], "inspect");
    assert_eq!(
        network["credentials"][0]["source"],
        "your variable SECRET_TOKEN"
    );
    assert_eq!(value["network_allow"][0], "a.example");
    assert!(!page.contains("s3cr3t") && !value.to_string().contains("s3cr3t"));
}
