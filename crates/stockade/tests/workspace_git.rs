//! Projects whose git directory lies elsewhere: linked work trees work, and a
//! pointer that was forged opens nothing.

use std::fs;
use std::path::PathBuf;

use stockade_testkit::{Finished, World, has_program};

/// A repository `main` beside the project, which is a linked work tree of it.
fn linked() -> World {
    assert!(has_program("git"), "these tests need git");
    let world = World::new();
    world.write(".gitconfig", "[user]\nname = T\nemail = t@example.org\n");
    let script = "cd .. && git init -q main && cd main && echo a > a && git add a \
        && git commit -qm first && rmdir ../project && git worktree add -q -b side ../project";
    world.outside_sh(script).expect_code(0);
    world
}

fn main_git(world: &World) -> PathBuf {
    world.home.join("main/.git")
}

fn fails(world: &World, script: &str) -> Finished {
    let finished = world.sh(script);
    assert_ne!(finished.code, Some(0), "{script}: {}", finished.stdout);
    finished
}

#[test]
fn a08_a_linked_work_tree_works() {
    let world = linked();
    let script = "echo b > b && git add b && git commit -qm second && git switch -qc x \
        && git stash list && git log --format=%s && git status --porcelain";
    let log = world.sh(script).expect_code(0);
    assert_eq!(log.stdout, "second\nfirst\n", "{}", log.stderr);
    let outside = world.outside_sh("git log --format=%s x && git fsck --strict 2>&1");
    assert!(outside.ok().starts_with("second\nfirst"));
    // Twice, and with nothing to do.
    world.sh("true").expect_code(0);
    assert!(fs::metadata(world.project.join(".git")).unwrap().is_file());
}

#[test]
fn a08_hooks_configuration_and_pointers_of_the_repository_stay() {
    let world = linked();
    let git = main_git(&world);
    let config = fs::read(git.join("config")).unwrap();
    let own = git.join("worktrees/project");
    for script in [
        "echo x > $G/hooks/pre-commit",
        "echo x >> $G/config",
        "git config core.pager evil",
        "echo x > $G/worktrees/project/commondir",
        "rm $G/worktrees/project/commondir",
        "mv $G/worktrees/project/gitdir $G/worktrees/project/y",
        "echo x > n && mv n $G/worktrees/project/commondir",
        "mv $G/worktrees/project $G/worktrees/other",
        "mkdir -p $G/worktrees/evil",
        "rm -r $G/hooks",
    ] {
        fails(&world, &script.replace("$G", git.to_str().unwrap()));
    }
    // Beside the repository there is only what is private to the run.
    world.sh(&format!("echo x > {}/../a", git.display()));
    assert_eq!(fs::read(git.join("config")).unwrap(), config);
    assert!(!git.join("hooks/pre-commit").exists());
    assert_eq!(
        fs::read_to_string(own.join("commondir")).unwrap(),
        "../..\n"
    );
    assert!(own.join("gitdir").is_file());
    assert_eq!(
        fs::read_to_string(world.home.join("main/a")).unwrap(),
        "a\n"
    );
    world.outside_sh("git status").expect_code(0);
}

/// No layer lies over the git directory, so what would be written there would
/// neither wait nor go with the run: it is only read, and that is said.
#[test]
fn a08_a_linked_work_tree_is_not_written_around_the_layer() {
    let world = linked();
    let git = main_git(&world);
    let state = || world.outside_sh("cd ../main/.git && find . -type f | sort | xargs sha256sum");
    let before = state();
    for mode in ["review", "discard"] {
        let script = "git log --format=%s && git status --porcelain && echo b > b && \
                      git diff --stat && ! git add b && ! git commit -qm x && ! git branch other";
        let run = world.run(&["--workspace", mode], &["sh", "-c", script]);
        assert!(run.stderr.contains("linked work tree"), "{}", run.stderr);
        assert_eq!(run.ok(), "first");
        assert_eq!(state(), before, "{mode}");
    }
    // Also when the mode follows from what a run goes on from.
    let stockade = |arguments: &[&str]| {
        let output = world.stockade().args(arguments).output();
        Finished::of(output.unwrap()).expect_code(0)
    };
    stockade(&["apply"]);
    assert!(world.project.join("b").exists());
    stockade(&["snapshot", "start"]);
    let on = world.run(&["--on", "start"], &["sh", "-c", "! git branch other"]);
    on.expect_code(0);
    assert_eq!(state(), before);
    // Who names it has it written directly.
    world.policy(&format!(
        "[filesystem]\nwrite = [\".\", \"{}\"]\n",
        git.display()
    ));
    let script = "git add b && git commit -qm second";
    let run = world.run(&["--workspace", "review"], &["sh", "-c", script]);
    run.expect_code(0);
    assert_ne!(state(), before);
}

