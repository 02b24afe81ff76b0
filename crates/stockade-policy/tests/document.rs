//! Policy files as written: what is accepted, and every kind of problem with
//! its place and its remedy.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use stockade_policy::document::{SOURCE_BYTES_MAX, Setting, from_settings, parse};
use stockade_policy::path::AbsolutePath;
use stockade_policy::problem::{Layer, LayerKind, PROBLEMS_MAX, Problem};
use stockade_policy::validate::{Context, validate};

fn layer() -> Layer {
    Layer::new(LayerKind::User, "user.toml")
}

fn context() -> Context {
    Context {
        workspace: AbsolutePath::parse("/home/u/project").unwrap(),
        home: AbsolutePath::parse("/home/u").unwrap(),
    }
}

/// Each problem with its id and the text that its span covers.
fn shown(source: &[u8], problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        let covered = problem.span.clone().and_then(|span| source.get(span));
        let covered = covered.map_or("-".into(), String::from_utf8_lossy);
        text.push_str(&format!("[{}] {covered:?}\n{problem}\n", problem.id));
    }
    text
}

fn check(source: &str, expected: Expect) {
    let result =
        parse(source.as_bytes(), &layer()).and_then(|document| validate(&document, &context()));
    let problems = result.err().unwrap_or_default();
    expected.assert_eq(&shown(source.as_bytes(), &problems));
}

#[test]
fn a_full_document_has_no_problem() {
    check(
        r#"
        version = 1
        preset = "build"
        wall = "at-least:process"
        weaken = ["PR7"]
        [filesystem]
        workspace = "live"
        write = [".", "~/.cache/x", "/srv/data"]
        read = ["system", "toolchains", "~", "./toolchains", "docs"]
        hide = ["**/.env"]
        [network]
        allow = ["docs.example.com", "*.cdn.example.com:443", "**.example.org"]
        [environment]
        pass = ["PATH", "LC_*"]
        set = { CI = "1", EMPTY = "" }
        [process]
        nested_sandbox = true
        form = "landlock-only"
        [limits]
        memory = "50%"
        processes = 512
        cpus = 1.5
        cpu_time = "30s"
        wall_time = "10m"
        open_files = 0x400
        file_size = "1GiB"
        disk = "5GiB"
        exact = true
        "#,
        expect![""],
    );
}

