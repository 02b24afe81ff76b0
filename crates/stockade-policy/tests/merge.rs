//! Layers only narrow: by example, and as laws over generated layers.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use stockade_policy::document::parse;
use stockade_policy::network::destination::RawHost;
use stockade_policy::network::{Destination, Judge, NetworkPlan};
use stockade_policy::path::AbsolutePath;
use stockade_policy::plan::{Access, Form, Rule, Wall};
use stockade_policy::policy::{
    Amount, GrantTarget, LimitDemands, PathGrant, Policy, limit_defaults,
};
use stockade_policy::problem::{Layer, LayerKind, Problem, Trust};
use stockade_policy::validate::{Context, LayerPolicy, validate};
use stockade_policy::{merge, sets};

const TRUSTED: LayerKind = LayerKind::Project(Trust::Trusted);
const UNTRUSTED: LayerKind = LayerKind::Project(Trust::Untrusted);

fn absolute(path: &str) -> AbsolutePath {
    AbsolutePath::parse(path).unwrap()
}

fn context() -> Context {
    Context {
        workspace: absolute("/home/u/project"),
        home: absolute("/home/u"),
    }
}

fn layer_named(kind: LayerKind, name: &str, source: &str) -> LayerPolicy {
    let source = format!("version = 1\n{source}");
    let document = parse(source.as_bytes(), &Layer::new(kind, name)).unwrap();
    validate(&document, &context()).unwrap()
}

fn layer(kind: LayerKind, source: &str) -> LayerPolicy {
    let name = match kind {
        LayerKind::Organisation => "organisation.toml",
        LayerKind::User => "user.toml",
        LayerKind::Project(_) => "stockade.toml",
        LayerKind::CommandLine => "command line",
    };
    layer_named(kind, name, source)
}

fn merged(layers: &[LayerPolicy]) -> Result<Policy, Vec<Problem>> {
    merge::merge(layers, &context())
}

/// What the layers add to or take from the built-in default.
fn check(layers: &[LayerPolicy], expected: Expect) {
    let text = match merged(layers) {
        Ok(policy) => shown(&policy),
        Err(problems) => problems
            .iter()
            .map(|problem| format!("[{}] {problem}\n", problem.id))
            .collect(),
    };
    expected.assert_eq(&text);
}

fn shown(policy: &Policy) -> String {
    let mut lines = Vec::new();
    let mut line = |what: &str, value: String, rule: &Rule| {
        lines.push(format!(
            "{what} {value}  <- {} {} ({})\n",
            rule.origin, rule.id, rule.reason
        ));
    };
    let target = |grant: &PathGrant| match &grant.target {
        GrantTarget::Path(path) => path.to_string(),
        GrantTarget::Set(set) => format!("{set:?}"),
    };
    policy
        .write
        .iter()
        .for_each(|grant| line("write", target(grant), &grant.rule));
    policy
        .read
        .iter()
        .for_each(|grant| line("read", target(grant), &grant.rule));
    policy
        .hide
        .iter()
        .for_each(|hide| line("hide", hide.pattern.clone(), &hide.rule));
    for (number, set) in policy.network.sets.iter().enumerate() {
        for rule in &set.rules {
            let what = if number == 0 { "reach" } else { "at most" };
            line(what, rule.target.to_string(), &rule.rule);
        }
    }
    for (name, rule) in &policy.environment_pass {
        if rule.origin != "built-in" {
            line("pass", name.clone(), rule);
        }
    }
    for (name, value, rule) in &policy.environment_set {
        line("set", format!("{name}={value}"), rule);
    }
    policy
        .weaken
        .iter()
        .for_each(|(guarantee, rule)| line("weaken", guarantee.to_string(), rule));
    policy
        .nested_sandbox
        .iter()
        .for_each(|rule| line("nested", "sandbox".into(), rule));
    let limits = &policy.limits;
    limits
        .memory
        .iter()
        .for_each(|(amount, rule)| line("memory", format!("{amount:?}"), rule));
    limits
        .processes
        .iter()
        .for_each(|(count, rule)| line("processes", count.to_string(), rule));
    limits
        .wall_time_ms
        .iter()
        .for_each(|(time, rule)| line("wall time", time.to_string(), rule));
    limits
        .exact
        .iter()
        .for_each(|rule| line("exact", "limits".into(), rule));
    if policy.form == Form::LandlockOnly {
        lines.push("form landlock-only\n".into());
    }
    lines.concat()
}