#[test]
fn a08_the_plan_names_what_it_grants_and_a_ceiling_keeps_its_word() {
    let world = linked();
    let explain = |world: &World| {
        let mut command = world.stockade();
        let output = command.args(["explain", "--json", "--", "true"]).output();
        Finished::of(output.unwrap()).expect_code(0).stdout
    };
    let shown = explain(&world);
    assert!(shown.contains("built-in.git-worktree"), "{shown}");
    assert!(shown.contains("built-in.git-pointer"));
    // A project's own file is a ceiling until it is trusted.
    world.write(
        "project/stockade.toml",
        "version = 1\n[filesystem]\nwrite = [\".\"]\n",
    );
    assert!(!explain(&world).contains("built-in.git-worktree"));
    world.write(
        "project/stockade.toml",
        "version = 1\n[filesystem]\nhide = [\"x\"]\n",
    );
    assert!(explain(&world).contains("built-in.git-worktree"));
    // Who may not write the project does not write its repository.
    world.policy("preset = \"read-only\"\n");
    assert!(!explain(&world).contains("built-in.git-worktree"));
}

#[test]
fn b07_a_pointer_to_a_chosen_place_opens_nothing() {
    let world = World::new();
    let secret = world.write(".ssh/id_ed25519", "private key");
    let other = world.write("other/notes", "private notes");
    let place = |path: &str| world.home.join(path).display().to_string();
    for target in [
        place(".ssh"),
        place("other"),
        "../other".to_owned(),
        "../.ssh".to_owned(),
        format!("{}/../other", world.project.display()),
        "/".to_owned(),
        "/etc".to_owned(),
    ] {
        // A command inside can write the file: here it does.
        let forge = format!("rm -rf .git && printf 'gitdir: %s\\n' '{target}' > .git");
        world.outside_sh(&forge).expect_code(0);
        let script = format!("cat {} {}", secret.display(), other.display());
        let read = fails(&world, &script);
        assert!(!read.stdout.contains("private"), "{target}");
        assert!(
            read.stderr
                .contains("as its git directory, which is not granted"),
            "{target}: {}",
            read.stderr
        );
        fails(&world, &format!("echo x > {}", place("other/planted")));
        assert!(!world.home.join("other/planted").exists(), "{target}");
    }
}

#[test]
fn b07_a_forged_work_tree_is_not_believed() {
    let world = linked();
    let own = main_git(&world).join("worktrees/project");
    // The pointer of another work tree, copied: that one does not name us.
    world
        .outside_sh("cd ../main && git worktree add -q -b other ../other")
        .expect_code(0);
    let theirs = fs::read_to_string(world.home.join("other/.git")).unwrap();
    let ours = fs::read_to_string(world.project.join(".git")).unwrap();
    fs::write(world.project.join(".git"), &theirs).unwrap();
    let refused = fails(&world, "echo x > b && git add b");
    assert!(
        refused
            .stderr
            .contains("does not name this project in turn"),
        "{}",
        refused.stderr
    );
    fs::write(world.project.join(".git"), &ours).unwrap();
    // Redirected by what lies beside it.
    let evil = world.home.join("evil");
    fs::create_dir_all(evil.join("objects")).unwrap();
    world.write("evil/HEAD", "ref: refs/heads/main\n");
    fs::write(own.join("commondir"), format!("{}\n", evil.display())).unwrap();
    let refused = fails(&world, &format!("echo x > {}/objects/x", evil.display()));
    assert!(
        refused.stderr.contains("does not belong to the repository"),
        "{}",
        refused.stderr
    );
    assert!(!evil.join("objects/x").exists());
}

#[test]
fn b07_a_work_tree_forged_inside_the_project_gives_nothing_beyond_it() {
    // Everything that would prove it lies where a run can write.
    let world = World::new();
    let script = "mkdir -p r/objects r/refs r/worktrees/w && echo 'ref: x' > r/HEAD \
        && echo ../.. > r/worktrees/w/commondir && echo $PWD/.git > r/worktrees/w/gitdir \
        && ln -s $HOME/other r/logs && mkdir -p $HOME/other \
        && echo gitdir: $PWD/r/worktrees/w > .git";
    world.outside_sh(script).expect_code(0);
    let other = world.write("other/notes", "private notes");
    let script = format!(
        "cat {} r/logs/notes; echo x > r/logs/planted",
        other.display()
    );
    let inside = fails(&world, &script);
    assert!(!inside.stdout.contains("private"));
    assert!(!world.home.join("other/planted").exists());
}

#[test]
fn what_is_guarded_is_refused_where_the_policy_says_so() {
    let world = World::new();
    world.policy("[filesystem]\nguard = [\"deploy\"]\n[approval]\nguarded = \"deny\"\n");
    world.outside_sh("git init -q").expect_code(0);
    for script in [
        "echo x > .git/hooks/pre-commit",
        "mkdir deploy && echo x > deploy/run",
        "echo x > new && mv new .envrc",
        "echo x > new && ln new .envrc",
        "ln -s /bin/true .envrc",
        "git config core.pager evil",
    ] {
        fails(&world, script);
    }
    world
        .sh("git config user.name T && echo x > CLAUDE.md")
        .expect_code(0);
    for name in [".git/hooks/pre-commit", "deploy/run", ".envrc"] {
        assert!(
            fs::symlink_metadata(world.project.join(name)).is_err(),
            "{name}"
        );
    }
    assert!(
        !fs::read_to_string(world.project.join(".git/config"))
            .unwrap()
            .contains("evil")
    );
    let mut command = world.stockade();
    let listed = command.args(["approvals", "--json"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&listed.stdout).contains("pre-commit"));
}
