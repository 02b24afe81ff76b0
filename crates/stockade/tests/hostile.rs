//! What a command tries against its supervisor and against the next run.

use std::io::{Read, Write};
use std::process::Stdio;

use stockade_sys::rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use stockade_testkit::{Finished, World, skip};

#[test]
fn a_hint_does_not_tell_whether_a_file_outside_exists() {
    let world = World::new();
    let real = world.write("private/there", "content");
    let target = world.write("elsewhere/target", "content");
    let link = real.with_file_name("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let missing = real.with_file_name("not-there");
    let hint = |text: &str| {
        let by_output = world.run(&[], &["sh", "-c", &format!("echo '{text}' >&2; exit 1")]);
        let by_argument = world.run(&[], &["cat", text]);
        let by_program = world.run(&[], &[text]);
        [by_output, by_argument, by_program].map(|finished| {
            assert_ne!(finished.code, Some(0));
            assert!(!finished.stderr.contains("target"), "{}", finished.stderr);
            finished.stderr.replace(text, "PATH")
        })
    };
    let expected = hint(missing.to_str().unwrap());
    assert!(expected[1].contains("to allow it:"), "{}", expected[1]);
    assert_eq!(hint(real.to_str().unwrap()), expected);
    assert_eq!(hint(link.to_str().unwrap()), expected);
}

#[test]
fn what_is_hidden_cannot_be_moved_to_where_the_next_run_shows_it() {
    let world = World::new();
    world.write("project/config/deep/secret.yml", "content");
    world.write("project/config/plain", "plain");
    world.policy("[filesystem]\nhide = [\"config/deep/secret.yml\"]\n");
    let moves = "mv config elsewhere; mv config/deep deeper; mkdir new; \
                 mv -T --exchange config new; mv config/deep/secret.yml ./; \
                 ln config/deep/secret.yml linked; \
                 mv config/plain . && echo more >>plain && mv plain config/deep/";
    world.sh(moves);
    let found = world.sh("cat config/deep/plain; grep -r content . 2>/dev/null || echo none");
    assert_eq!(found.ok(), "plainmore\nnone");
}

#[test]
fn a_run_cannot_remove_what_the_next_run_is_set_up_by() {
    let world = World::new();
    world.write("project/.env", "secret");
    world.write(
        "project/stockade.toml",
        "version = 1\n[filesystem]\nhide = [\".env\"]\n",
    );
    let without = "rm -f stockade.toml; : >stockade.toml; mv .env other; \
                   echo 'version = 1' >new; mv -f new stockade.toml";
    world.sh(without);
    assert_ne!(world.sh("cat .env").code, Some(0));
    world.write("outer/.git/HEAD", "ref: refs/heads/main\n");
    let inner_directory = world.home.join("outer/inner");
    world.write(inner_directory.join(".git/HEAD"), "ref: refs/heads/main\n");
    // The project further up is not widened to by taking away the inner one.
    let mut inner = world.stockade();
    inner.current_dir(&inner_directory);
    let tries = "mv .git gone; rm -rf .git; echo kept >.git/new";
    inner.args(["run", "--", "sh", "-c", tries]);
    Finished::of(inner.output().unwrap());
    assert_eq!(
        std::fs::read(inner_directory.join(".git/new")).unwrap(),
        b"kept\n"
    );
    let mut inner = world.stockade();
    inner.current_dir(&inner_directory);
    inner.args(["run", "--", "touch", "../widened"]);
    Finished::of(inner.output().unwrap());
    assert!(!inner_directory.with_file_name("widened").exists());
}

#[test]
fn a_planted_policy_file_does_not_displace_the_one_further_up() {
    let world = World::new();
    world.write("project/inner/.env", "secret");
    world.write(
        "project/stockade.toml",
        "version = 1\n[filesystem]\nhide = [\".env\"]\n",
    );
    world.sh("echo 'version = 1' >inner/stockade.toml").ok();
    assert!(
        !world.project.join("inner/stockade.toml").exists(),
        "it is held"
    );
    // A run of an older version, or without a guard, may have made it.
    world.write("project/inner/stockade.toml", "version = 1\n");
    let in_inner = |arguments: &[&str]| {
        let mut command = world.stockade();
        command.current_dir(world.project.join("inner"));
        Finished::of(command.args(arguments).output().unwrap())
    };
    let run = ["run", "--", "cat", ".env"];
    let refused = in_inner(&run);
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.stderr.contains("take the place of"),
        "{}",
        refused.stderr
    );
    // A person may say that it counts.
    in_inner(&["trust", "--yes"]).ok();
    assert_eq!(in_inner(&run).ok(), "secret");
}

const PASSES_ITS_OUTPUT: &str = "import os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
if sys.argv[1] == 'give':
    s.bind('new')
    s.listen(1)
    os.rename('new', 'socket')
    c, _ = s.accept()
    socket.send_fds(c, [b'x'], [1, 2])
    c.recv(1)
    print('given')
else:
    while not os.path.exists('socket'): time.sleep(0.02)
    s.connect('socket')
    m, held, _, _ = socket.recv_fds(s, 1, 2)
    s.send(b'x')
    for _ in range(1000):
        if os.path.exists('release'): break
        time.sleep(0.02)
";

#[test]
fn output_that_another_run_holds_open_ends_with_its_own_run() {
    const NAME: &str = "output_that_another_run_holds_open_ends_with_its_own_run";
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return skip(NAME, "python3", "there is no /usr/bin/python3");
    }
    let world = World::new();
    let argv = |role| ["/usr/bin/python3", "-c", PASSES_ITS_OUTPUT, role];
    let mut holder = world
        .stockade()
        .args(["run", "--"])
        .args(argv("hold"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(world.run(&[], &argv("give")).ok(), "given");
    let still_holds = holder.try_wait().unwrap().is_none();
    world.write("project/release", "");
    holder.wait().unwrap();
    assert!(still_holds);
}

/// The supervisor finds the pipe readable, then the command takes back what it
/// wrote: whoever then waits for it keeps no limit and relays no signal.
#[test]
fn a_command_that_empties_its_own_pipe_does_not_hold_up_the_supervisor() {
    let world = World::new();
    // The destination is full, so that the supervisor has to wait before it
    // reads.
    let (mut reader, writer) = pipe_with(PipeFlags::CLOEXEC)
        .map(|(reader, writer)| (std::fs::File::from(reader), std::fs::File::from(writer)))
        .unwrap();
    let capacity = fcntl_setpipe_size(&writer, 4096).unwrap();
    (&writer).write_all(&vec![b'.'; capacity]).unwrap();
    let script = "exec 3</proc/self/fd/2; printf x >&2; sleep 1; head -c 1 <&3 >/dev/null; \
                  echo done >emptied; sleep 15; echo late >late";
    let child = world
        .stockade()
        .args([
            "run",
            "--quiet",
            "--wall-time",
            "5s",
            "--",
            "sh",
            "-c",
            script,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer)
        .spawn()
        .unwrap();
    let emptied = world.project.join("emptied");
    stockade_testkit::tools::await_file(&emptied);
    let drain = std::thread::spawn(move || reader.read_to_end(&mut Vec::new()));
    let finished = Finished::of(child.wait_with_output().unwrap());
    finished.expect_code(124);
    assert!(!world.project.join("late").exists());
    drain.join().unwrap().unwrap();
}
