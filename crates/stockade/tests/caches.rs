//! Caches of package managers: the second run has what the first one fetched,
//! and no other project, no policy of another run and nothing outside has.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_testkit::{Finished, World, has_program, skip};

/// What a project inside may read beside the system.
const TOOLS: &str = "[filesystem]\nread = [\"system\", \"toolchains\"]\n";

/// Everything that the variables and links lead to.
const PLACES: [&str; 7] = [
    "$npm_config_cache",
    "$PIP_CACHE_DIR",
    "$GOMODCACHE",
    "$GOCACHE",
    "$CCACHE_DIR",
    "$HOME/.cargo/registry",
    "$HOME/.cargo/git",
];

fn stockade(world: &World, arguments: &[&str]) -> Finished {
    let mut command = world.stockade();
    Finished::of(command.args(arguments).output().unwrap())
}

/// A second project beside the first.
fn other_project(world: &World) -> PathBuf {
    let other = world.home.join("other");
    fs::create_dir_all(&other).unwrap();
    other
}

fn run_in(world: &World, project: &Path, script: &str) -> Finished {
    let mut command = world.stockade();
    command
        .current_dir(project)
        .args(["run", "--", "sh", "-c", script]);
    Finished::of(command.output().unwrap())
}

/// The one directory of caches on the host.
fn on_host(world: &World) -> PathBuf {
    let place = world.home.join(".cache/stockade");
    let mut domains = fs::read_dir(place).unwrap().flatten();
    let only = domains.next().unwrap().path();
    assert!(domains.next().is_none(), "one project, one directory");
    only
}

#[test]
fn a34_what_a_run_caches_the_next_one_finds() {
    let world = World::new();
    for place in PLACES {
        world
            .sh(&format!("cd \"{place}\" && mkdir -p d && echo kept > d/f"))
            .expect_code(0);
        let found = world.sh(&format!("cat \"{place}/d/f\" && rm \"{place}/d/f\""));
        assert_eq!(found.ok(), "kept", "{place}");
    }
    // Only caches: the rest of the home is new each time.
    world
        .sh("echo x > ~/.cache/x && echo x > ~/.cargo/config.toml")
        .ok();
    assert_ne!(
        world.sh("cat ~/.cache/x || cat ~/.cargo/config.toml").code,
        Some(0)
    );
}

#[test]
fn b28_no_other_project_and_nothing_outside_sees_what_a_run_altered() {
    let world = World::new();
    let other = other_project(&world);
    let own = world.write(".npm/own", "own");
    world.write(".cargo/registry/own", "own");
    for place in PLACES {
        world
            .sh(&format!("echo evil > \"{place}/poison\""))
            .expect_code(0);
    }
    for place in PLACES {
        let seen = run_in(&world, &other, &format!("ls -A \"{place}\""));
        assert_eq!(seen.ok(), "", "{place}");
    }
    let outside = ".npm .cargo/registry";
    let seen = world
        .outside_sh(&format!("cd && find {outside} -type f"))
        .ok();
    assert_eq!(seen, ".npm/own\n.cargo/registry/own");
    assert_eq!(fs::read_to_string(own).unwrap(), "own");
    // Nor by way of the directory that holds them all.
    let named = on_host_all(&world).join(" ");
    for script in [format!("ls {named}"), "ls ~/.cache/stockade/..".to_owned()] {
        let seen = run_in(&world, &other, &script);
        assert!(
            !seen.stdout.contains("poison") && !seen.stdout.contains("data"),
            "{}",
            seen.stdout
        );
    }
}

fn on_host_all(world: &World) -> Vec<String> {
    let domains = fs::read_dir(world.home.join(".cache/stockade")).unwrap();
    domains
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .collect()
}

/// A run that may write the caller's own cache directory is no way around.
#[test]
fn b28_a_grant_of_the_cache_directory_does_not_open_those_of_other_projects() {
    let world = World::new();
    world.sh("echo good > $npm_config_cache/package").ok();
    let domain = on_host(&world);
    let other = other_project(&world);
    world.policy("[filesystem]\nread = [\"system\"]\nwrite = [\".\", \"~/.cache\"]\n");
    let script = format!(
        "echo evil > '{}/data/npm/package'; cat '{0}/data/npm/package'",
        domain.display()
    );
    let tried = run_in(&world, &other, &script);
    assert_ne!(tried.code, Some(0), "{}", tried.stdout);
    let package = domain.join("data/npm/package");
    assert_eq!(fs::read_to_string(package).unwrap(), "good\n");
}

