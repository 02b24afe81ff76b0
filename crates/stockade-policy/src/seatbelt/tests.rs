//! The profile against `decide`, by an evaluator of the language: for random
//! policies and paths, and for the tricks by which rules over names are passed.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stockade_testkit::sbpl::{self, Object, Parameters, Profile, Volume};

use super::*;
use crate::compile::fixtures::{compiled, fact, facts, grant, policy, rule};
use crate::decide::{Decision, Question, decide};
use crate::facts::{Facts, HiddenMatch, PathKind};
use crate::guarantee::Guarantee;
use crate::guard::{Entry, Guard, Judged, Kind, Rank, Strength};
use crate::plan::{Action, Form, Hold, Wall, WorkspaceMode};
use crate::policy::{HidePattern, Policy};

const VOLUMES: [Volume; 2] = [Volume::CaseFolding, Volume::CaseSensitive];

fn seatbelt() -> Policy {
    Policy {
        wall: (Wall::Seatbelt, rule("wall")),
        form: Form::Seatbelt,
        read: Vec::new(),
        ..policy()
    }
}

fn at(text: &str) -> AbsolutePath {
    AbsolutePath::parse(text).unwrap()
}

/// Facts in which these directories exist.
fn knowing<'a>(places: impl IntoIterator<Item = &'a AbsolutePath>) -> Facts {
    let mut facts = facts();
    for place in places {
        for above in std::iter::once(place.as_bytes()).chain(place.ancestors()) {
            let text = String::from_utf8(above.to_vec()).unwrap();
            let known = fact(PathKind::Directory, &text);
            facts.paths.entry(at(&text)).or_insert(known);
        }
    }
    facts
}

fn text_of(plan: &Plan) -> &str {
    let found = plan.steps.iter().find_map(|step| match &step.action {
        Action::Seatbelt { profile } => Some(&profile[..]),
        _ => None,
    });
    found.unwrap()
}

fn parameters() -> Parameters {
    Parameters::from([
        (
            TEMPORARY_PARAMETER.to_owned(),
            "/private/tmp/stockade.x".to_owned(),
        ),
        (PROXY_PARAMETER.to_owned(), "localhost:4711".to_owned()),
    ])
}

fn understood(plan: &Plan) -> Profile {
    sbpl::parse(text_of(plan), &parameters()).unwrap_or_else(|error| panic!("{error}"))
}

fn permits(plan: &Plan, question: Question) -> bool {
    matches!(decide(plan, &question), Decision::Permit { .. })
}

/// What may be done to a path, with a plan and its profile.
struct Both {
    plan: Plan,
    profile: Profile,
}

impl Both {
    fn of(policy: &Policy, facts: &Facts) -> Self {
        let plan = compiled(policy, facts).unwrap();
        let profile = understood(&plan);
        Self { plan, profile }
    }

    fn allows(&self, operation: &str, path: &str, volume: Volume) -> bool {
        self.profile
            .allows(operation, Object::Path(path.as_bytes()), volume)
    }

    /// On no kind of volume.
    fn never(&self, operation: &str, path: &str) -> bool {
        VOLUMES
            .iter()
            .all(|&volume| !self.allows(operation, path, volume))
    }

    fn always(&self, operation: &str, path: &str) -> bool {
        VOLUMES
            .iter()
            .all(|&volume| self.allows(operation, path, volume))
    }
}

/// Names of files and directories: ordinary, guarded, with other cases.
const NAMES: [&str; 24] = [
    "a",
    "b",
    "c",
    "A",
    "B",
    "src",
    "Makefile",
    "makefile",
    ".git",
    ".GIT",
    "git~1",
    "hooks",
    "config",
    "pre-commit",
    "x.sample",
    "node_modules",
    ".github",
    "workflows",
    ".vscode",
    "tasks.json",
    ".envrc",
    ".envrc.",
    "x.jenkinsfile",
    "deploy",
];

const ROOTS: [&str; 5] = [
    "/home/u/project",
    "/home/u",
    "/opt",
    "/private/tmp/w",
    "/data",
];