#[test]
fn without_layers_the_built_in_default_applies() {
    check(
        &[],
        expect![[r#"
        write /home/u/project  <- built-in filesystem.write[0] (the project)
        read System  <- built-in filesystem.read[0] (what programs need to start)
    "#]],
    );
    let policy = merged(&[]).unwrap();
    assert!(
        policy
            .environment_pass
            .iter()
            .any(|(name, _)| name == "PATH")
    );
    assert_eq!(policy.limits, LimitDemands::default());
}

#[test]
fn granting_layers_replace_the_default_and_are_united() {
    let user = layer(
        LayerKind::User,
        "[filesystem]\nread = ['system', '~/data'] # test data\nhide = ['.env']\n[environment]\nset = {A = '1', B = '1'}",
    );
    let project = layer(
        TRUSTED,
        "[filesystem]\nread = ['toolchains', '~/data/x']\nwrite = ['.', './out', '~/.cache']\n[environment]\nset = {B = '2'}\n[network]\nallow = ['a.example']",
    );
    let command_line = layer(
        LayerKind::CommandLine,
        "weaken = ['PR7']\nprocess.form = 'landlock-only'\nprocess.nested_sandbox = true",
    );
    check(
        &[user, project, command_line],
        expect![[r#"
            write /home/u/project  <- stockade.toml:4 filesystem.write[0] (listed in `filesystem.write`)
            write /home/u/project/out  <- stockade.toml:4 filesystem.write[1] (listed in `filesystem.write`)
            write /home/u/.cache  <- stockade.toml:4 filesystem.write[2] (listed in `filesystem.write`)
            read System  <- user.toml:3 filesystem.read[0] (listed in `filesystem.read`)
            read /home/u/data  <- user.toml:3 filesystem.read[1] (test data)
            read Toolchains  <- stockade.toml:3 filesystem.read[0] (listed in `filesystem.read`)
            read /home/u/data/x  <- stockade.toml:3 filesystem.read[1] (listed in `filesystem.read`)
            hide .env  <- user.toml:4 filesystem.hide[0] (listed in `filesystem.hide`)
            reach a.example  <- stockade.toml:8 network.allow[0] (listed in `network.allow`)
            set A=1  <- user.toml:6 environment.set.A (listed in `environment.set`)
            set B=2  <- stockade.toml:6 environment.set.B (listed in `environment.set`)
            weaken PR7  <- command line:2 weaken[0] (listed in `weaken`)
            nested sandbox  <- command line:4 process.nested_sandbox (listed in `process.nested_sandbox`)
            form landlock-only
        "#]],
    );
}

#[test]
fn the_command_line_adds_to_what_applies_without_it() {
    let also = layer(
        LayerKind::CommandLine,
        "[filesystem]\nread = [\"/data\"]\n[environment]\npass = [\"FOO\"]",
    );
    check(
        std::slice::from_ref(&also),
        expect![[r#"
        write /home/u/project  <- built-in filesystem.write[0] (the project)
        read System  <- built-in filesystem.read[0] (what programs need to start)
        read /data  <- command line:3 filesystem.read[0] (listed in `filesystem.read`)
        pass FOO  <- command line:5 environment.pass[0] (listed in `environment.pass`)
    "#]],
    );
    let policy = merged(std::slice::from_ref(&also)).unwrap();
    let passes = |wanted: &str| {
        policy
            .environment_pass
            .iter()
            .any(|(name, _)| name == wanted)
    };
    assert!(passes("FOO") && passes("LANG"));
    let preset = layer_named(LayerKind::CommandLine, "preset", "preset = \"read-only\"");
    check(
        &[preset, also.clone()],
        expect![[r#"
        read /data  <- command line:3 filesystem.read[0] (listed in `filesystem.read`)
        read System  <- preset:2 filesystem.read[0] (preset "read-only": read the project, write nothing but private directories)
        read /home/u/project  <- preset:2 filesystem.read[1] (preset "read-only": read the project, write nothing but private directories)
        pass FOO  <- command line:5 environment.pass[0] (listed in `environment.pass`)
    "#]],
    );
    let user = layer(LayerKind::User, "[filesystem]\nread = [\"/opt/x\"]");
    check(
        &[user, also],
        expect![[r#"
        write /home/u/project  <- built-in filesystem.write[0] (the project)
        read /opt/x  <- user.toml:3 filesystem.read[0] (listed in `filesystem.read`)
        read /data  <- command line:3 filesystem.read[0] (listed in `filesystem.read`)
        pass FOO  <- command line:5 environment.pass[0] (listed in `environment.pass`)
    "#]],
    );
}

#[test]
fn the_organisation_is_a_ceiling_and_grants_nothing() {
    let organisation = layer(
        LayerKind::Organisation,
        "weaken = []\n[filesystem]\nread = ['/usr', '~/data/public', '/srv']\nwrite = ['/home/u/project', '/srv']\n[network]\nallow = ['**.example']\n[environment]\npass = ['PATH', 'API_*']\nset = {A = 'fixed'}\n[process]\nnested_sandbox = false\nform = 'namespaces'",
    );
    let user = layer(
        LayerKind::User,
        "weaken = ['PR7']\n[filesystem]\nread = ['system', '~/data']\nwrite = ['.', '~/.cache']\n[network]\nallow = ['a.example', 'b.test']\n[environment]\npass = ['API_URL', 'TERM']\nset = {A = '1'}\n[process]\nnested_sandbox = true\nform = 'landlock-only'",
    );
    check(
        &[user, organisation.clone()],
        expect![[r#"
            write /home/u/project  <- user.toml:5 filesystem.write[0] (listed in `filesystem.write`)
            read /usr  <- user.toml:4, narrowed by organisation.toml:4 filesystem.read[0] (listed in `filesystem.read`)
            read /home/u/data/public  <- user.toml:4, narrowed by organisation.toml:4 filesystem.read[1] (listed in `filesystem.read`)
            reach a.example  <- user.toml:7 network.allow[0] (listed in `network.allow`)
            reach b.test  <- user.toml:7 network.allow[1] (listed in `network.allow`)
            at most **.example  <- organisation.toml:7 network.allow[0] (listed in `network.allow`)
            pass API_URL  <- user.toml:9 environment.pass[0] (listed in `environment.pass`)
            set A=fixed  <- organisation.toml:10 environment.set.A (listed in `environment.set`)
        "#]],
    );
    check(
        &[organisation],
        expect![[r#"
            write /home/u/project  <- built-in filesystem.write[0] (the project)
            read /usr  <- built-in, narrowed by organisation.toml:4 filesystem.read[0] (what programs need to start)
            at most **.example  <- organisation.toml:7 network.allow[0] (listed in `network.allow`)
            set A=fixed  <- organisation.toml:10 environment.set.A (listed in `environment.set`)
        "#]],
    );
}

#[test]
fn an_untrusted_project_may_take_away() {
    let project = layer(
        UNTRUSTED,
        "[filesystem]\nwrite = []\nread = ['/usr', '.']\nhide = ['**/.env']\n[environment]\npass = ['PATH']\n[limits]\nmemory = '1GiB'\nprocesses = 64\nwall_time = '1m'\nexact = true",
    );
    check(
        &[project],
        expect![[r#"
        read /home/u/project  <- built-in filesystem.write[0] (the project)
        read /usr  <- built-in, narrowed by stockade.toml:4 filesystem.read[0] (what programs need to start)
        hide **/.env  <- stockade.toml:5 filesystem.hide[0] (listed in `filesystem.hide`)
        memory Least { bytes: 1073741824, percent: 80 }  <- stockade.toml:9 limits.memory (listed in `limits.memory`)
        processes 64  <- stockade.toml:10 limits.processes (listed in `limits.processes`)
        wall time 60000  <- stockade.toml:11 limits.wall_time (listed in `limits.wall_time`)
        exact limits  <- stockade.toml:12 limits.exact (listed in `limits.exact`)
    "#]],
    );
    check(
        &[layer(UNTRUSTED, "[filesystem]\nwrite = ['./out']")],
        expect![[r#"
            write /home/u/project/out  <- built-in, narrowed by stockade.toml:3 filesystem.write[0] (the project)
            read /home/u/project  <- built-in filesystem.write[0] (the project)
            read System  <- built-in filesystem.read[0] (what programs need to start)
        "#]],
    );
}

#[test]
fn an_untrusted_project_that_widens_is_refused_in_every_point_with_the_remedy() {
    let project = layer(
        UNTRUSTED,
        "preset = 'build'\nweaken = ['PR7']\n[filesystem]\nwrite = ['.', '~/.cache']\n[network]\nallow = ['a.example']\n[environment]\npass = ['PATH', 'AWS_*']\nset = {A = '1'}\n[process]\nnested_sandbox = true\nform = 'landlock-only'\n[limits]\nmemory = '90%'\nprocesses = 100000\nopen_files = 100000\ndisk = '1TiB'\n",
    );
    check(
        std::slice::from_ref(&project),
        expect![[r#"
        [untrusted-grant] stockade.toml:2: this file wants to read the set "toolchains", but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:3: this file wants to weaken the guarantee PR7, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:5: this file wants to write /home/u/.cache, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:7: this file wants to reach a.example, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:9: this file wants to pass the variable AWS_*, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:10: this file wants to set the variable A, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:12: this file wants to nest sandboxes, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:13: this file wants to take the weaker form of the wall, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:15: this file wants to raise the limit `memory`, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:16: this file wants to raise the limit `processes`, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:17: this file wants to raise the limit `open_files`, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:18: this file wants to raise the limit `disk`, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
    "#]],
    );
    let user = layer(
        LayerKind::User,
        "[limits]\nwall_time = '1m'\nmemory = '1GiB'",
    );
    let project = layer(UNTRUSTED, "[limits]\nwall_time = '2m'\nmemory = '2GiB'");
    check(
        &[user, project],
        expect![[r#"
        [untrusted-grant] stockade.toml:3: this file wants to raise the limit `wall_time`, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        [untrusted-grant] stockade.toml:4: this file wants to raise the limit `memory`, but it is not trusted
          help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
    "#]],
    );
}

#[test]
fn an_untrusted_project_may_repeat_what_the_user_grants() {
    let user = layer(
        LayerKind::User,
        "preset = 'build'\nnetwork.allow = ['**.example']\nenvironment.set = {A = '1'}\nprocess.nested_sandbox = true",
    );
    let project = layer(
        UNTRUSTED,
        "preset = 'build'\nnetwork.allow = ['a.example']\nenvironment.set = {A = '1'}\nprocess.nested_sandbox = true",
    );
    check(
        &[user, project],
        expect![[r#"
            write /home/u/project  <- user.toml:2 filesystem.write[0] (preset "build": the default, and the toolchains installed for you)
            read System  <- user.toml:2 filesystem.read[0] (preset "build": the default, and the toolchains installed for you)
            read Toolchains  <- user.toml:2 filesystem.read[1] (preset "build": the default, and the toolchains installed for you)
            reach **.example  <- user.toml:3 network.allow[0] (listed in `network.allow`)
            at most a.example  <- stockade.toml:3 network.allow[0] (listed in `network.allow`)
            set A=1  <- user.toml:4 environment.set.A (listed in `environment.set`)
            nested sandbox  <- user.toml:5 process.nested_sandbox (listed in `process.nested_sandbox`)
        "#]],
    );
}

#[test]
fn the_smallest_limit_wins_and_shares_are_kept_beside_bytes() {
    let user = layer(
        LayerKind::User,
        "[limits]\nmemory = '4GiB'\nprocesses = 100\nwall_time = '1h'",
    );
    let organisation = layer(
        LayerKind::Organisation,
        "[limits]\nmemory = '50%'\nprocesses = 200\nwall_time = '10m'",
    );
    let command_line = layer(
        LayerKind::CommandLine,
        "[limits]\nmemory = '8GiB'\nprocesses = 50",
    );
    check(
        &[command_line, user, organisation],
        expect![[r#"
        write /home/u/project  <- built-in filesystem.write[0] (the project)
        read System  <- built-in filesystem.read[0] (what programs need to start)
        memory Least { bytes: 4294967296, percent: 50 }  <- user.toml:3 and organisation.toml:3 limits.memory (listed in `limits.memory`)
        processes 50  <- command line:4 limits.processes (listed in `limits.processes`)
        wall time 600000  <- organisation.toml:5 limits.wall_time (listed in `limits.wall_time`)
    "#]],
    );
    check(
        &[layer(
            LayerKind::Organisation,
            "[limits]\nprocesses = 1000000\nmemory = '90%'",
        )],
        expect![[r#"
            write /home/u/project  <- built-in filesystem.write[0] (the project)
            read System  <- built-in filesystem.read[0] (what programs need to start)
            memory PercentOfMachine(80)  <- organisation.toml:4 limits.memory (listed in `limits.memory`)
        "#]],
    );
}

#[test]
fn switches_are_off_when_anyone_says_so() {
    let user = layer(
        LayerKind::User,
        "process.nested_sandbox = true\nprocess.form = 'landlock-only'",
    );
    let project = layer(
        UNTRUSTED,
        "process.nested_sandbox = false\nprocess.form = 'namespaces'",
    );
    let policy = merged(&[user, project]).unwrap();
    assert_eq!(
        (policy.nested_sandbox, policy.form),
        (None, Form::Namespaces)
    );
}

#[test]
fn a_preset_fills_in_what_the_file_does_not_say() {
    check(
        &[layer(
            LayerKind::User,
            "preset = 'ci'\nlimits.wall_time = '5m'",
        )],
        expect![[r#"
            write /home/u/project  <- user.toml:2 filesystem.write[0] (preset "ci": a build without your personal variables and with an end)
            read System  <- user.toml:2 filesystem.read[0] (preset "ci": a build without your personal variables and with an end)
            read Toolchains  <- user.toml:2 filesystem.read[1] (preset "ci": a build without your personal variables and with an end)
            pass PATH  <- user.toml:2 environment.pass[0] (preset "ci": a build without your personal variables and with an end)
            pass HOME  <- user.toml:2 environment.pass[1] (preset "ci": a build without your personal variables and with an end)
            pass LANG  <- user.toml:2 environment.pass[2] (preset "ci": a build without your personal variables and with an end)
            pass LC_*  <- user.toml:2 environment.pass[3] (preset "ci": a build without your personal variables and with an end)
            pass TZ  <- user.toml:2 environment.pass[4] (preset "ci": a build without your personal variables and with an end)
            pass CI  <- user.toml:2 environment.pass[5] (preset "ci": a build without your personal variables and with an end)
            memory PercentOfMachine(80)  <- user.toml:2 limits.memory (preset "ci": a build without your personal variables and with an end)
            wall time 300000  <- user.toml:3 limits.wall_time (listed in `limits.wall_time`)
        "#]],
    );
    check(
        &[layer(LayerKind::User, "preset = 'read-only'")],
        expect![[r#"
            read System  <- user.toml:2 filesystem.read[0] (preset "read-only": read the project, write nothing but private directories)
            read /home/u/project  <- user.toml:2 filesystem.read[1] (preset "read-only": read the project, write nothing but private directories)
        "#]],
    );
}

#[test]
fn a_layer_given_twice_is_refused() {
    let user = layer(LayerKind::User, "");
    check(
        &[user.clone(), user],
        expect![[r#"
        [layer-twice] user.toml: this layer is given twice
    "#]],
    );
}

const PATHS: &[&str] = &[
    ".",
    "./src",
    "./src/deep",
    "~",
    "~/data",
    "~/.cargo/bin",
    "/",
    "/usr",
    "/usr/lib",
    "/etc",
    "/srv",
    "/home",
];

fn list(items: &'static [&'static str]) -> impl Strategy<Value = Option<Vec<&'static str>>> {
    prop::option::of(prop::collection::vec(prop::sample::select(items), 0..4))
}

fn toml_list(key: &str, items: &Option<Vec<&str>>) -> String {
    items
        .as_ref()
        .map_or(String::new(), |items| format!("{key} = {items:?}\n"))
}

fn source() -> impl Strategy<Value = String> {
    const READ: &[&str] = &[
        "system",
        "toolchains",
        ".",
        "./src",
        "~",
        "~/data",
        "~/.cargo/bin",
        "/",
        "/usr/lib",
        "/etc",
        "/srv",
    ];
    const WRITE: &[&str] = &[".", "./src", "./src/deep", "~/data", "/srv", "/srv/x"];
    const HOSTS: &[&str] = &[
        "a.example",
        "b.a.example",
        "*.example",
        "**.example",
        "a.example:443",
        "**.a.example",
    ];
    const PASS: &[&str] = &["PATH", "LC_*", "LC_ALL", "L*", "API_KEY"];
    const GUARANTEES: &[&str] = &["PR7", "FS6"];
    const MEMORY: &[&str] = &["1GiB", "4GiB", "20%", "90%"];
    let lists = (
        list(WRITE),
        list(READ),
        list(HOSTS),
        list(PASS),
        list(GUARANTEES),
    );
    let rest = (
        prop::option::of(prop::sample::select(MEMORY)),
        prop::option::of(1_u64..10_000),
        prop::option::of(any::<bool>()),
        prop::option::of(prop::sample::select(&["namespaces", "landlock-only"][..])),
    );
    (lists, rest).prop_map(
        |((write, read, hosts, pass, weaken), (memory, processes, nested, form))| {
            [
                toml_list("weaken", &weaken),
                toml_list("filesystem.write", &write),
                toml_list("filesystem.read", &read),
                toml_list("network.allow", &hosts),
                toml_list("environment.pass", &pass),
                memory.map_or(String::new(), |amount| {
                    format!("limits.memory = '{amount}'\n")
                }),
                processes.map_or(String::new(), |count| {
                    format!("limits.processes = {count}\n")
                }),
                nested.map_or(String::new(), |nested| {
                    format!("process.nested_sandbox = {nested}\n")
                }),
                form.map_or(String::new(), |form| format!("process.form = '{form}'\n")),
            ]
            .concat()
        },
    )
}

fn layers() -> impl Strategy<Value = Vec<LayerPolicy>> {
    let kinds = [
        LayerKind::User,
        TRUSTED,
        LayerKind::CommandLine,
        LayerKind::Organisation,
        LayerKind::User,
    ];
    prop::collection::vec(prop::option::of(source()), kinds.len()).prop_map(move |sources| {
        let named = sources.into_iter().zip(kinds).enumerate();
        named
            .filter_map(|(index, (source, kind))| {
                Some(layer_named(kind, &format!("{index}.toml"), &source?))
            })
            .collect()
    })
}

/// Whether the policy allows the access, were every candidate of a set there.
fn allows(policy: &Policy, path: &AbsolutePath, access: Access) -> bool {
    let environment = [(b"RUSTUP_HOME".to_vec(), b"/srv/rust".to_vec())].into();
    let grants = match access {
        Access::Write => policy.write.iter().chain(&[]),
        Access::Read => policy.write.iter().chain(&policy.read),
    };
    grants.into_iter().any(|grant| match &grant.target {
        GrantTarget::Path(granted) => path.is_within(granted),
        GrantTarget::Set(set) => sets::candidates(*set, &context().home, &environment)
            .iter()
            .any(|candidate| path.is_within(&candidate.path)),
    })
}

fn memory_bytes(policy: &Policy, machine: u64) -> u64 {
    let share = |percent: u8| machine / 100 * u64::from(percent);
    match policy.limits.memory {
        None => share(limit_defaults::MEMORY_PERCENT),
        Some((Amount::Bytes(bytes), _)) => bytes.min(machine),
        Some((Amount::PercentOfMachine(percent), _)) => share(percent),
        Some((Amount::Least { bytes, percent }, _)) => bytes.min(share(percent)),
    }
}

fn matches(pattern: &str, text: &str, star: &str) -> bool {
    match pattern.strip_suffix(star) {
        Some(prefix) => text.starts_with(prefix),
        None => pattern == text,
    }
}

/// Whether a host and port are reached under the policy.
fn reaches(policy: &Policy, host: &str) -> bool {
    let (name, port) = host.split_once(':').unwrap_or((host, "443"));
    let plan = NetworkPlan {
        sets: policy.network.sets.clone(),
        ..NetworkPlan::nothing()
    };
    let destination = Destination::new(RawHost::Text(name.as_bytes()), port.parse().unwrap());
    let ruling = Judge::new(plan)
        .unwrap()
        .connection(&destination.unwrap(), 0);
    ruling.or_denied().is_ok()
}

/// Everything that `narrow` allows, `wide` allows.
fn assert_narrower(narrow: &Policy, wide: &Policy) -> Result<(), TestCaseError> {
    let home = &context();
    for path in PATHS {
        let path = match path.strip_prefix('~') {
            Some(rest) => home.home.join(rest).unwrap(),
            None if path.starts_with('/') => absolute(path),
            None => home.workspace.join(path).unwrap(),
        };
        for access in [Access::Read, Access::Write] {
            prop_assert!(
                !allows(narrow, &path, access) || allows(wide, &path, access),
                "{path} {access:?}"
            );
        }
    }
    for path in [
        "/srv/rust/bin",
        "/srv/x",
        "/root",
        "/home/u/.rustup/x",
        "/opt/x",
    ] {
        let path = absolute(path);
        prop_assert!(
            !allows(narrow, &path, Access::Read) || allows(wide, &path, Access::Read),
            "{path}"
        );
    }
    for host in [
        "a.example",
        "b.a.example",
        "c.b.a.example",
        "a.example:443",
        "a.example:22",
        "z.example",
        "example",
    ] {
        prop_assert!(!reaches(narrow, host) || reaches(wide, host), "{host}");
    }
    for name in ["PATH", "LC_ALL", "LC_TIME", "LANG", "API_KEY", "L", "TERM"] {
        let passes = |policy: &Policy| {
            policy
                .environment_pass
                .iter()
                .any(|(pattern, _)| matches(pattern, name, "*"))
        };
        prop_assert!(!passes(narrow) || passes(wide), "{name}");
    }
    for (guarantee, _) in &narrow.weaken {
        prop_assert!(wide.weaken.iter().any(|(other, _)| other == guarantee));
    }
    prop_assert!(narrow.nested_sandbox.is_none() || wide.nested_sandbox.is_some());
    prop_assert!(narrow.form == Form::Namespaces || wide.form == Form::LandlockOnly);
    for machine in [1 << 30, 16 << 30, 256 << 30] {
        prop_assert!(memory_bytes(narrow, machine) <= memory_bytes(wide, machine));
    }
    let processes = |policy: &Policy| {
        policy
            .limits
            .processes
            .as_ref()
            .map_or(limit_defaults::PROCESSES, |(count, _)| *count)
    };
    prop_assert!(processes(narrow) <= processes(wide));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn an_organisation_never_widens_and_never_makes_a_merge_fail(mut layers in layers(), source in source()) {
        let wide = merged(&layers).unwrap();
        layers.push(layer(LayerKind::Organisation, &source));
        assert_narrower(&merged(&layers).unwrap(), &wide)?;
    }

    #[test]
    fn an_untrusted_project_never_widens(mut layers in layers(), source in source()) {
        let wide = merged(&layers).unwrap();
        layers.push(layer(UNTRUSTED, &source));
        match merged(&layers) {
            Ok(narrow) => assert_narrower(&narrow, &wide)?,
            Err(problems) => {
                for problem in problems {
                    prop_assert_eq!(problem.id, "untrusted-grant");
                    prop_assert_eq!(problem.layer.kind, UNTRUSTED);
                    prop_assert!(problem.span.is_some());
                }
            }
        }
    }

    #[test]
    fn the_order_of_the_layers_does_not_matter(layers in layers(), seed in any::<u64>()) {
        let mut shuffled = layers.clone();
        shuffled.sort_by_key(|layer| {
            let text = format!("{layer:?}");
            text.bytes().fold(seed, |hash, byte| hash.rotate_left(5) ^ u64::from(byte))
        });
        prop_assert_eq!(merged(&layers).unwrap(), merged(&shuffled).unwrap());
    }

    #[test]
    fn nothing_that_no_layer_and_no_default_grants_is_allowed(layers in layers()) {
        let policy = merged(&layers).unwrap();
        if !layers.iter().any(|layer| format!("{layer:?}").contains("\"/\"")) {
            prop_assert!(!allows(&policy, &absolute("/root/.ssh"), Access::Read));
        }
        prop_assert!(!allows(&policy, &absolute("/etc"), Access::Write));
    }
}

/// No file takes a stronger wall away, and no file lets another one stand where
/// somebody wants exactly this one.
#[test]
fn of_all_walls_that_are_named_the_strongest_counts_and_then_the_exact_one() {
    use Wall::{Container, Gvisor, Microvm, Process};
    let candidates = |user: &str, project: &str| {
        let said = |wall: &str| format!("wall = '{wall}'");
        let policy = merged(&[
            layer(LayerKind::User, &said(user)),
            layer(UNTRUSTED, &said(project)),
        ]);
        let demand = policy.unwrap().wall_demand;
        demand.candidates().collect::<Vec<_>>()
    };
    assert_eq!(
        candidates("at-least:process", "at-least:container"),
        [Container, Gvisor, Microvm]
    );
    assert_eq!(candidates("at-least:gvisor", "process"), [Gvisor, Microvm]);
    assert_eq!(candidates("at-least:process", "gvisor"), [Gvisor]);
    assert_eq!(candidates("at-least:process", "process"), [Process]);
    assert_eq!(candidates("container", "at-least:container"), [Container]);
    assert_eq!(candidates("seatbelt", "at-least:microvm"), [Microvm]);
}