/// What a run plants in its cache steers nothing of the product outside.
#[test]
fn b28_links_in_a_cache_lead_the_product_nowhere() {
    let world = World::new();
    let victim = world.write("../victim/file", "kept");
    let directory = victim.parent().unwrap().canonicalize().unwrap();
    let plant = format!(
        "cd ~/.cache/stockade && rm -rf npm go cargo && ln -s '{0}' npm && ln -s '{0}' go && \
         mkdir cargo && ln -s '{0}' cargo/registry && ln -s /etc/passwd pip/x",
        directory.display()
    );
    world.sh(&plant).expect_code(0);
    world.sh("true").expect_code(0);
    stockade(&world, &["cache", "list"]).expect_code(0);
    let domain = on_host(&world);
    let name = domain.file_name().unwrap().to_str().unwrap();
    stockade(&world, &["cache", "trim", name, "0"]).expect_code(0);
    stockade(&world, &["cache", "clear"]).expect_code(0);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
    // And the next run has its caches again.
    world
        .sh("echo x > $npm_config_cache/f && echo x > ~/.cargo/registry/f")
        .ok();
}

#[test]
fn caches_are_listed_and_cleared_one_by_one() {
    let world = World::new();
    world
        .sh("head -c 100000 /dev/zero > $npm_config_cache/f && echo x > $PIP_CACHE_DIR/f")
        .ok();
    let listed = stockade(&world, &["cache", "list", "--json"]).ok();
    let value: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let project = &value["projects"][0];
    assert_eq!(project["project"], world.project.display().to_string());
    let npm = project["caches"]
        .as_array()
        .unwrap()
        .iter()
        .find(|cache| cache["name"] == "npm");
    assert!(
        npm.unwrap()["bytes"].as_u64().unwrap() >= 100_000,
        "{listed}"
    );
    stockade(&world, &["cache", "clear", "npm"]).expect_code(0);
    assert_eq!(
        world
            .sh("ls $npm_config_cache $PIP_CACHE_DIR | grep -v :")
            .ok(),
        "f"
    );
    stockade(&world, &["cache", "clear", "--json"]).expect_code(0);
    assert_eq!(world.sh("ls $PIP_CACHE_DIR").ok(), "");
    let wrong = stockade(&world, &["cache", "clear", "npn"]).expect_code(125);
    assert!(wrong.stderr.contains("ccache"), "{}", wrong.stderr);
}

/// A program that nothing is known of is led by the variable that a policy names.
#[test]
fn a_cache_of_ones_own_is_kept_like_the_others() {
    let world = World::new();
    world.policy("[filesystem]\ncaches = [\"npm\", \"uv=UV_CACHE_DIR\"]\n");
    world
        .sh("echo kept > $UV_CACHE_DIR/f && test -z \"$PIP_CACHE_DIR\"")
        .expect_code(0);
    assert_eq!(world.sh("cat $UV_CACHE_DIR/f").ok(), "kept");
    let other = other_project(&world);
    run_in(&world, &other, "test ! -e $UV_CACHE_DIR/f").expect_code(0);
    let listed = stockade(&world, &["cache", "list", "--json"]).ok();
    assert!(listed.contains("\"uv\""), "{listed}");
    stockade(&world, &["cache", "clear", "uv"]).expect_code(0);
    stockade(&world, &["cache", "clear", "poetry"]).expect_code(125);
    world.sh("test ! -e $UV_CACHE_DIR/f").expect_code(0);
    for wrong in ["uv=PATH", "../x=X", "npm=X", "uv"] {
        world.policy(&format!("[filesystem]\ncaches = [\"{wrong}\"]\n"));
        let refused = world.sh("true").expect_code(125);
        assert!(
            refused.stderr.contains("unknown-cache"),
            "{}",
            refused.stderr
        );
    }
    // A project that nobody trusts leads no program anywhere.
    world.policy("");
    world.write(
        "project/stockade.toml",
        "version = 1\n[filesystem]\ncaches = [\"uv=UV_CACHE_DIR\"]\n",
    );
    let refused = world.sh("true").expect_code(125);
    assert!(
        refused.stderr.contains("keep the cache"),
        "{}",
        refused.stderr
    );
}

