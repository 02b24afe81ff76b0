//! One rule a test, each with what it allows and what it stops.

use proptest::prelude::*;

use super::*;
use crate::network::destination::RawHost;
use crate::network::rules::{Attach, Content, Git, Mode, RuleSet, Source};
use crate::value::HostReach;

const NOW: u64 = 1_000_000;

fn written(id: &str) -> Rule {
    Rule {
        id: id.to_owned(),
        origin: "stockade.toml:1".to_owned(),
        reason: "test".to_owned(),
    }
}

fn target(text: &str) -> Target {
    if let Some(network) = Network::parse(text) {
        return Target::Network(network);
    }
    let (reach, name) = match (text.strip_prefix("**."), text.strip_prefix("*.")) {
        (Some(name), _) => (HostReach::AnyLabels, name),
        (None, Some(name)) => (HostReach::OneLabel, name),
        (None, None) => (HostReach::Exact, text),
    };
    Target::Host {
        reach,
        name: name.to_owned(),
    }
}

fn rule(text: &str) -> NetworkRule {
    NetworkRule {
        rule: written(text),
        target: target(text),
        ports: Vec::new(),
        tls: TlsMode::Passthrough,
        content: None,
        git: None,
        allow_private: Vec::new(),
        no_alias: false,
        budget: Budget::default(),
        expires_unix: None,
    }
}

fn content(text: &str, content: Content) -> NetworkRule {
    NetworkRule {
        content: Some(content),
        ..rule(text)
    }
}

fn plan(sets: &[&[NetworkRule]]) -> NetworkPlan {
    let set = |rules: &&[NetworkRule]| RuleSet {
        origin: "policy.toml".to_owned(),
        rules: rules.to_vec(),
    };
    NetworkPlan {
        sets: sets.iter().map(set).collect(),
        ..NetworkPlan::nothing()
    }
}

fn judge(rules: &[NetworkRule]) -> Judge {
    Judge::new(plan(&[rules])).unwrap()
}

fn to(host: &str, port: u16) -> Destination {
    Destination::new(RawHost::Text(host.as_bytes()), port).unwrap()
}

/// `+` and the rule, `-` and the code, `?` and the code.
fn shown<T>(ruling: Ruling<T>, rule: impl Fn(&T) -> String) -> String {
    match ruling {
        Ruling::Permit(permit) => format!("+{}", rule(&permit)),
        Ruling::Denied(denial) => format!("-{}", denial.code),
        Ruling::Unknown(denial) => format!("?{}", denial.code),
    }
}

fn connection(judge: &Judge, host: &str, port: u16) -> String {
    shown(judge.connection(&to(host, port), NOW), |passage| {
        passage.rule.id.clone()
    })
}

fn request(judge: &Judge, head: RequestHead<'_>) -> String {
    shown(
        judge.request(&to("api.test", 443), &head, NOW),
        |permit| match permit.git {
            true => format!("git {}", permit.rule.id),
            false => permit.rule.id.clone(),
        },
    )
}

