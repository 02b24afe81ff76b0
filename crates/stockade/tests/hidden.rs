//! Hidden files do not break git, whether it tracks them or not: no device
//! node, nothing emptied, nothing staged that nobody meant.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use stockade_testkit::{Finished, World, has_program};

const HIDE: &str = "[filesystem]\nhide = [\"**/.env\", \"**/.env.local\", \"secrets\"]\n";

/// A repository with a tracked file, and this policy.
fn repository(policy: &str) -> World {
    assert!(has_program("git"), "these tests need git");
    let world = World::new();
    world.policy(policy);
    world.write(".gitconfig", "[user]\nname = T\nemail = t@example.org\n");
    world.write("project/code", "code\n");
    outside(&world, "git init -q && git add . && git commit -qm first");
    world
}

fn outside(world: &World, script: &str) -> String {
    world.outside_sh(script).ok()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// What is staged and what is not, as the host sees it.
fn status(world: &World) -> String {
    world
        .outside_sh("git status --porcelain")
        .expect_code(0)
        .stdout
}

#[test]
fn a05_untracked_hidden_files_are_passed_over() {
    let world = repository(HIDE);
    let places = [
        ".env",
        "sub/.env",
        "sub/deep/odd [name]*/.env",
        "secrets/key",
    ];
    for place in places {
        world.write(format!("project/{place}"), "secret");
    }
    world.write("project/new", "new\n");
    world.write("project/sub/beside", "new\n");
    let all = world.sh("git status --porcelain && git add -A && git diff --cached --name-only && git stash -u && git stash pop");
    let all = all.expect_code(0);
    assert!(
        !all.stdout.contains(".env") && !all.stdout.contains("secrets"),
        "{}",
        all.stdout
    );
    assert!(!all.stderr.contains("ermission denied"), "{}", all.stderr);
    world.sh("git add -A && git commit -qm second").ok();
    assert_eq!(
        outside(&world, "git show --stat=80 --format= HEAD --name-only"),
        "new\nsub/beside"
    );
    for place in places {
        assert_eq!(text(&world.project.join(place)), "secret", "{place}");
    }
    // Outside nothing is excluded that was not before.
    assert!(status(&world).contains("?? .env"), "{}", status(&world));
}

/// `git add -f` asks for exactly this file: one message says which rule it is.
#[test]
fn a05_one_message_names_the_file_and_the_rule() {
    let world = repository(HIDE);
    world.write("project/sub/.env", "secret");
    let forced = world.sh("git add -f sub/.env");
    assert_ne!(forced.code, Some(0));
    let lines: Vec<&str> = forced
        .stderr
        .lines()
        .filter(|line| line.contains("filesystem.hide[0]"))
        .collect();
    assert_eq!(lines.len(), 1, "{}", forced.stderr);
    assert!(
        forced.stderr.contains("project/sub/.env is hidden"),
        "{}",
        forced.stderr
    );
    assert_eq!(text(&world.project.join("sub/.env")), "secret");
}

#[test]
fn a05_tracked_hidden_files_look_as_committed() {
    let world = repository(HIDE);
    world.write("project/.env.local", "committed\n");
    world.write("project/secrets/run", "#!/bin/sh\n");
    let run = world.project.join("secrets/run");
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("run", world.project.join("secrets/link")).unwrap();
    outside(&world, "git add . && git commit -qm tracked");
    let file = world.project.join(".env.local");
    fs::write(&file, "committed\nreal secret\n").unwrap();
    fs::write(&run, "real secret").unwrap();
    world.write("project/secrets/untracked", "real secret");
    fs::write(world.project.join("code"), "changed\n").unwrap();
    let before = (fs::metadata(&file).unwrap().ino(), status(&world));

    assert_eq!(
        world.sh("git diff --stat | cat").ok(),
        "code | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)"
    );
    assert_eq!(
        world.sh("git status --porcelain").expect_code(0).stdout,
        " M code\n"
    );
    let seen = world.sh(
        "cat .env.local secrets/run; readlink secrets/link; ls secrets; grep -r secret . ; true",
    );
    assert_eq!(seen.ok(), "committed\n#!/bin/sh\nrun\nlink\nrun");
    world
        .sh("git stash && git stash pop && git add -A && git commit -qm inside")
        .expect_code(0);
    assert_eq!(
        outside(&world, "git show --format= HEAD --name-only"),
        "code"
    );

    // Whatever is tried, the file stays what it was.
    for attempt in [
        "echo x > .env.local",
        ": > .env.local",
        "rm .env.local",
        "mv .env.local other",
        "mv other .env.local",
        "git rm .env.local",
        "rm secrets/run",
        "echo x > secrets/run",
        "mknod .env.local c 1 3",
    ] {
        assert_ne!(world.sh(attempt).code, Some(0), "{attempt}");
    }
    world
        .sh("git reset -q --hard; git checkout -q -- .; git clean -fdxq; true")
        .ok();
    let metadata = fs::metadata(&file).unwrap();
    assert!(metadata.is_file() && !metadata.file_type().is_char_device());
    assert_eq!(metadata.ino(), before.0);
    assert_eq!(text(&file), "committed\nreal secret\n");
    assert_eq!(text(&run), "real secret");
    assert_eq!(
        text(&world.project.join("secrets/untracked")),
        "real secret"
    );
    // And the host still sees what it changed, and only that.
    assert!(before.1.contains(" M .env.local"), "{}", before.1);
    assert_eq!(
        status(&world),
        " M .env.local\n M secrets/run\n?? secrets/untracked\n"
    );
}

/// Each run says in one line what stands there, and so does `explain`.
#[test]
fn a05_what_stands_in_is_told() {
    let world = repository(HIDE);
    world.write("project/.env", "committed");
    outside(&world, "git add . && git commit -qm tracked");
    let told = world.sh("true").expect_code(0).stderr;
    let lines: Vec<&str> = told
        .lines()
        .filter(|line| line.contains("project/.env"))
        .collect();
    assert_eq!(lines.len(), 1, "{told}");
    assert!(lines[0].contains("filesystem.hide[0]"), "{told}");
    let mut explain = world.stockade();
    explain.args(["explain", "--", "true"]);
    let explained = Finished::of(explain.output().unwrap()).ok();
    assert!(
        explained.contains("what git's index holds stands there, read-only"),
        "{explained}"
    );
    let mut test = world.stockade();
    test.args(["test", "read", ".env"]);
    let denied = Finished::of(test.output().unwrap());
    assert!(
        denied
            .stdout
            .contains("what git's index holds stands there"),
        "{} {}",
        denied.stdout,
        denied.stderr
    );
}

/// Where the home is the host's own, git finds the list all the same.
#[test]
fn hidden_files_are_passed_over_in_a_readable_home() {
    let world = repository("[filesystem]\nread = [\"system\", \"~\"]\nhide = [\"**/.env\"]\n");
    world.write("project/.env", "secret");
    world.write("project/.swap", "caller's own");
    world.write(".config/git/ignore", ".swap\n");
    world.write("project/new", "new");
    world.sh("git add -A && git commit -qm second").ok();
    assert_eq!(
        outside(&world, "git show --format= HEAD --name-only"),
        "new"
    );
}

/// The caller's own excludes go with those of the sandbox.
#[test]
fn the_callers_own_excludes_still_count() {
    let world = repository(HIDE);
    world.write("project/.env", "secret");
    world.write("project/.swap", "");
    world.write("own excludes", ".swap");
    world.write(
        ".gitconfig",
        "[user]\nname = T\nemail = t@example.org\n[core]\nexcludesFile = \"~/own excludes\"\n",
    );
    assert_eq!(world.sh("git status --porcelain").ok(), "");
    assert!(status(&world).contains("?? .env"));
}

/// A repository cannot have its own programs run by what reads its index.
#[test]
fn nothing_that_a_repository_configures_runs_at_the_start() {
    let world = repository(HIDE);
    world.write("project/.env", "committed");
    outside(&world, "git add . && git commit -qm tracked && git gc -q");
    let witness = world.outside().join("witness");
    let program = world.write(
        "../program",
        format!("#!/bin/sh\ntouch '{}'\n", witness.display()),
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let program = program.canonicalize().unwrap();
    let mut config = text(&world.project.join(".git/config"));
    config.push_str(&format!(
        "[core]\nfsmonitor = {0}\nhooksPath = {1}\nsshCommand = {0}\nalternateRefsCommand = {0}\n\
         [remote \"origin\"]\nurl = ext::{0}\npromisor = true\n[extensions]\npartialClone = origin\n\
         [filter \"x\"]\nsmudge = {0}\nclean = {0}\n",
        program.display(),
        program.parent().unwrap().display(),
    ));
    fs::write(world.project.join(".git/config"), config).unwrap();
    world.write("project/.gitattributes", "* filter=x\n");
    assert_eq!(world.run(&[], &["cat", ".env"]).ok(), "committed");
    assert!(!witness.exists());
    // The control: git itself would have run it.
    world.outside_sh("git status").expect_code(0);
    assert!(witness.exists());
}

/// What a run wrote into the index steers nothing outside its grants.
#[test]
fn an_index_that_lies_neither_writes_nor_reads_elsewhere() {
    let world = repository(HIDE);
    world.write("project/secrets/key", "committed");
    let victim = world.outside().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("key"), "secret of another").unwrap();
    outside(&world, "git add .");
    // An entry whose name leads out, made by hand: git refuses to.
    let index = world.project.join(".git/index");
    let mut bytes = fs::read(&index).unwrap();
    let name = bytes
        .windows(11)
        .position(|part| part == b"secrets/key")
        .unwrap();
    bytes[name..name + 11].copy_from_slice(b"secrets/../");
    fs::write(&index, bytes).unwrap();
    world.sh("true").expect_code(0);
    assert_eq!(text(&world.project.join("secrets/key")), "committed");
    // Objects of a repository that is not granted are not looked at.
    outside(&world, "rm .git/index");
    world
        .outside_sh(&format!(
            "cd '{}' && git init -q && git add key",
            victim.display()
        ))
        .expect_code(0);
    let blob = outside(
        &world,
        &format!("git -C '{}' rev-parse :key", victim.display()),
    );
    outside(
        &world,
        &format!(
            "echo '{}/.git/objects' > .git/objects/info/alternates && \
             git update-index --add --cacheinfo 100644,{blob},.env",
            victim.display()
        ),
    );
    world.write("project/.env", "own");
    let seen = world.sh("cat .env");
    assert!(
        !seen.stdout.contains("secret of another"),
        "{}",
        seen.stdout
    );
}

#[test]
fn a10_hidden_names_that_are_links() {
    let world = repository("[filesystem]\nhide = [\".bashrc\", \"AGENTS.md\", \"inner\"]\n");
    let elsewhere = world.write("elsewhere/target", "kept");
    let links = [
        (
            world.project.join(".bashrc"),
            world.outside().join("nonexistent/x"),
        ),
        (world.project.join("AGENTS.md"), elsewhere.clone()),
        (world.project.join("sub.inner"), "inner".into()),
        (world.project.join("loop"), "loop".into()),
    ];
    world.write("project/inner", "secret");
    for (link, target) in &links {
        symlink(target, link).unwrap();
    }
    assert_eq!(world.run(&[], &["echo", "hi"]).ok(), "hi");
    let seen =
        world.sh("cat sub.inner; cat AGENTS.md; echo evil > .bashrc; echo evil > AGENTS.md; true");
    assert!(
        !seen.stdout.contains("secret") && !seen.stdout.contains("kept"),
        "{}",
        seen.stdout
    );
    for (link, target) in &links {
        assert_eq!(&fs::read_link(link).unwrap(), target, "{link:?} is intact");
    }
    assert_eq!(text(&elsewhere), "kept");
    assert!(!world.outside().join("nonexistent").exists());
    assert_eq!(text(&world.project.join("inner")), "secret");
}

/// Many matches, tracked and not, and git still works; what appears later is
/// not hidden, as documented.
#[test]
fn a11_many_matches_and_one_that_comes_later() {
    let world = repository("[filesystem]\nhide = [\"**/*.key\"]\n");
    for number in 0..1800 {
        let content = format!("key {number}");
        world.write(
            format!("project/tracked/{}/{number}.key", number / 30),
            &content,
        );
        world.write(
            format!("project/other/{}/{number}.key", number / 30),
            content,
        );
    }
    outside(
        &world,
        "git add tracked && git commit -qm keys && git gc -q",
    );
    outside(
        &world,
        "for file in tracked/*/*.key; do echo real secret > $file; done",
    );
    let found =
        world.sh("git status --porcelain | wc -l; cat tracked/7/215.key; cat other/7/215.key");
    assert_eq!(found.stdout, "0\nkey 215", "{}", found.stderr);
    let later =
        world.sh("echo later > later.key && cat later.key && git add -A && git status --porcelain");
    assert_eq!(later.ok(), "later\nA  later.key");
    // The next run hides it: git tracks it now, so that is what it shows.
    fs::write(world.project.join("later.key"), "real secret").unwrap();
    assert_eq!(world.sh("cat later.key").ok(), "later");
}