/// Nothing is taken away under a run.
#[test]
fn caches_are_not_cleared_while_a_run_uses_them() {
    let world = World::new();
    let mut command = world.stockade();
    command
        .args(["run", "--", "sh", "-c"])
        .arg("echo x > $npm_config_cache/f; touch started; until test -e go; do sleep 0.02; done; cat $npm_config_cache/f")
        .stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    while !world.project.join("started").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let refused = stockade(&world, &["cache", "clear"]).expect_code(125);
    assert!(refused.stderr.contains("in use"), "{}", refused.stderr);
    fs::write(world.project.join("go"), "").unwrap();
    let finished = Finished::of(child.wait_with_output().unwrap());
    assert_eq!(finished.ok(), "x");
    stockade(&world, &["cache", "clear"]).expect_code(0);
}

/// The size is bounded when a run has ended.
#[test]
fn caches_are_cut_down_when_a_run_has_ended() {
    let world = World::new();
    world.policy("[filesystem]\ncache_bytes_max = \"1MiB\"\n");
    world
        .sh("cd $npm_config_cache && for n in 1 2 3 4; do head -c 500000 /dev/zero > f$n; done")
        .ok();
    let domain = on_host(&world);
    let left = || {
        let files = fs::read_dir(domain.join("data/npm")).unwrap();
        files
            .flatten()
            .map(|entry| entry.metadata().unwrap().len())
            .sum::<u64>()
    };
    let begun = std::time::Instant::now();
    // By a process that nobody waits for.
    while left() > (1 << 20) && begun.elapsed() < std::time::Duration::from_secs(60) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(
        (1..=(1 << 20)).contains(&left()),
        "{} bytes are left",
        left()
    );
}

#[test]
fn a_policy_without_caches_keeps_nothing() {
    let world = World::new();
    world.policy("[filesystem]\ncaches = [\"npm\"]\n");
    let variables = "echo \"${npm_config_cache:+npm} ${PIP_CACHE_DIR:+pip}\"; ls -A ~/.cargo";
    assert_eq!(world.sh(variables).stdout, "npm \n");
    world.policy("[filesystem]\ncaches = []\n");
    assert_eq!(world.sh("ls -A ~").ok(), "project");
    let mut explain = world.stockade();
    explain.args(["explain", "--", "true"]);
    let none = Finished::of(explain.output().unwrap()).ok();
    assert!(!none.contains("only caches are kept"), "{none}");
    world.policy("");
    let mut explain = world.stockade();
    explain.args(["explain", "--", "true"]);
    let all = Finished::of(explain.output().unwrap()).ok();
    assert!(
        all.contains("only caches are kept: cargo, npm, pip, go, ccache"),
        "{all}"
    );
}