fn head<'a>(method: &'a str, path: &'a str) -> RequestHead<'a> {
    RequestHead {
        method,
        path,
        query: &[],
        headers: &[],
        upgrade_websocket: false,
        tls: true,
    }
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    list.iter().map(owned).collect()
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn row_01_nothing_allows_nothing() {
    for plan in [NetworkPlan::nothing(), plan(&[&[]])] {
        let judge = Judge::new(plan).unwrap();
        assert_eq!(connection(&judge, "a.test", 443), "?not-allowed");
        assert!(matches!(
            judge.resolvable(to("a.test", 1).name().unwrap(), NOW),
            Ruling::Unknown(_)
        ));
    }
}

#[test]
fn row_09_names_are_compared_label_by_label() {
    let judge = judge(&[rule("ok.test"), rule("*.one.test"), rule("**.any.test")]);
    for (host, expected) in [
        ("ok.test", "+ok.test"),
        ("OK.test.", "+ok.test"),
        ("evil-ok.test", "?not-allowed"),
        ("ok.test.evil", "?not-allowed"),
        ("x.ok.test", "?not-allowed"),
        ("a.one.test", "+*.one.test"),
        ("a.b.one.test", "?not-allowed"),
        ("one.test", "?not-allowed"),
        ("evilone.test", "?not-allowed"),
        ("a.b.any.test", "+**.any.test"),
        ("any.test", "?not-allowed"),
    ] {
        assert_eq!(connection(&judge, host, 443), expected, "{host}");
    }
}

#[test]
fn row_12_ports_are_443_and_80_unless_named() {
    let named = NetworkRule {
        ports: vec![(5432, 5432), (8000, 8010)],
        ..rule("db.test")
    };
    let judge = judge(&[rule("a.test"), named]);
    for (host, port, expected) in [
        ("a.test", 443, "+a.test"),
        ("a.test", 80, "+a.test"),
        ("a.test", 22, "?not-allowed"),
        ("db.test", 443, "?not-allowed"),
        ("db.test", 8005, "+db.test"),
        ("db.test", 8011, "?not-allowed"),
    ] {
        assert_eq!(connection(&judge, host, port), expected, "{host}:{port}");
    }
    let Ruling::Unknown(denial) = judge.connection(&to("a.test", 22), NOW) else {
        panic!();
    };
    assert!(denial.reason.contains("other ports"), "{}", denial.reason);
    assert_eq!(
        denial.smallest_grant.as_deref(),
        Some("[network]\nallow = [\"a.test:22\"]\n")
    );
}

#[test]
fn the_most_specific_rule_speaks() {
    let get = Content {
        methods: words(&["GET"]),
        ..Content::default()
    };
    let judge = judge(&[
        rule("**.test"),
        rule("**.a.test"),
        rule("*.a.test"),
        content("x.a.test", get),
        rule("x.a.test"),
        rule("10.0.0.0/8"),
        rule("10.1.0.0/16"),
    ]);
    for (host, expected) in [
        ("b.test", "+**.test"),
        ("y.a.test", "+*.a.test"),
        ("z.y.a.test", "+**.a.test"),
        ("10.1.2.3", "+10.1.0.0/16"),
        ("10.2.2.3", "+10.0.0.0/8"),
    ] {
        assert_eq!(connection(&judge, host, 443), expected, "{host}");
    }
    // The plain rule beside the demanding one adds nothing.
    let Ruling::Permit(passage) = judge.connection(&to("x.a.test", 443), NOW) else {
        panic!();
    };
    assert_eq!((passage.rules.len(), passage.tls), (1, TlsMode::Inspect));
    let post = judge.request(&to("x.a.test", 443), &head("POST", "/"), NOW);
    assert_eq!(shown(post, |_| String::new()), "-method");
}

#[test]
fn deny_wins_and_expired_rules_do_not_exist() {
    let mut plan = plan(&[&[
        rule("**.a.test"),
        NetworkRule {
            expires_unix: Some(NOW),
            ..rule("old.test")
        },
        NetworkRule {
            expires_unix: Some(NOW + 1),
            ..rule("young.test")
        },
    ]]);
    plan.deny = vec![
        DenyRule {
            rule: written("network.deny[0]"),
            target: target("**.bad.a.test"),
            ports: Vec::new(),
        },
        DenyRule {
            rule: written("network.deny[1]"),
            target: target("8.8.0.0/16"),
            ports: Vec::new(),
        },
    ];
    let judge = Judge::new(plan).unwrap();
    assert_eq!(connection(&judge, "x.bad.a.test", 443), "-denied-by-rule");
    assert_eq!(connection(&judge, "x.good.a.test", 443), "+**.a.test");
    assert_eq!(connection(&judge, "old.test", 443), "?expired");
    assert_eq!(connection(&judge, "young.test", 443), "+young.test");
    // A denied network also holds where a permitted name leads there.
    let passage = judge
        .connection(&to("young.test", 443), NOW)
        .or_denied()
        .unwrap();
    let denial = judge
        .address(&passage, "8.8.8.8".parse().unwrap())
        .unwrap_err();
    assert_eq!(denial.code, "denied-by-rule");
    assert_eq!(passage.expires_unix, Some(NOW + 1));
}

#[test]
fn rows_13_and_31_addresses_need_a_rule_of_their_own() {
    let judge = judge(&[rule("a.test"), rule("192.0.2.0/24"), rule("127.0.0.0/8")]);
    assert_eq!(connection(&judge, "192.0.2.7", 443), "+192.0.2.0/24");
    assert_eq!(connection(&judge, "3221225991", 443), "+192.0.2.0/24");
    assert_eq!(connection(&judge, "198.51.100.1", 443), "?not-allowed");
    for host in [
        "127.1",
        "0x7f.1",
        "[::1]",
        "169.254.169.254",
        "localhost",
        "x.invalid",
    ] {
        assert_eq!(connection(&judge, host, 443), "-floor", "{host}");
    }
}

#[test]
fn row_19_who_names_all_addresses_does_not_mean_the_neighbours() {
    let judge = judge(&[rule("0.0.0.0/0"), rule("::/0"), rule("192.168.1.0/24")]);
    let check = |address: &str| {
        let host = match address.contains(':') {
            true => format!("[{address}]"),
            false => address.to_owned(),
        };
        let passage = judge.connection(&to(&host, 443), NOW).or_denied().unwrap();
        let judged = judge.address(&passage, address.parse().unwrap());
        judged.map_err(|denial| denial.code)
    };
    for address in ["93.184.216.34", "192.168.1.7", "2606:2800::1"] {
        assert_eq!(check(address), Ok(()), "{address}");
    }
    for address in ["10.0.0.1", "192.168.2.1", "100.64.0.1", "fd00::9"] {
        assert_eq!(check(address), Err("private-address"), "{address}");
    }
    for network in ["10.0.0.0/8", "10.1.2.3", "fd00::/16", "64:ff9b:1::/64"] {
        assert!(Network::parse(network).unwrap().is_private(), "{network}");
    }
    for network in [
        "10.0.0.0/7",
        "0.0.0.0/0",
        "::/0",
        "93.184.216.34",
        "fc00::/6",
    ] {
        assert!(!Network::parse(network).unwrap().is_private(), "{network}");
    }
}

#[test]
fn rows_16_to_19_the_address_is_judged_again() {
    let inside = NetworkRule {
        allow_private: vec![Network::parse("10.1.0.0/16").unwrap()],
        ..rule("db.test")
    };
    let judge = judge(&[rule("a.test"), inside, rule("10.0.0.0/8")]);
    let check = |host: &str, address: &str| {
        let passage = judge.connection(&to(host, 443), NOW).or_denied().unwrap();
        let judged = judge.address(&passage, address.parse().unwrap());
        judged.map_err(|denial| denial.code)
    };
    assert_eq!(check("a.test", "192.0.2.1"), Ok(()));
    assert_eq!(check("a.test", "10.1.2.3"), Err("private-address"));
    assert_eq!(check("db.test", "10.1.2.3"), Ok(()));
    assert_eq!(check("db.test", "64:ff9b::10.1.2.3"), Ok(()));
    assert_eq!(check("db.test", "10.2.2.3"), Err("private-address"));
    assert_eq!(check("db.test", "169.254.169.254"), Err("floor"));
    assert_eq!(check("db.test", "::ffff:127.0.0.1"), Err("floor"));
    assert_eq!(check("10.9.9.9", "10.9.9.9"), Ok(()));
    let passage = judge
        .connection(&to("a.test", 443), NOW)
        .or_denied()
        .unwrap();
    let denial = judge
        .address(&passage, "10.1.2.3".parse().unwrap())
        .unwrap_err();
    assert_eq!(
        denial.smallest_grant.as_deref(),
        Some("[[network.rule]]\nhost = \"a.test\"\nallow_private = [\"10.1.2.3/32\"]\n")
    );
}

#[test]
fn a_ceiling_is_no_question() {
    let judge = Judge::new(plan(&[
        &[rule("a.test")],
        &[rule("a.test"), rule("b.test")],
    ]))
    .unwrap();
    assert_eq!(connection(&judge, "a.test", 443), "+a.test");
    assert_eq!(connection(&judge, "b.test", 443), "?not-allowed");
    assert_eq!(connection(&judge, "c.test", 443), "-not-allowed");
    let name = to("c.test", 443);
    let name = name.name().unwrap();
    assert!(matches!(judge.resolvable(name, NOW), Ruling::Denied(_)));
}

#[test]
fn row_22_an_alias_may_have_to_stay_within_the_rule() {
    let strict = NetworkRule {
        no_alias: true,
        ..rule("**.a.test")
    };
    let judge = judge(&[strict]);
    let passage = judge
        .connection(&to("x.a.test", 443), NOW)
        .or_denied()
        .unwrap();
    assert!(passage.no_alias);
    let alias = |name: &str| judge.alias(&passage, to(name, 1).name().unwrap()).is_ok();
    assert!(alias("y.a.test"));
    assert!(!alias("y.b.test"));
}

#[test]
fn row_23_new_names_below_a_wildcard_are_counted_under_it() {
    let judge = judge(&[rule("*.a.test"), rule("b.a.test")]);
    let wildcard = |name: &str| {
        let destination = to(name, 1);
        judge
            .wildcard(destination.name().unwrap(), NOW)
            .map(str::to_owned)
    };
    assert_eq!(wildcard("x.a.test").as_deref(), Some("*.a.test"));
    assert_eq!(wildcard("b.a.test"), None);
    assert_eq!(wildcard("c.test"), None);
}

#[test]
fn row_24_names_are_not_resolved_over_https() {
    let wanted = Content {
        headers: pairs(&[("content-type", "application/dns-message")]),
        ..Content::default()
    };
    let plain = judge(&[content("api.test", Content::default())]);
    let named = judge(&[content("api.test", wanted)]);
    let headers = pairs(&[("content-type", "application/dns-message")]);
    let post = RequestHead {
        headers: &headers,
        ..head("POST", "/dns-query")
    };
    assert_eq!(request(&plain, post), "-dns-message");
    assert_eq!(request(&named, post), "+api.test");
    let query = pairs(&[("dns", "AAABAAABAAAAAAAAA3d3dwdleGFtcGxl")]);
    let get = RequestHead {
        query: &query,
        ..head("GET", "/dns-query")
    };
    assert_eq!(request(&plain, get), "-dns-message");
    let query = pairs(&[("dns", "1.1.1.1")]);
    let get = RequestHead {
        query: &query,
        ..head("GET", "/zones")
    };
    assert_eq!(request(&plain, get), "+api.test");
}

/// One rule for reading and one for writing.
fn of_content() -> Judge {
    let read = Content {
        methods: words(&["GET"]),
        paths: words(&["/repos/acme/**"]),
        query: pairs(&[("page", "*")]),
        query_only: true,
        headers: pairs(&[("x-kind", "plain")]),
        ..Content::default()
    };
    let write = Content {
        methods: words(&["POST"]),
        paths: words(&["/upload"]),
        body_bytes_max: Some(10),
        ..Content::default()
    };
    judge(&[content("api.test", read), content("api.test", write)])
}

#[test]
fn requests_are_held_to_method_path_query_and_headers() {
    let judge = of_content();
    let (query, headers) = (pairs(&[("page", "2")]), pairs(&[("x-kind", "plain")]));
    let good = RequestHead {
        query: &query,
        headers: &headers,
        ..head("GET", "/repos/acme/site")
    };
    assert_eq!(request(&judge, good), "+api.test");
    let more = pairs(&[("page", "2"), ("x", "1")]);
    let two = pairs(&[("x-kind", "plain"), ("x-kind", "other")]);
    for (asked, expected) in [
        (
            RequestHead {
                method: "PUT",
                ..good
            },
            "-method",
        ),
        (
            RequestHead {
                path: "/repos/other",
                ..good
            },
            "-path",
        ),
        (
            RequestHead {
                query: &more,
                ..good
            },
            "-query",
        ),
        (RequestHead { query: &[], ..good }, "-query"),
        (
            RequestHead {
                headers: &[],
                ..good
            },
            "-header",
        ),
        (
            RequestHead {
                headers: &two,
                ..good
            },
            "-header",
        ),
        (
            RequestHead {
                upgrade_websocket: true,
                ..good
            },
            "-websocket",
        ),
        (head("POST", "/upload"), "+api.test"),
    ] {
        assert_eq!(request(&judge, asked), expected, "{asked:?}");
    }
}

#[test]
fn a_permit_says_what_the_request_is_held_to_and_a_denial_what_would_allow_it() {
    let judge = of_content();
    let permit = judge
        .request(&to("api.test", 443), &head("POST", "/upload"), NOW)
        .or_denied()
        .unwrap();
    assert_eq!(permit.body_bytes_max, Some(10));
    assert!(permit.strip_method_override);
    let denial = judge
        .request(&to("api.test", 443), &head("PUT", "/upload"), NOW)
        .or_denied()
        .unwrap_err();
    assert_eq!(
        denial.smallest_grant.as_deref(),
        Some("[[network.rule]]\nhost = \"api.test\"\nmethods = [\"PUT\"]\npaths = [\"/upload\"]\n")
    );
}

#[test]
fn row_51_websockets_need_a_word_where_something_is_demanded() {
    let websocket = Content {
        websocket: true,
        ..Content::default()
    };
    let upgrade = RequestHead {
        upgrade_websocket: true,
        ..head("GET", "/")
    };
    assert_eq!(request(&judge(&[rule("api.test")]), upgrade), "+api.test");
    let said = judge(&[content("api.test", websocket)]);
    assert_eq!(request(&said, upgrade), "+api.test");
    let mut bound = plan(&[&[rule("api.test")]]);
    bound.credentials.push(binding("api.test"));
    let bound = Judge::new(bound).unwrap();
    assert_eq!(request(&bound, upgrade), "-websocket");
}

fn binding(host: &str) -> Binding {
    Binding {
        rule: written("credential[0]"),
        name: "example".to_owned(),
        source: Source::Env {
            variable: "TOKEN".to_owned(),
        },
        host: target(host),
        ports: Vec::new(),
        methods: Vec::new(),
        paths: Vec::new(),
        mode: Mode::Attach,
        form: Attach::Basic {
            user: "x".to_owned(),
        },
        variable: None,
        scrub: true,
        plaintext: false,
        expires_unix: None,
    }
}

#[test]
fn row_48_a_credential_or_a_demand_forces_inspection() {
    let raw = NetworkRule {
        tls: TlsMode::Raw,
        ports: vec![(8443, 8443)],
        ..rule("raw.test")
    };
    let mut plan = plan(&[&[rule("api.test"), rule("free.test"), raw]]);
    let at = |port| Binding {
        ports: vec![(port, port)],
        ..binding("raw.test")
    };
    plan.credentials = vec![binding("api.test"), at(8443)];
    let judge = Judge::new(plan).unwrap();
    let tls = |host: &str, port| {
        let passage = judge.connection(&to(host, port), NOW).or_denied().unwrap();
        (passage.tls, passage.has_binding)
    };
    assert_eq!(tls("api.test", 443), (TlsMode::Inspect, true));
    assert_eq!(tls("free.test", 443), (TlsMode::Passthrough, false));
    assert_eq!(tls("raw.test", 8443), (TlsMode::Inspect, true));
    assert_eq!(judge.bindings_for(&to("api.test", 443)).count(), 1);
    assert_eq!(judge.bindings_for(&to("api.test", 8443)).count(), 0);
}

fn git_judge() -> Judge {
    let git = Git {
        read: words(&["acme/**"]),
        push: words(&["acme/site"]),
        refs: words(&["refs/heads/agent/*"]),
        push_bytes_max: Some(1000),
        delete: false,
        ssh_port: Some(22),
    };
    judge(&[NetworkRule {
        git: Some(git),
        ..rule("git.test")
    }])
}

fn git(judge: &Judge, port: u16, repository: &str, action: GitAction<'_>) -> String {
    let operation = GitOperation {
        repository,
        action,
        over_ssh: port == 22,
    };
    shown(
        judge.git(&to("git.test", port), &operation, NOW),
        |permit| format!("{}", permit.refs_checked),
    )
}

#[test]
fn row_39_git_is_held_to_repositories_and_references() {
    let judge = git_judge();
    let update = |name: &str, delete| RefUpdate {
        name: name.to_owned(),
        delete,
        create: false,
    };
    assert_eq!(git(&judge, 443, "acme/other", GitAction::Read), "+true");
    assert_eq!(git(&judge, 22, "acme/other", GitAction::Read), "+true");
    assert_eq!(git(&judge, 443, "evil/x", GitAction::Read), "-git-read");
    assert_eq!(git(&judge, 443, "acme/site", GitAction::PushAny), "+false");
    assert_eq!(
        git(&judge, 443, "acme/other", GitAction::PushAny),
        "-git-push"
    );
    for (name, delete, expected) in [
        ("refs/heads/agent/x", false, "+true"),
        ("refs/heads/main", false, "-git-ref"),
        ("refs/heads/agent/x", true, "-git-ref"),
    ] {
        let updates = [update(name, delete)];
        let action = GitAction::Push { updates: &updates };
        assert_eq!(git(&judge, 22, "acme/site", action), expected, "{name}");
    }
}

#[test]
fn what_is_plainly_git_is_judged_as_git() {
    let everything = content("git.test", Content::default());
    let rules = git_judge().plan().sets[0].rules.clone();
    let judge = judge(&[rules[0].clone(), everything]);
    let ask = |method: &str, path: &str, service: &str| {
        let query = pairs(&[("service", service)]);
        let head = RequestHead {
            query: &query,
            ..head(method, path)
        };
        match judge.request(&to("git.test", 443), &head, NOW) {
            Ruling::Permit(permit) => permit.git,
            _ => panic!("{path}"),
        }
    };
    assert!(ask("POST", "/evil/x.git/git-receive-pack", ""));
    assert!(ask("GET", "/evil/x.git/info/refs", "git-receive-pack"));
    assert!(ask("POST", "/evil/x.git/info/lfs/objects/batch", ""));
    assert!(!ask("GET", "/issues", ""));
    let only = git_judge();
    let page = only.request(&to("git.test", 443), &head("GET", "/issues"), NOW);
    assert_eq!(shown(page, |_| String::new()), "-git-read");
}

#[test]
fn ssh_of_a_git_rule_is_a_connection_of_its_own() {
    let judge = git_judge();
    let Ruling::Permit(passage) = judge.connection(&to("git.test", 22), NOW) else {
        panic!();
    };
    assert!(passage.git_over_ssh && passage.has_git);
    assert_eq!(passage.tls, TlsMode::Raw);
    assert_eq!(connection(&judge, "git.test", 2222), "?not-allowed");
}

#[test]
fn plans_that_no_document_makes_are_refused() {
    for (bad, why) in [
        (rule("**.com"), "anybody"),
        (rule("*.co.uk"), "anybody"),
        (rule("*.github.io"), "anybody"),
        (rule("A.test"), "canonical"),
        (rule("a..test"), "label"),
        (rule("127.1"), "canonical"),
        (
            NetworkRule {
                ports: vec![(0, 5)],
                ..rule("a.test")
            },
            "ports",
        ),
    ] {
        let problem = Judge::new(plan(&[&[bad]])).err().unwrap();
        assert!(problem.contains(why), "{problem}");
    }
    assert!(Judge::new(plan(&[&[rule("co.uk"), rule("*.acme.github.io")]])).is_ok());
    let mut prefix = NetworkPlan::nothing();
    prefix.nat64 = vec![Network::parse("2001:db8::/80").unwrap()];
    assert!(Judge::new(prefix).is_err());
}

/// What the trie has to agree with: every rule is looked at.
fn naive<'a>(rules: &'a [NetworkRule], destination: &Destination) -> Option<&'a Target> {
    let specificity = |target: &Target| match target {
        Target::Host { reach, name } => {
            let reach = match reach {
                HostReach::Exact => 2,
                HostReach::OneLabel => 1,
                HostReach::AnyLabels => 0,
            };
            (reach, name.split('.').count())
        }
        Target::Network(network) => (0, usize::from(network.bits())),
    };
    rules
        .iter()
        .filter(|rule| rule.target.holds(destination.host()))
        .filter(|rule| holds_port(&rule.ports, destination.port()))
        .map(|rule| &rule.target)
        .max_by_key(|target| specificity(target))
}