fn place(names: &'static [&'static str]) -> impl Strategy<Value = AbsolutePath> {
    let name = prop::sample::select(names);
    (
        prop::sample::select(&ROOTS[..]),
        prop::collection::vec(name, 0..5),
    )
        .prop_map(|(root, names)| {
            names
                .iter()
                .fold(at(root), |place, name| place.join(name).unwrap())
        })
}

/// Below the workspace, where most rules are.
fn inner() -> impl Strategy<Value = AbsolutePath> {
    prop::collection::vec(prop::sample::select(&NAMES[..]), 1..5).prop_map(|names| {
        let base = at("/home/u/project");
        names
            .iter()
            .fold(base, |place, name| place.join(name).unwrap())
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let patterns = vec![
        "deploy/**",
        "*.jenkinsfile",
        "a",
        "/b/c",
        "**/x[0-9]",
        ".envrc",
        "src/**/Makefile",
        "**/.git/hooks/**",
        "c?",
        "node_modules",
    ];
    let ranks = vec![Rank::User, Rank::Organisation, Rank::Project];
    (
        prop::sample::select(patterns),
        prop::sample::select(ranks),
        prop::sample::select(vec![Strength::Hold, Strength::Report]),
        any::<bool>(),
    )
        .prop_map(|(pattern, rank, strength, removes)| Entry {
            rule: crate::guard::Rule {
                kind: Kind::Custom,
                strength,
                judged: Judged::Always,
                pattern: pattern.to_owned(),
                rule: rule("filesystem.guard[0]"),
            },
            removes: removes && rank != Rank::Project,
            rank,
        })
}

#[derive(Clone, Debug)]
struct Case {
    policy: Policy,
    facts: Facts,
    asked: Vec<AbsolutePath>,
}

prop_compose! {
    fn case(lower: bool)(
        reads in prop::collection::vec(place(&NAMES), 0..4),
        writes in prop::collection::vec(place(&NAMES[..6]), 0..3),
        hidden in prop::collection::vec(inner(), 0..3),
        asked in prop::collection::vec(prop_oneof![place(&NAMES), inner()], 6..16),
        entries in prop::collection::vec(entry(), 0..4),
        built_in in prop::sample::select(vec![
            vec![Rank::BuiltIn], vec![Rank::BuiltIn], vec![Rank::Organisation], vec![Rank::User],
            vec![],
        ]),
    ) -> Case {
        let spelt = |paths: Vec<AbsolutePath>| -> Vec<AbsolutePath> {
            let spell = |path: &AbsolutePath| match lower {
                true => at(&path.to_string().to_lowercase()),
                false => path.clone(),
            };
            paths.iter().map(spell).collect()
        };
        let (reads, writes, hidden) = (spelt(reads), spelt(writes), spelt(hidden));
        let mut policy = seatbelt();
        policy.read = reads.iter().map(|one| grant("filesystem.read", &one.to_string())).collect();
        policy.write.extend(writes.iter().map(|one| grant("filesystem.write", &one.to_string())));
        let (pattern, rule) = ("x".to_owned(), rule("filesystem.hide[0]"));
        policy.hide = vec![HidePattern { pattern, rule }];
        policy.guard = Guard::new(entries, built_in);
        let mut facts = knowing(reads.iter().chain(&writes).chain(&hidden));
        facts.hidden = hidden
            .iter()
            .map(|path| HiddenMatch::new(path.clone(), true, 0))
            .collect();
        let asked = asked.into_iter().chain(reads).chain(writes).chain(hidden).collect();
        Case { policy, facts, asked }
    }
}

/// Whether another rule names this place in another case: then the profile
/// takes away more than `decide`, which knows that they are two files.
fn is_variant(plan: &Plan, path: &AbsolutePath) -> bool {
    let lower = |path: &AbsolutePath| at(&path.to_string().to_lowercase());
    let masks = plan.masks.iter().map(|mask| &mask.path);
    let narrow = plan
        .grants
        .iter()
        .filter(|grant| grant.access == Access::Read);
    let mut places = masks.chain(narrow.map(|grant| &grant.path));
    places.any(|place| lower(path).is_within(&lower(place)) && !path.is_within(place))
}

fn agree(both: &Both, path: &AbsolutePath, volume: Volume) -> Result<(), TestCaseError> {
    let Both { plan, profile } = both;
    let object = Object::Path(path.as_bytes());
    let about = profile.about(object, volume);
    let allows = |operation| about.allows(operation);
    let may_read = permits(plan, Question::Read(path.clone()));
    let may_write = permits(plan, Question::Write(path.clone()));
    let may_execute = permits(plan, Question::Execute(path.clone()));
    // Nothing is permitted that is denied, whatever the operation is called.
    // That a place on the way exists is known in any case.
    for operation in ["file-read-data", "file-read-xattr", "file-map-executable"] {
        prop_assert!(may_read || !allows(operation), "{operation} {path}");
    }
    prop_assert!(
        may_execute || !allows("process-exec"),
        "process-exec {path}"
    );
    for operation in sbpl::OPERATIONS
        .iter()
        .filter(|name| name.starts_with("file-write"))
    {
        prop_assert!(may_write || !allows(operation), "{operation} {path}");
    }
    prop_assert!(!allows("file-link") && !allows("file-clone"), "{path}");
    if is_variant(plan, path) {
        return Ok(());
    }
    prop_assert_eq!(allows("file-read-data"), may_read, "reading {}", path);
    prop_assert_eq!(allows("file-write-data"), may_write, "writing {}", path);
    prop_assert_eq!(allows("process-exec"), may_execute, "executing {}", path);
    Ok(())
}

/// So many policies that compile; those that are refused do not count.
fn counted(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_global_rejects: 100_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(counted(1000))]

    #[test]
    fn the_profile_and_the_decision_agree(case in case(false)) {
        // A grant that is refused has no profile; it does not count.
        let compiled = compiled(&case.policy, &case.facts);
        prop_assume!(compiled.is_ok());
        let plan = compiled.unwrap();
        let profile = understood(&plan);
        let both = Both { plan, profile };
        for path in &case.asked {
            agree(&both, path, Volume::CaseSensitive)?;
            let short = path.to_string();
            let short = short.strip_prefix("/private").unwrap_or(&short);
            for alias in [short.to_owned(), format!("/System/Volumes/Data{short}")] {
                let of = |path| both.profile.about(Object::Path(path), Volume::CaseSensitive);
                let (alias, path) = (of(alias.as_bytes()), of(path.as_bytes()));
                for operation in ["file-read-data", "file-write-data"] {
                    prop_assert_eq!(alias.allows(operation), path.allows(operation));
                }
            }
        }
    }

}

proptest! {
    #![proptest_config(counted(256))]

    // Where no rule has an upper case letter, every spelling of a path means
    // the one in lower case on a volume that folds.
    #[test]
    fn no_spelling_of_a_path_gets_more_than_the_path(case in case(true)) {
        let compiled = compiled(&case.policy, &case.facts);
        prop_assume!(compiled.is_ok());
        let plan = compiled.unwrap();
        let profile = understood(&plan);
        for path in &case.asked {
            let lower = at(&path.to_string().to_lowercase());
            for spelling in [path.to_string(), path.to_string().to_uppercase(), lower.to_string()] {
                let about = profile.about(Object::Path(spelling.as_bytes()), Volume::CaseFolding);
                for (operation, question) in [
                    ("file-read-data", Question::Read(lower.clone())),
                    ("file-write-data", Question::Write(lower.clone())),
                    ("file-write-create", Question::Write(lower.clone())),
                    ("file-write-unlink", Question::Write(lower.clone())),
                    ("process-exec", Question::Execute(lower.clone())),
                ] {
                    let allowed = about.allows(operation);
                    prop_assert!(!allowed || permits(&plan, question), "{operation} {spelling}");
                }
            }
        }
    }

    #[test]
    fn nothing_but_the_proxy_is_reached(
        hosts in prop::collection::vec(prop::sample::select(vec![
            "docs.example.com", "*.cdn.example.com", "db.example.com:5432"]), 0..3),
        offered in prop::collection::vec(1024_u16..u16::MAX, 0..2),
        port in prop_oneof![Just(4711_u16), Just(443), any::<u16>()],
        loopback in any::<bool>(),
    ) {
        let list = hosts.iter().map(|host| format!("'{host}'")).collect::<Vec<_>>().join(",");
        let offers = offered.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let source = format!("network.allow = [{list}]\nnetwork.host_ports = [{offers}]\n");
        let network = crate::compile::network::tests::policy_with(&source).network;
        let policy = Policy { network, ..seatbelt() };
        let facts = crate::compile::network::tests::facts_with_names();
        let Ok(plan) = compiled(&policy, &facts) else { return Ok(()) };
        let profile = understood(&plan);
        let object = Object::Address { loopback, port };
        let reached = profile.allows("network-outbound", object, Volume::CaseFolding);
        let proxy = plan.network.is_some() && port == 4711;
        let offer = offered.contains(&port);
        prop_assert_eq!(reached, loopback && (proxy || offer));
        if offer {
            let question = Question::Connect { host: "127.0.0.1".to_owned(), port };
            prop_assert!(permits(&plan, question));
        }
        // What `decide` permits is reached through the proxy, and only then.
        for host in ["docs.example.com", "x.cdn.example.com", "db.example.com", "evil.example"] {
            let question = Question::Connect { host: host.to_owned(), port };
            prop_assert!(!permits(&plan, question) || plan.network.is_some());
        }
        let name = Object::Path(b"/private/var/run/mDNSResponder");
        prop_assert!(!profile.allows("network-outbound", name, Volume::CaseFolding));
    }

    #[test]
    fn every_path_is_named_or_refused(bytes in prop::collection::vec(any::<u8>(), 1..12)) {
        let Ok(path) = AbsolutePath::parse([b"/", &bytes[..]].concat()) else { return Ok(()) };
        let text = std::str::from_utf8(path.as_bytes());
        let control = |text: &str| text.chars().any(|c| c.is_control() && !"\n\r\t".contains(c));
        match text::quoted(&path) {
            Err(_) => prop_assert!(text.is_err() || control(text.unwrap())),
            Ok(quoted) => {
                let rule = format!("(allow file-read* (literal {quoted}))");
                let whole = format!("(version 1)(deny default){rule}");
                let profile = sbpl::parse(&whole, &Parameters::new()).unwrap();
                // Links of the system have another name here.
                let known = sbpl::kernel_path(path.as_bytes()) == path.as_bytes();
                let object = Object::Path(path.as_bytes());
                let read = profile.allows("file-read-data", object, Volume::CaseSensitive);
                prop_assert_eq!(read, known);
                let below = text::below(&path);
                let whole = format!("(version 1)(deny file-read* (regex #\"{below}\"))");
                let profile = sbpl::parse(&whole, &Parameters::new()).unwrap();
                let denied = !profile.allows("file-read-data", object, Volume::CaseSensitive);
                prop_assert!(denied || !known, "{}", path);
            }
        }
    }
}

fn with_hidden() -> Both {
    let secret = at("/home/u/project/conf/deep/secret");
    let mut facts = knowing([&secret]);
    facts.hidden = vec![HiddenMatch::new(secret, false, 0)];
    let mut policy = seatbelt();
    policy.hide = vec![HidePattern {
        pattern: "x".to_owned(),
        rule: rule("filesystem.hide[0]"),
    }];
    Both::of(&policy, &facts)
}

#[test]
fn what_is_above_something_hidden_stays_in_its_place() {
    let both = with_hidden();
    for path in ["", "/conf", "/CONF", "/conf/deep", "/conf/deep/secret"] {
        let path = format!("/home/u/project{path}");
        assert!(both.never("file-write-unlink", &path), "{path}");
    }
    assert!(both.always("file-write-unlink", "/home/u/project/conf/other"));
    for path in ["secret", "SECRET", "secret/x", "Secret"] {
        let path = format!("/home/u/project/conf/deep/{path}");
        for operation in [
            "file-read-data",
            "file-read-metadata",
            "file-write-create",
            "file-link",
        ] {
            assert!(both.never(operation, &path), "{operation} {path}");
        }
    }
    assert!(both.always("file-read-data", "/home/u/project/conf/deep/secrets"));
}

#[test]
fn nothing_moves_to_where_it_would_run() {
    let both = Both::of(&seatbelt(), &facts());
    for name in [
        ".git",
        ".GIT",
        "git~1",
        "sub/.git",
        ".github",
        ".github/workflows",
        ".husky",
    ] {
        let path = format!("/home/u/project/{name}");
        assert!(both.never("file-write-create", &path), "{path}");
        assert!(both.never("file-write-unlink", &path), "{path}");
    }
    for name in [
        ".git/hooks/pre-commit",
        ".Git/Hooks/x",
        ".git/config",
        ".g\u{200c}it/config",
        ".gith\u{fb01}/x",
        ".envrc. ",
        "stockade.toml",
    ] {
        let path = format!("/home/u/project/{name}");
        for operation in ["file-write-data", "file-write-create", "file-write-unlink"] {
            assert!(both.never(operation, &path), "{operation} {path}");
        }
    }
    for name in [
        ".git/index",
        ".git/objects/ab/cdef",
        ".git/hooks/x.sample",
        "src/main.rs",
        "Straße",
    ] {
        let path = format!("/home/u/project/{name}");
        assert!(both.always("file-write-create", &path), "{path}");
    }
    assert!(both.always("file-write-create", "/tmp/stockade.x/.git/hooks/x"));
    assert!(both.never("file-write-create", "/tmp/other"));
}

#[test]
fn normal_forms_and_letters_that_fold_are_taken_for_each_other() {
    let name = |text: &str| at(&format!("/Users/u/{text}"));
    let expression = |text: &str| {
        let text = format!(
            "(version 1)(deny file-read* (regex #\"{}\"))",
            text::below(&name(text))
        );
        sbpl::parse(&text, &Parameters::new()).unwrap()
    };
    for (hidden, asked) in [
        ("geh\u{e4}im", "geha\u{308}im"),
        ("geha\u{308}im", "GEH\u{c4}IM"),
        ("geha\u{308}im/x", "geh\u{e4}im/X/y"),
    ] {
        let path = name(asked);
        let profile = expression(hidden);
        let object = Object::Path(path.as_bytes());
        assert!(
            !profile.allows("file-read-data", object, Volume::CaseFolding),
            "{asked}"
        );
    }
    let other = name("geheim");
    let object = Object::Path(other.as_bytes());
    assert!(expression("geh\u{e4}im2").allows("file-read-data", object, Volume::CaseFolding));
}

#[test]
fn processes_services_and_settings_of_others_are_out_of_reach() {
    let both = Both::of(&seatbelt(), &facts());
    let allows = |operation, object| both.profile.allows(operation, object, Volume::CaseFolding);
    assert!(allows("signal", Object::Process { same_sandbox: true }));
    assert!(!allows(
        "signal",
        Object::Process {
            same_sandbox: false
        }
    ));
    assert!(!allows(
        "process-info-pidinfo",
        Object::Process {
            same_sandbox: false
        }
    ));
    assert!(allows(
        "mach-lookup",
        Object::Name("com.apple.system.opendirectoryd.libinfo")
    ));
    for service in [
        "com.apple.SecurityServer",
        "com.apple.securityd.xpc",
        "com.apple.trustd.agent",
        "com.apple.coreservices.launchservicesd",
        "com.apple.pasteboard.1",
    ] {
        assert!(!allows("mach-lookup", Object::Name(service)), "{service}");
    }
    assert!(allows("sysctl-read", Object::Name("hw.ncpu")));
    for setting in ["kern.proc.all", "kern.procargs2", "net.inet.tcp.pcblist64"] {
        assert!(!allows("sysctl-read", Object::Name(setting)), "{setting}");
    }
    for operation in ["network-bind", "network-inbound"] {
        let object = Object::Address {
            loopback: true,
            port: 80,
        };
        assert!(!allows(operation, object));
    }
    assert!(!allows("ipc-posix-sem", Object::Name("x")));
    assert!(both.never("file-write-setugid", "/home/u/project/x"));
    assert!(both.never("file-ioctl", "/dev/tty"));
    assert!(both.always("file-write-data", "/dev/null"));
    assert!(both.never("process-exec", "/dev/null"));
    assert!(both.always("process-exec", "/bin/sh"));
    assert!(both.always("file-read-metadata", "/tmp"));
    assert!(both.never("file-read-data", "/home/u/.ssh/id_ed25519"));
}

#[test]
fn what_macos_cannot_hold_is_listed_and_what_is_demanded_is_refused() {
    let plan = compiled(&seatbelt(), &facts()).unwrap();
    let hold: BTreeMap<_, _> = plan.guarantees.iter().cloned().collect();
    assert_eq!(hold.len(), Guarantee::ALL.len());
    for guarantee in [Guarantee::PR1, Guarantee::EP2] {
        assert!(
            matches!(hold[&guarantee], Hold::NotHeld { .. }),
            "{guarantee}"
        );
    }
    for guarantee in [
        Guarantee::FS1,
        Guarantee::PR3,
        Guarantee::PR4,
        Guarantee::PR7,
        Guarantee::AU2,
    ] {
        assert!(
            matches!(hold[&guarantee], Hold::Partial { .. }),
            "{guarantee}"
        );
    }
    let refused = |change: &dyn Fn(&mut Policy)| {
        let mut policy = seatbelt();
        change(&mut policy);
        let refusals = compiled(&policy, &facts()).unwrap_err();
        assert!(
            refusals
                .iter()
                .all(|one| one.wall == "seatbelt" && !one.remedy.is_empty())
        );
        refusals[0].guarantee
    };
    let review = |policy: &mut Policy| policy.workspace_mode.0 = WorkspaceMode::Review;
    assert_eq!(refused(&review), Guarantee::FS4);
    let memory = |policy: &mut Policy| {
        let amount = crate::policy::Amount::Bytes(1 << 30);
        policy.limits.memory = Some((amount, rule("limits.memory")));
    };
    assert_eq!(refused(&memory), Guarantee::PR7);
    let disk = |policy: &mut Policy| {
        policy.limits.disk_bytes = Some((1 << 30, rule("limits.disk")));
    };
    assert_eq!(refused(&disk), Guarantee::FS6);
    let nested = |policy: &mut Policy| policy.nested_sandbox = Some(rule("process.nested_sandbox"));
    assert_eq!(refused(&nested), Guarantee::PR1);
    let mut weakened = seatbelt();
    memory(&mut weakened);
    weakened.weaken = vec![(Guarantee::PR7, rule("weaken"))];
    assert!(compiled(&weakened, &facts()).is_ok());
}

#[test]
fn a_path_that_no_rule_can_name_is_refused() {
    for name in [&b"\xff"[..], b"\x1b"] {
        let path = AbsolutePath::parse([b"/data/", name].concat()).unwrap();
        let mut policy = seatbelt();
        let mut wanted = grant("filesystem.read[0]", "/data");
        wanted.target = crate::policy::GrantTarget::Path(path.clone());
        policy.read.push(wanted);
        let mut facts = facts();
        let mut known = fact(PathKind::Directory, "/data");
        known.resolved = Some(path.clone());
        facts.paths.insert(path, known);
        let refusals = compiled(&policy, &facts).unwrap_err();
        assert_eq!(refusals[0].guarantee, Guarantee::FS1);
    }
}

#[test]
fn explaining_shows_the_profile() {
    use crate::explain::{Detail, Style, json, text};
    let plan = compiled(&seatbelt(), &facts()).unwrap();
    let page = text(&plan, Style::Plain, Detail::Verbose);
    assert!(page.contains("Wall seatbelt") && page.contains("(deny default)"));
    let value = serde_json::to_value(json(&plan)).unwrap();
    let steps = value["steps"].as_array().unwrap();
    assert!(
        steps
            .iter()
            .any(|step| step["profile"].as_str() == Some(text_of(&plan)))
    );
}