/// The real cargo, with a dependency that is gone when it is needed again.
#[test]
fn a34_cargo_builds_from_what_the_first_run_fetched() {
    if !has_program("cargo") || !has_program("git") {
        return skip(
            "a34_cargo_builds_from_what_the_first_run_fetched",
            "cargo",
            "no cargo",
        );
    }
    let world = World::new();
    world.policy(TOOLS);
    world.write(
        "project/dep/Cargo.toml",
        "[package]\nname = \"dep\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    );
    world.write("project/dep/src/lib.rs", "pub fn answer() -> u32 { 42 }\n");
    world
        .outside_sh("cd dep && git init -q && git add . && git -c user.name=t -c user.email=t@e commit -qm x")
        .expect_code(0);
    let manifest = format!(
        "[package]\nname = \"demo\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\n\
         dep = {{ git = \"file://{}/dep\" }}\n[workspace]\nexclude = [\"dep\"]\n",
        world.project.display()
    );
    world.write("project/Cargo.toml", manifest);
    world.write(
        "project/src/lib.rs",
        "pub fn f() -> u32 { dep::answer() }\n",
    );
    let toolchain = ["RUSTUP_HOME", "CARGO_HOME"].map(|name| (name, std::env::var_os(name)));
    let cargo = |script: &str| {
        let mut command = world.stockade();
        command.args(["run", "--", "sh", "-c", script]);
        let real_home = std::env::var_os("HOME").unwrap_or_default();
        let [(_, rustup), _] = &toolchain;
        let rustup = rustup
            .clone()
            .unwrap_or_else(|| Path::new(&real_home).join(".rustup").into());
        command.env("RUSTUP_HOME", rustup);
        Finished::of(command.output().unwrap())
    };
    let started = cargo("cargo --version");
    if started.code != Some(0) {
        return skip(
            "a34_cargo_builds_from_what_the_first_run_fetched",
            "cargo",
            "cargo does not start inside",
        );
    }
    cargo("cargo fetch").expect_code(0);
    fs::rename(world.project.join("dep"), world.outside().join("dep")).unwrap();
    cargo("cargo check --offline").expect_code(0);
    // The control: without the cache there is nothing to build from.
    stockade(&world, &["cache", "clear", "cargo"]).expect_code(0);
    assert_ne!(cargo("cargo check --offline").code, Some(0));
}

/// The real go, from a module proxy that is gone when the module is needed again.
#[test]
fn a34_go_builds_from_what_the_first_run_fetched() {
    if !has_program("go") || !has_program("python3") {
        return skip(
            "a34_go_builds_from_what_the_first_run_fetched",
            "go",
            "no go",
        );
    }
    let world = World::new();
    world.policy(TOOLS);
    let version = "project/proxy/example.org/m/@v";
    world.write(format!("{version}/list"), "v1.0.0\n");
    world.write(
        format!("{version}/v1.0.0.info"),
        "{\"Version\": \"v1.0.0\"}",
    );
    world.write(
        format!("{version}/v1.0.0.mod"),
        "module example.org/m\n\ngo 1.18\n",
    );
    let zip = "import zipfile; z = zipfile.ZipFile('proxy/example.org/m/@v/v1.0.0.zip', 'w'); \
               p = 'example.org/m@v1.0.0/'; z.writestr(p + 'go.mod', 'module example.org/m\\n\\ngo 1.18\\n'); \
               z.writestr(p + 'm.go', 'package m\\n\\nfunc Answer() int { return 42 }\\n'); z.close()";
    world
        .outside_sh(&format!("python3 -c \"{zip}\""))
        .expect_code(0);
    world.write(
        "project/go.mod",
        "module demo\n\ngo 1.18\n\nrequire example.org/m v1.0.0\n",
    );
    world.write(
        "project/main.go",
        "package main\n\nimport \"example.org/m\"\n\nfunc main() { println(m.Answer()) }\n",
    );
    let build = |proxy: &str| {
        world.sh(&format!(
            "GOFLAGS=-mod=mod GONOSUMDB='*' GONOSUMCHECK=1 GOFLAGS=-mod=mod GOSUMDB=off GOTOOLCHAIN=local \
             GOPROXY={proxy} go build -o demo ."
        ))
    };
    build("file://$PWD/proxy").expect_code(0);
    fs::rename(world.project.join("proxy"), world.outside().join("proxy")).unwrap();
    build("off").expect_code(0);
    // The control, which also takes away what go made read-only.
    stockade(&world, &["cache", "clear", "go"]).expect_code(0);
    assert_ne!(build("off").code, Some(0));
}

/// The real programs say where their caches are.
#[test]
fn a34_programs_use_the_caches_that_they_are_led_to() {
    let world = World::new();
    world.policy(TOOLS);
    for (program, asks, variable) in [
        ("npm", "npm config get cache", "npm_config_cache"),
        ("go", "go env GOMODCACHE", "GOMODCACHE"),
        ("go", "go env GOCACHE", "GOCACHE"),
        ("ccache", "ccache -k cache_dir", "CCACHE_DIR"),
        ("pip3", "pip3 cache dir", "PIP_CACHE_DIR"),
    ] {
        if world
            .sh(&format!("{program} --version || {program} version"))
            .code
            != Some(0)
        {
            println!("skipped: {program} does not start inside");
            continue;
        }
        let said = world.sh(&format!("{asks} && echo \"${variable}\"")).ok();
        let (place, expected) = said.split_once('\n').unwrap();
        assert_eq!(place, expected, "{program}");
    }
}