fn any_rule() -> impl Strategy<Value = NetworkRule> {
    let pattern = ("(\\*\\.|\\*\\*\\.)?", "(a|b)(\\.(a|b)){0,2}\\.test");
    (pattern, proptest::option::of(440_u16..446)).prop_map(|((star, name), port)| NetworkRule {
        ports: port.map(|port| (port, port + 2)).into_iter().collect(),
        ..rule(&format!("{star}{name}"))
    })
}

fn any_destination() -> impl Strategy<Value = Destination> {
    ("(a|b|c)(\\.(a|b)){0,3}\\.test", 440_u16..448).prop_map(|(name, port)| to(&name, port))
}

proptest! {
    #[test]
    fn the_trie_agrees_with_looking_at_every_rule(
        rules in proptest::collection::vec(any_rule(), 0..12),
        destination in any_destination(),
    ) {
        let expected = naive(&rules, &destination).cloned();
        let permitted = judge(&rules).connection(&destination, NOW).or_denied().ok();
        let spoke = permitted.map(|passage| rules[passage.rules[0].1].target.clone());
        prop_assert_eq!(spoke, expected);
    }

    #[test]
    fn another_set_never_permits_more(
        first in proptest::collection::vec(any_rule(), 0..6),
        second in proptest::collection::vec(any_rule(), 0..6),
        destination in any_destination(),
    ) {
        let alone = judge(&first).connection(&destination, NOW).or_denied();
        let both = Judge::new(plan(&[&first, &second])).unwrap();
        let ruling = both.connection(&destination, NOW);
        prop_assert_eq!(&ruling, &both.connection(&destination, NOW));
        if ruling.or_denied().is_ok() {
            prop_assert!(alone.is_ok());
            prop_assert!(naive(&second, &destination).is_some());
        }
    }

    #[test]
    fn no_bytes_make_the_constructor_panic(host in proptest::collection::vec(any::<u8>(), 0..40), port: u16) {
        drop(Destination::new(RawHost::Text(&host), port));
    }

    #[test]
    fn addresses_are_read_as_the_standard_library_reads_them(number: u32, wide: u128) {
        let address = std::net::Ipv4Addr::from(number);
        for text in [address.to_string(), number.to_string(), format!("{number:#x}")] {
            let destination = to(&text, 1);
            prop_assert_eq!(destination.host(), &Host::Address(IpAddr::V4(address)), "{}", text);
        }
        let address = IpAddr::V6(std::net::Ipv6Addr::from(wide));
        let destination = to(&format!("[{address}]"), 1);
        prop_assert_eq!(destination.host(), &Host::Address(address.to_canonical()));
    }
}