#[test]
fn unknown_keys_are_all_found_and_the_likely_one_is_named() {
    check(
        "version = 1\nfilesytem = 1\nwrite = ['.']\nbanana = 1\n[filesystem]\nraed = []\npreset = 'build'\n[limits]\nwalltime = '1m'\nxyzzy = 1\n",
        expect![[r#"
            [unknown-key] "filesytem"
            user.toml:2: unknown key "filesytem"
              help: did you mean `filesystem`?
            [unknown-key] "write"
            user.toml:3: unknown key "write"
              help: `write` belongs to `[filesystem]`
            [unknown-key] "banana"
            user.toml:4: unknown key "banana"
              help: the keys here are: version, preset, wall, weaken, socket, credential, filesystem, network, approval, environment, process, container, microvm, limits
            [unknown-key] "raed"
            user.toml:6: unknown key "filesystem.raed"
              help: did you mean `read`?
            [unknown-key] "preset"
            user.toml:7: unknown key "filesystem.preset"
              help: `preset` stands at the top, before any table
            [unknown-key] "walltime"
            user.toml:9: unknown key "limits.walltime"
              help: did you mean `wall_time`?
            [unknown-key] "xyzzy"
            user.toml:10: unknown key "limits.xyzzy"
              help: the keys here are: memory, processes, cpus, cpu_time, wall_time, open_files, file_size, disk, exact
        "#]],
    );
}

#[test]
fn a_wall_that_only_macos_has_is_compared_with_no_other() {
    check(
        "version = 1\nwall = 'at-least:seatbelt'\n[filesystem]\nworkspace = 'dead'\n",
        expect![[r#"
            [unknown-word] "'at-least:seatbelt'"
            user.toml:2: no other wall is compared with "seatbelt", which only macOS has
              help: write "seatbelt" alone
            [unknown-word] "'dead'"
            user.toml:4: "dead" is no way to treat the workspace
              help: write "live", "review" or "discard"
        "#]],
    );
}

#[test]
fn wrong_types_are_all_found() {
    check(
        r#"version = 1
wall = 1
preset = ["build"]
filesystem = "x"
[[network]]
[environment]
pass = "PATH"
set = ["A=1"]
[process]
nested_sandbox = "yes"
[limits]
memory = 5
processes = 1.5
cpus = "2"
open_files = -1
exact = 1
"#,
        expect![[r#"
            [wrong-type] "1"
            user.toml:2: `wall` must be a string
              help: for example `wall = "process"`
            [wrong-type] "[\"build\"]"
            user.toml:3: `preset` must be a string
              help: for example `preset = "build"`
            [wrong-type] "filesystem"
            user.toml:4: `filesystem` must be one table
              help: write `[filesystem]` once, with its keys below it
            [wrong-type] "network"
            user.toml:5: `network` must be one table
              help: write `[network]` once, with its keys below it
            [wrong-type] "\"PATH\""
            user.toml:7: `environment.pass` must be a list of strings
              help: for example `pass = ["PATH", "HOME", "TERM", "LANG", "LC_*"]`
            [wrong-type] "[\"A=1\"]"
            user.toml:8: `environment.set` must be a table of strings
              help: for example `set = { CI = "1" }`
            [wrong-type] "\"yes\""
            user.toml:10: `process.nested_sandbox` must be true or false
              help: for example `nested_sandbox = true`
            [wrong-type] "5"
            user.toml:12: `limits.memory` must be a string
              help: for example `memory = "2GiB"`
            [wrong-type] "1.5"
            user.toml:13: `limits.processes` must be a whole number from 1 up
              help: for example `processes = 512`
            [wrong-type] "\"2\""
            user.toml:14: `limits.cpus` must be a number from 0.01 to 10000
              help: for example `cpus = 1.5`
            [wrong-type] "-1"
            user.toml:15: `limits.open_files` must be a whole number from 1 up
              help: for example `open_files = 1024`
            [wrong-type] "1"
            user.toml:16: `limits.exact` must be true or false
              help: for example `exact = true`
        "#]],
    );
    check(
        "version = 1\nfilesystem.read = ['system', 1, []]\nenvironment.set = {A = 1}\n",
        expect![[r#"
        [wrong-type] "1"
        user.toml:2: `filesystem.read` must be a list of strings
          help: for example `read = ["system", "toolchains", "~/data"]`
        [wrong-type] "[]"
        user.toml:2: `filesystem.read` must be a list of strings
          help: for example `read = ["system", "toolchains", "~/data"]`
        [wrong-type] "1"
        user.toml:3: `environment.set` must be a table of strings
          help: for example `set = { CI = "1" }`
    "#]],
    );
}

#[test]
fn bad_words_and_paths_are_all_found() {
    check(
        r#"version = 1
wall = "brick"
preset = "bild"
weaken = ["PR9", "pr7"]
[filesystem]
workspace = "dead"
write = ["../x", "a/../b", "", "~root/x", "system", "/"]
read = ["toolchain", "/a/../b"]
hide = ["!x", "[", "~/x"]
"#,
        expect![[r#"
            [unknown-word] "\"brick\""
            user.toml:2: no wall is called "brick"
              help: write "process", "container", "gvisor" or "microvm", or "at-least:" before it
            [unknown-preset] "\"bild\""
            user.toml:3: no preset is called "bild"
              help: did you mean "build"?
            [unknown-guarantee] "\"PR9\""
            user.toml:4: no guarantee is called "PR9"
              help: did you mean "PR1"?
            [unknown-guarantee] "\"pr7\""
            user.toml:4: no guarantee is called "pr7"
              help: did you mean "PR7"?
            [unknown-word] "\"dead\""
            user.toml:6: "dead" is no way to treat the workspace
              help: write "live", "review" or "discard"
            [path-leaves-project] "\"../x\""
            user.toml:7: "../x" leaves the project
              help: write the absolute path, or one that starts with "~/"
            [bad-path] "\"a/../b\""
            user.toml:7: "a/../b" contains `..`, whose meaning depends on links
              help: write the path without `..`
            [bad-path] "\"\""
            user.toml:7: the path is empty
              help: write "." for the project, "~" for the home, or a path
            [bad-path] "\"~root/x\""
            user.toml:7: "~root/x" names another user's home
              help: write "~/…" for your own home, or the absolute path
            [set-not-writable] "\"system\""
            user.toml:7: the set "system" can only be read
              help: for a directory of the project write "./system"
            [unknown-set] "\"toolchain\""
            user.toml:8: no set is called "toolchain"
              help: did you mean "toolchains"? For a directory of the project write "./toolchain"
            [bad-path] "\"/a/../b\""
            user.toml:8: "/a/../b" contains `..`, whose meaning depends on links
              help: write the path without `..`
            [bad-pattern] "\"!x\""
            user.toml:9: "!x": a pattern cannot show again what another hides
              help: name what is to be hidden more exactly
            [bad-pattern] "\"[\""
            user.toml:9: "[": unclosed character class; missing ']'
            [bad-pattern] "\"~/x\""
            user.toml:9: "~/x": patterns are relative to the project
              help: what is not granted is absent anyway; only paths below the project need hiding
        "#]],
    );
}

#[test]
fn bad_hosts_and_variables_are_all_found() {
    check(
        r#"version = 1
[network]
allow = ["https://a.example/x", "10.0.0.1", "::1", "*", "a.*.b", "localhost", "a.b:0", "a_b.c"]
[environment]
pass = ["*", "A-B"]
set = { "A B" = "1", OK = "a\u0000b" }
"#,
        expect![[r#"
            [bad-host] "\"https://a.example/x\""
            user.toml:3: "https://a.example/x": this is an address of a page, not a host
              help: write only the host, for example "docs.example.com"
            [bad-host] "\"10.0.0.1\""
            user.toml:3: "10.0.0.1": an IP address is allowed by a rule of its own
              help: write a [[network.rule]] with `cidr = "…"`
            [bad-host] "\"::1\""
            user.toml:3: "::1": an IP address is allowed by a rule of its own
              help: write a [[network.rule]] with `cidr = "…"`
            [bad-host] "\"*\""
            user.toml:3: "*": a star can only be the first label
              help: write "*.example.com" for one label, "**.example.com" for any number
            [bad-host] "\"a.*.b\""
            user.toml:3: "a.*.b": a star can only be the first label
              help: write "*.example.com" for one label, "**.example.com" for any number
            [bad-host] "\"localhost\""
            user.toml:3: "localhost": the host's loopback is never reachable
              help: the sandbox has a loopback of its own, which needs no rule; `host_ports` offers ports of the host
            [bad-host] "\"a.b:0\""
            user.toml:3: "a.b:0": the port is not a number from 1 to 65535
            [bad-host] "\"a_b.c\""
            user.toml:3: "a_b.c": a label is not a host name
              help: host names have letters, digits, dots and inner hyphens
            [bad-variable] "\"*\""
            user.toml:5: the whole environment cannot be passed
              help: list the names, or prefixes such as "NPM_CONFIG_*"
            [bad-variable] "\"A-B\""
            user.toml:5: "A-B" is not the name of a variable
              help: names have letters, digits and `_`, and do not start with a digit
            [bad-variable] "\"A B\""
            user.toml:6: "A B" is not the name of a variable
              help: names have letters, digits and `_`, and do not start with a digit
            [bad-variable] "OK"
            user.toml:6: the value contains a NUL byte, which no variable can hold
        "#]],
    );
}

#[test]
fn bad_limits_are_all_found() {
    check(
        r#"version = 1
[process]
form = "landlock"
[limits]
memory = "2 gigabytes"
cpu_time = "soon"
wall_time = "0s"
disk = "50%"
processes = 0
cpus = 0
"#,
        expect![[r#"
            [unknown-word] "\"landlock\""
            user.toml:3: no form is called "landlock"
              help: write "namespaces" or "landlock-only"
            [bad-size] "\"2 gigabytes\""
            user.toml:5: "2 gigabytes" is not a size
              help: write a number and a unit, for example "512MiB" or "2GiB"
            [bad-duration] "\"soon\""
            user.toml:6: "soon" is not a duration
              help: write a number and a unit, for example "30s", "10m" or "1h 30m"
            [bad-duration] "\"0s\""
            user.toml:7: "0s" is not a duration
              help: write a number and a unit, for example "30s", "10m" or "1h 30m"
            [bad-size] "\"50%\""
            user.toml:8: "50%" is not a size
              help: write a number and a unit, for example "512MiB" or "2GiB"
            [wrong-type] "0"
            user.toml:9: `limits.processes` must be a whole number from 1 up
              help: for example `processes = 512`
            [wrong-type] "0"
            user.toml:10: `limits.cpus` must be a number from 0.01 to 10000
              help: for example `cpus = 1.5`
        "#]],
    );
}

#[test]
fn a_bad_version_is_the_only_problem_that_is_told() {
    check(
        "version = 2\nnew_key = 1\n",
        expect![[r#"
        [bad-version] "2"
        user.toml:1: this version of Stockade reads only policies with `version = 1`
          help: write `version = 1`, or use the Stockade that the file was written for
    "#]],
    );
    check(
        "version = '1'\n",
        expect![[r#"
        [bad-version] "'1'"
        user.toml:1: this version of Stockade reads only policies with `version = 1`
          help: write `version = 1`, or use the Stockade that the file was written for
    "#]],
    );
    check(
        "[filesystem]\nraed = []\n",
        expect![[r#"
        [no-version] ""
        user.toml:1: the file does not say its version
          help: start it with `version = 1`
        [unknown-key] "raed"
        user.toml:2: unknown key "filesystem.raed"
          help: did you mean `read`?
    "#]],
    );
    check(
        "",
        expect![[r#"
        [no-version] ""
        user.toml:1: the file does not say its version
          help: start it with `version = 1`
    "#]],
    );
}

#[test]
fn syntax_errors_are_all_found() {
    check(
        "version = 1\nwrite = \n[limits]\nmemory = '1GiB\n",
        expect![[r#"
        [syntax] ""
        user.toml:2: not valid TOML: string values must be quoted, expected literal string
        [syntax] ""
        user.toml:4: not valid TOML: invalid literal string, expected `'`
    "#]],
    );
    check(
        "version = 1\nversion = 1\n",
        expect![[r#"
        [syntax] "version"
        user.toml:2: not valid TOML: duplicate key
    "#]],
    );
    check(
        "version = 1\n\"a\\u001b\" = 1\n",
        expect![[r#"
            [unknown-key] "\"a\\u001b\""
            user.toml:2: unknown key "a\u{1b}"
              help: the keys here are: version, preset, wall, weaken, socket, credential, filesystem, network, approval, environment, process, container, microvm, limits
        "#]],
    );
}

#[test]
fn a_file_that_is_no_policy_at_all_is_one_clear_problem() {
    let large = vec![b'x'; 10 * SOURCE_BYTES_MAX];
    let problems = parse(&large, &layer()).unwrap_err();
    expect![[r#"
        [too-large] "-"
        user.toml: the file has 10485760 bytes; a policy has at most 1 MiB
          help: is this the right file?
    "#]]
    .assert_eq(&shown(b"", &problems));
    let binary = b"version = 1\n\xff\xfe";
    let problems = parse(binary, &layer()).unwrap_err();
    expect![[r#"
        [not-utf8] "-"
        user.toml:2: the file is not UTF-8 text
          help: a policy is a TOML file in UTF-8
    "#]]
    .assert_eq(&shown(b"", &problems));
}

#[test]
fn the_number_of_problems_is_bounded() {
    let source: String = (0..50_000)
        .map(|number| format!("k{number} = 1\n"))
        .collect();
    let problems = parse(source.as_bytes(), &layer()).unwrap_err();
    assert_eq!(problems.len(), PROBLEMS_MAX);
    let items = vec!["'a'"; 5000].join(",");
    let source = format!("version = 1\nfilesystem.read = [{items}]\n");
    let problems = parse(source.as_bytes(), &layer()).unwrap_err();
    assert_eq!(problems[0].id, "too-many");
}

#[test]
fn depth_is_bounded_also_on_a_small_stack() {
    let deep = |open: &str, close: &str, count| {
        format!(
            "version = 1\na = {}1{}",
            open.repeat(count),
            close.repeat(count)
        )
    };
    let keys = vec!["a"; 79].join(".");
    let mut sources = vec![
        deep("[", "]", 100_000),
        deep("{a=", "}", 100_000),
        deep(&format!("{{{keys}="), "}", 79),
        deep(&format!("[{{{keys}="), "}]", 39),
        format!("{}=1", vec!["a"; 100_000].join(".")),
        format!("[{}]", vec!["a"; 100_000].join(".")),
        "[[a]]\n".repeat(100_000),
    ];
    sources.push(format!(
        "[{keys}]\n{keys} = {}1{}",
        format!("{{{keys}=").repeat(70),
        "}".repeat(70)
    ));
    for source in sources {
        let run = move || assert!(parse(source.as_bytes(), &layer()).is_err());
        std::thread::Builder::new()
            .stack_size(1 << 20)
            .spawn(run)
            .unwrap()
            .join()
            .unwrap();
    }
}

#[test]
fn options_read_like_a_file() {
    let layer = Layer::new(LayerKind::CommandLine, "command line");
    let good = [
        Setting {
            key: "filesystem.read",
            values: &["system", "~/data"],
        },
        Setting {
            key: "limits.memory",
            values: &["2GiB"],
        },
        Setting {
            key: "limits.cpus",
            values: &["1.5"],
        },
        Setting {
            key: "limits.exact",
            values: &["true"],
        },
        Setting {
            key: "environment.set",
            values: &["A=b=c"],
        },
    ];
    let document = from_settings(&good, &layer).unwrap();
    assert_eq!(document.environment_set.unwrap()[0].1, "b=c");
    assert_eq!(document.cpu_percent.unwrap().value, 150);
    let bad = [
        Setting {
            key: "filesystem.raed",
            values: &[],
        },
        Setting {
            key: "limits.memory",
            values: &["1GiB", "2GiB"],
        },
        Setting {
            key: "filesystem.write",
            values: &["../x"],
        },
        Setting {
            key: "limits.cpus",
            values: &["NaN"],
        },
    ];
    let problems = from_settings(&bad, &layer).unwrap_err();
    expect![[r#"
        [unknown-key] "-"
        command line: unknown key "filesystem.raed"
          help: did you mean `read`?
        [wrong-type] "-"
        command line: `limits.memory` must be a string
          help: for example `memory = "2GiB"`
        [path-leaves-project] "-"
        command line: "../x" leaves the project
          help: write the absolute path, or one that starts with "~/"
        [wrong-type] "-"
        command line: `limits.cpus` must be a number from 0.01 to 10000
          help: for example `cpus = 1.5`
    "#]]
    .assert_eq(&shown(b"", &problems));
}

/// Lines that a policy is made of, to reach deeper than random bytes do.
fn fragments() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec![
        "version = 1",
        "[filesystem]",
        "[limits]",
        "[[network.rule]]",
        "host = 'a.example'",
        "ports = [443, '1-2', 70000, 1.5]",
        "query = {a = 1}",
        "[[credential]]",
        "from = {env = 'A', oauth2 = {client_secret = {x = 1}}}",
        "attach = []",
        "expires = 2030-01-01",
        "[[socket]]",
        "write = ['.', '../x', \"\\u0000\"]",
        "read = ['system', '~', 1]",
        "memory = '50%'",
        "cpus = inf",
        "cpus = nan",
        "cpus = 1e400",
        "cpus = 1_0.5",
        "processes = 0xffffffffffffffffffff",
        "wall_time = '99999999999999999999999y'",
        "set = {A = 'b'} # why",
        "filesystem.hide = ['[']",
        "a.b.c = 1979-05-27",
        "weaken = [",
        "'",
        "# é",
        "\r",
        "preset = 'ci'",
    ]);
    prop::collection::vec(line, 0..30).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        drop(parse(&bytes, &layer()));
    }

    #[test]
    fn no_lines_make_the_parser_panic_and_spans_lie_in_the_source(source in fragments()) {
        if let Err(problems) = parse(source.as_bytes(), &layer()) {
            prop_assert!(!problems.is_empty());
            for problem in problems {
                if let Some(span) = problem.span {
                    prop_assert!(source.get(span).is_some());
                }
            }
        }
    }
}

#[test]
fn the_example_of_the_design_is_a_policy() {
    let source = r#"
version = 1
wall = "process"
[filesystem]
workspace = "live"
write = ["."]
read  = ["toolchains"]
hide  = ["**/.env"]
guard = ["defaults", "deploy/**"]
[network]
allow = ["docs.example.com", "*.cdn.example.com:443", "db.example.com:5432"]
[[network.rule]]
host = "api.example.com"
methods = ["GET"]
paths = ["/repos/acme/**"]
upload_bytes_max = "1MiB"
[[network.git]]
host = "git.example.com"
read = ["acme/**"]
push = ["acme/site"]
[[credential]]
name = "example"
from = { env = "EXAMPLE_TOKEN" }
host = "api.example.com"
attach = { header = "Authorization", format = "Bearer {}" }
[limits]
memory = "2GiB"
processes = 512
wall_time = "10m"
disk = "5GiB"
[approval]
network = "ask"
"#;
    let document = parse(source.as_bytes(), &layer()).unwrap();
    assert_eq!(document.guard.unwrap().len(), 2);
}
