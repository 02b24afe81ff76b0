//! The network half of a policy: what its keys mean, what is refused, and what
//! merging layers does to it.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use stockade_policy::document::parse;
use stockade_policy::merge::merge;
use stockade_policy::network::destination::RawHost;
use stockade_policy::network::rules::{
    Approval, Attach, Mode, NetworkRule, SocketKind, Source, TlsMode,
};
use stockade_policy::network::{Destination, Judge, NetworkPlan};
use stockade_policy::path::AbsolutePath;
use stockade_policy::policy::{NetworkPolicy, Policy};
use stockade_policy::problem::{Layer, LayerKind, Problem, Trust};
use stockade_policy::validate::{Context, LayerPolicy, validate};

const UNTRUSTED: LayerKind = LayerKind::Project(Trust::Untrusted);

fn context() -> Context {
    let absolute = |path: &str| AbsolutePath::parse(path).unwrap();
    Context {
        workspace: absolute("/home/u/project"),
        home: absolute("/home/u"),
    }
}

fn read(kind: LayerKind, source: &str) -> Result<LayerPolicy, Vec<Problem>> {
    let name = match kind {
        LayerKind::Organisation => "organisation.toml",
        LayerKind::User => "user.toml",
        LayerKind::Project(_) => "stockade.toml",
        LayerKind::CommandLine => "command line",
    };
    let layer = Layer::new(kind, name);
    let document = parse(format!("version = 1\n{source}").as_bytes(), &layer)?;
    validate(&document, &context())
}

fn merged(layers: &[(LayerKind, &str)]) -> Result<Policy, Vec<Problem>> {
    let read = |(kind, source): &(LayerKind, &str)| read(*kind, source).unwrap();
    merge(&layers.iter().map(read).collect::<Vec<_>>(), &context())
}

fn network(source: &str) -> NetworkPolicy {
    merged(&[(LayerKind::User, source)]).unwrap().network
}

fn rules(source: &str) -> Vec<NetworkRule> {
    network(source).sets.remove(0).rules
}

fn problems(source: &str) -> String {
    let problems = read(LayerKind::User, source).unwrap_err();
    let shown = |problem: &Problem| format!("[{}] {problem}\n", problem.id);
    problems.iter().map(shown).collect()
}

fn check(source: &str, expected: Expect) {
    expected.assert_eq(&problems(source));
}

fn check_merge(layers: &[(LayerKind, &str)], expected: Expect) {
    let problems = merged(layers).unwrap_err();
    let shown = |problem: &Problem| format!("{problem}\n");
    expected.assert_eq(&problems.iter().map(shown).collect::<String>());
}

fn reaches(policy: &NetworkPolicy, host: &str, port: u16) -> bool {
    let plan = NetworkPlan {
        sets: policy.sets.clone(),
        deny: policy.deny.clone(),
        ..NetworkPlan::nothing()
    };
    let destination = Destination::new(RawHost::Text(host.as_bytes()), port).unwrap();
    let judge = Judge::new(plan).unwrap();
    judge.connection(&destination, 0).or_denied().is_ok()
}

#[test]
fn allow_takes_tls_on_the_usual_ports_and_any_bytes_on_others() {
    let rules = rules("network.allow = ['a.example', '*.b.example:443', 'db.example:5432']");
    let shown: Vec<_> = rules
        .iter()
        .map(|rule| (rule.target.to_string(), rule.ports.clone(), rule.tls))
        .collect();
    assert_eq!(
        shown,
        [
            ("a.example".to_owned(), vec![], TlsMode::Passthrough),
            (
                "*.b.example".to_owned(),
                vec![(443, 443)],
                TlsMode::Passthrough
            ),
            ("db.example".to_owned(), vec![(5432, 5432)], TlsMode::Raw),
        ]
    );
    assert_eq!(rules[0].rule.id, "network.allow[0]");
    assert_eq!(rules[0].rule.origin, "user.toml:2");
}

#[test]
fn row_01_empty_and_blank_lists_allow_nothing() {
    for source in ["", "network.allow = []", "[network]"] {
        let policy = merged(&[(LayerKind::User, source)]).unwrap().network;
        assert!(!policy.opens_anything(), "{source}");
        assert!(!reaches(&policy, "a.example", 443), "{source}");
    }
    for text in ["", " ", ".", "*"] {
        assert!(read(LayerKind::User, &format!("network.allow = ['{text}']")).is_err());
    }
}

#[test]
fn a_rule_that_demands_something_is_inspected() {
    let source = r#"
[[network.rule]]
host = "api.example.com"  # the tracker
methods = ["GET"]
paths = ["/repos/acme/**"]
query = { page = "*" }
query_only = true
headers = { Accept = "application/json" }
graphql = "read-only"
body_bytes_max = "1MiB"
upload_bytes_max = "2MiB"
download_bytes_max = "1GiB"
connections = 4
requests_per_minute = 60
websocket = true
encoded_slash = true
allow_private = ["10.0.0.0/8"]
no_alias = true
expires = "2030-12-31T00:00:00Z"
reason = "issues"
"#;
    let rule = rules(source).remove(0);
    let content = rule.content.unwrap();
    assert_eq!(rule.tls, TlsMode::Inspect);
    assert_eq!(content.headers[0].0, "accept");
    assert_eq!(content.body_bytes_max, Some(1 << 20));
    assert_eq!(rule.budget.upload_bytes_max, Some(2 << 20));
    assert_eq!(rule.budget.connections_max, Some(4));
    assert_eq!(rule.expires_unix, Some(1_924_905_600));
    assert_eq!(rule.rule.reason, "issues");
    assert!(content.websocket && content.query_only && rule.no_alias);
}

#[test]
fn rules_without_demands_are_treated_by_port() {
    let source = "[[network.rule]]\nhost = 'a.example'\nports = [443, '8000-8010']\n\
                  [[network.rule]]\ncidr = '192.0.2.0/24'\ntls = 'raw'\n\
                  expires = 2030-01-01\n";
    let rules = rules(source);
    let shown: Vec<_> = rules
        .iter()
        .map(|rule| (&rule.ports[..], rule.tls))
        .collect();
    assert_eq!(
        shown,
        [
            (&[(443, 443)][..], TlsMode::Passthrough),
            (&[(8000, 8010)][..], TlsMode::Raw),
            (&[][..], TlsMode::Raw),
        ]
    );
    assert_eq!(rules[0].rule, rules[1].rule);
    assert!(rules[2].expires_unix.is_some());
}

#[test]
fn git_rules_speak_https_and_ssh_where_it_is_named() {
    let source = "[[network.git]]\nhost = 'git.example.com'\nread = ['acme/**']\n\
                  push = ['acme/site']\nrefs = ['refs/heads/agent/*']\n\
                  push_bytes_max = '50MiB'\nssh_port = 22\n";
    let rule = rules(source).remove(0);
    let git = rule.git.unwrap();
    assert_eq!((rule.ports, rule.tls), (vec![(443, 443)], TlsMode::Inspect));
    assert_eq!(
        (git.ssh_port, git.push_bytes_max),
        (Some(22), Some(50 << 20))
    );
    assert!(!git.delete);
}

#[test]
fn credentials_come_from_one_source_and_go_to_one_place() {
    let source = r#"
network.allow = ["api.example.com"]
[[credential]]
name = "header"
host = "api.example.com"
from = { env = "EXAMPLE_TOKEN" }
attach = { header = "Authorization", format = "Bearer {}" }
[[credential]]
name = "placeholder"
host = "api.example.com"
methods = ["GET"]
paths = ["/v1/**"]
from = { file = "~/token" }
replace = { query = "key" }
variable = "EXAMPLE_KEY"
[[credential]]
name = "minted"
host = "*.example.com"
from = { oauth2 = { token_url = "https://id.example.com/t", client_id = "x", client_secret = { command = ["pass", "x"] }, scopes = ["read"] } }
attach = { json = "/auth" }
[[credential]]
name = "app"
host = "api.example.com"
from = { github_app = { app_id = "1", installation_id = "2", private_key = { keyring = "app" }, repositories = ["site"], permissions = { contents = "write" } } }
attach = { basic = "x-access-token" }
[[credential]]
name = "aws"
host = "s3.example.com"
from = { aws_sts = { region = "eu-central-1", role = "arn:aws:iam::1:role/x", access_key_id = { env = "A" }, secret_access_key = { env = "B" } } }
attach = { sigv4 = { service = "s3" } }
"#;
    let bindings = network(source).credentials;
    assert_eq!(bindings.len(), 5);
    assert_eq!(bindings[0].ports, [(443, 443)]);
    assert_eq!(bindings[0].mode, Mode::Attach);
    assert!(bindings[0].scrub && !bindings[0].plaintext);
    assert!(
        matches!(&bindings[1].source, Source::File { path } if path.as_bytes() == b"/home/u/token")
    );
    assert_eq!(bindings[1].mode, Mode::Replace);
    assert_eq!(bindings[1].variable.as_deref(), Some("EXAMPLE_KEY"));
    assert!(matches!(
        &bindings[2].source,
        Source::OAuth2 {
            client_secret: Some(_),
            ..
        }
    ));
    assert!(matches!(&bindings[3].form, Attach::Basic { .. }));
    assert!(matches!(
        &bindings[4].source,
        Source::AwsSts { seconds: 900, .. }
    ));
    let rules = &network(source).sets[0].rules;
    assert_eq!(rules[0].tls, TlsMode::Passthrough);
}

#[test]
fn offers_approval_and_the_rest() {
    let source = r#"
network.publish = ["3000", "8080:80"]
network.host_ports = [5432]
network.resolvers = ["10.0.0.53"]
network.roots = ["/etc/corp.pem"]
network.proxy = "http://proxy.corp.example:3128"
network.proxy_resolves = true
network.nat64 = ["2001:db8:64::/96"]
network.connections = 10
network.metrics = true
network.deny = ["**.evil.example", "203.0.113.0/24"]
approval.network = "ask"
approval.wait = "30s"
[[socket]]
path = "~/x.sock"
inside = "/run/x.sock"
[[socket]]
ssh_agent = ["SHA256:abc"]
"#;
    let network = network(source);
    assert_eq!(network.publish[1].host_port, 8080);
    assert_eq!(network.host_ports[0].port, 5432);
    assert_eq!(
        network.resolvers.len() + network.roots.len() + network.nat64.len(),
        3
    );
    assert!(!network.upstream_proxy.as_ref().unwrap().send_address);
    assert_eq!(network.budget.connections_max, Some(10));
    assert_eq!(network.deny.len(), 2);
    assert_eq!(network.approval, Approval::Ask);
    assert_eq!(network.approval_wait_ms, Some(30_000));
    assert!(network.metrics && network.opens_anything());
    assert!(matches!(&network.sockets[1].kind, SocketKind::SshAgent { keys } if keys.len() == 1));
}

#[test]
fn every_mistake_is_reported_with_what_to_write_instead() {
    check(
        r#"
[network]
allow = ["**.com", "127.0.0.1", "https://a.example", "localhost"]
host_ports = ["x"]
[[network.rule]]
hosts = "a.example"
[[network.rule]]
host = "a.example:443"
methods = ["get"]
[[network.rule]]
host = "a.example"
cidr = "10.0.0.1/8"
tls = "off"
[[network.git]]
host = "git.example"
[[network.git]]
host = "git.example"
push = ["https://git.example/a/b.git"]
refs = ["main"]
"#,
        expect![[r#"
            [shared-suffix] user.toml:4: "**.com": anybody can register a name below com
              help: name the hosts, or a domain that belongs to one owner
            [bad-host] user.toml:4: "127.0.0.1": an IP address is allowed by a rule of its own
              help: write a [[network.rule]] with `cidr = "…"`
            [bad-host] user.toml:4: "https://a.example": this is an address of a page, not a host
              help: write only the host, for example "docs.example.com"
            [bad-host] user.toml:4: "localhost": the host's loopback is never reachable
              help: the sandbox has a loopback of its own, which needs no rule; `host_ports` offers ports of the host
            [bad-port] user.toml:5: "x" is no port
              help: a number from 1 to 65535
            [unknown-key] user.toml:7: unknown key "hosts" in `network.rule`
              help: did you mean `host`?
            [bad-host] user.toml:9: "a.example:443": the port stands in a key of its own
              help: write `ports = [443]` beside it
            [bad-method] user.toml:10: "get" is no method
              help: did you mean "GET"?
            [bad-network] user.toml:13: "10.0.0.1/8" is no network
              help: the address has bits behind the prefix; did you mean "10.0.0.0/8"?
            [unknown-word] user.toml:14: unknown word "off"
              help: the words are: passthrough, inspect, raw
            [missing-key] user.toml:15: a git rule needs repositories in `read` or `push`
              help: for example `read = ["acme/**"]`
            [bad-pattern] user.toml:19: "https://git.example/a/b.git": a repository is written "owner/name"
            [bad-pattern] user.toml:20: "main" is not the full name of a reference
              help: for a branch write "refs/heads/main"
        "#]],
    );
}

#[test]
fn contradictions_are_refused() {
    check(
        r#"
[[network.rule]]
host = "a.example"
tls = "passthrough"
methods = ["GET"]
[[network.rule]]
host = "a.example"
cidr = "10.0.0.0/8"
[[credential]]
name = "x"
host = "a.example"
from = { env = "A", keyring = "b" }
attach = { path = true }
[[credential]]
name = "y"
from = { env = "A" }
attach = { header = "A" }
replace = { header = "A" }
[[socket]]
inside = "/run/x"
"#,
        expect![[r#"
            [contradiction] user.toml:7: a rule has a `host` or a `cidr`, not both
              help: write two rules
            [contradiction] user.toml:13: 2 sources are named; it must be one
              help: for example `from = { keyring = "example" }`
            [contradiction] user.toml:14: a secret in the path needs `replace`
              help: programs then send the placeholder at its place in the path
            [missing-key] user.toml:15: a credential needs `host`
            [contradiction] user.toml:15: a credential has `attach` or `replace`, not both
              help: `attach` for programs that send nothing, `replace` for those that must send something
            [missing-key] user.toml:20: a socket needs a `path` or an `ssh_agent`
              help: for example `path = "~/x.sock"`
        "#]],
    );
}

#[test]
fn empty_lists_of_demands_are_refused() {
    for list in ["methods", "paths", "ports"] {
        let source = format!("[[network.rule]]\nhost = 'a.example'\n{list} = []\n");
        assert!(problems(&source).starts_with("[empty-list]"), "{list}");
    }
}

#[test]
fn row_48_demands_on_requests_and_a_tunnel_contradict_each_other() {
    for tls in ["passthrough", "raw"] {
        let source =
            format!("[[network.rule]]\nhost = 'a.example'\nmethods = ['GET']\ntls = '{tls}'\n");
        assert!(problems(&source).starts_with("[contradiction] user.toml:5: "));
    }
}

#[test]
fn a_credential_and_a_tunnel_contradict_each_other() {
    check_merge(
        &[
            (
                LayerKind::User,
                "[[credential]]\nname = 'x'\nhost = 'a.example'\nfrom = {env = 'A'}\nattach = {header = 'A'}\n",
            ),
            (
                LayerKind::Project(Trust::Trusted),
                "[[network.rule]]\nhost = '*.example'\ntls = 'raw'\n",
            ),
        ],
        expect![[r#"
            stockade.toml:2: network.rule[0] (stockade.toml:2) lets TLS to *.example pass unread, but the credential "x" (user.toml:2) is attached to requests there
              help: remove `tls` from the rule, or the credential
        "#]],
    );
}

#[test]
fn an_untrusted_project_can_only_take_away() {
    let user = "network.allow = ['**.example']\nnetwork.upload_bytes_max = '1MiB'\n";
    check_merge(
        &[
            (LayerKind::User, user),
            (
                UNTRUSTED,
                r#"
network.allow = ["a.example", "b.test", "a.example:22"]
network.publish = ["3000"]
network.host_ports = [1]
network.resolvers = ["10.0.0.1"]
network.roots = ["/etc/x"]
network.proxy = "http://p:1"
network.metrics = true
network.upload_bytes_max = "2MiB"
approval.network = "ask"
[[credential]]
name = "x"
host = "a.example"
from = { env = "A" }
attach = { header = "A" }
[[socket]]
path = "/run/docker.sock"
"#,
            ),
        ],
        expect![[r#"
            stockade.toml:3: this file wants to reach b.test, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:3: this file wants to reach a.example:22, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:4: this file wants to publish the port 3000, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:5: this file wants to reach the port 1 of this machine, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:6: this file wants to choose the resolvers, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:7: this file wants to trust more certificates, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:8: this file wants to choose the upstream proxy, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:9: this file wants to serve counters, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:10: this file wants to raise the limit `network.upload_bytes_max`, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:11: this file wants to ask for more during the run, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:12: this file wants to use the credential "x", but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
            stockade.toml:17: this file wants to be offered the socket /run/docker.sock, but it is not trusted
              help: a project's own file can only take away; read it, then run `stockade trust` to count stockade.toml as yours
        "#]],
    );
    let narrowed = merged(&[
        (LayerKind::User, user),
        (
            UNTRUSTED,
            "network.deny = ['x.a.example']\nnetwork.allow = ['**.a.example']\napproval.network = 'deny'\n",
        ),
    ]);
    let network = narrowed.unwrap().network;
    assert!(reaches(&network, "y.a.example", 443));
    assert!(!reaches(&network, "x.a.example", 443));
    assert!(!reaches(&network, "b.example", 443));
}

#[test]
fn an_organisation_is_a_ceiling_and_says_how() {
    let organisation = "network.allow = ['**.corp.example', 'a.example']\nnetwork.host_ports = []\n\
                        network.proxy = 'http://proxy.corp.example:1'\napproval.network = 'deny'\n\
                        credential = []\n";
    let user = "network.allow = ['x.corp.example', 'b.example', 'a.example']\n\
                network.host_ports = [1]\nnetwork.proxy = 'http://other.example:1'\n\
                approval.network = 'ask'\n[[credential]]\nname = 'x'\nhost = 'a.example'\n\
                from = {env = 'A'}\nattach = {header = 'A'}\n";
    let network = merged(&[
        (LayerKind::Organisation, organisation),
        (LayerKind::User, user),
    ])
    .unwrap()
    .network;
    assert!(reaches(&network, "x.corp.example", 443));
    assert!(!reaches(&network, "b.example", 443));
    assert!(!reaches(&network, "y.corp.example", 443));
    assert!(network.host_ports.is_empty() && network.credentials.is_empty());
    assert_eq!(network.approval, Approval::Deny);
    assert_eq!(network.upstream_proxy.unwrap().host, "proxy.corp.example");
}

#[test]
fn granting_layers_add_up_and_the_command_line_wins() {
    let network = merged(&[
        (LayerKind::User, "network.allow = ['a.example']\nnetwork.resolvers = ['10.0.0.1']\n"),
        (
            LayerKind::Project(Trust::Trusted),
            "network.allow = ['b.example', 'a.example']\nnetwork.connections = 5\n",
        ),
        (
            LayerKind::CommandLine,
            "network.allow = ['c.example']\nnetwork.resolvers = ['10.0.0.2']\nnetwork.connections = 9\n",
        ),
    ])
    .unwrap()
    .network;
    for host in ["a.example", "b.example", "c.example"] {
        assert!(reaches(&network, host, 443), "{host}");
    }
    assert_eq!(network.sets.len(), 1);
    assert_eq!(network.sets[0].rules.len(), 3);
    assert_eq!(network.resolvers[0].0.to_string(), "10.0.0.2");
    assert_eq!(network.budget.connections_max, Some(5));
}

fn source() -> impl Strategy<Value = String> {
    let hosts = prop::collection::vec(
        prop::sample::select(vec![
            "a.example",
            "*.example",
            "**.example",
            "**.a.example",
            "a.example:22",
            "b.a.example:443",
        ]),
        0..3,
    );
    let rule = prop::sample::select(vec![
        "",
        "[[network.rule]]\nhost = 'a.example'\nports = [22, 80]\n",
        "[[network.rule]]\nhost = '**.a.example'\nmethods = ['GET']\n",
        "[[network.rule]]\ncidr = '192.0.2.0/24'\n",
        "[[network.git]]\nhost = 'a.example'\nread = ['x/**']\nssh_port = 22\n",
    ]);
    let rest = prop::sample::select(vec![
        "",
        "network.host_ports = [1, 2]\n",
        "network.host_ports = []\n",
        "network.deny = ['b.a.example', '192.0.2.1']\n",
        "approval.network = 'ask'\n",
        "approval.network = 'deny'\n",
        "network.publish = ['3000']\n",
    ]);
    (prop::option::of(hosts), rule, rest).prop_map(|(hosts, rule, rest)| {
        let list = hosts.map_or(String::new(), |hosts| {
            format!("network.allow = {hosts:?}\n")
        });
        format!("{list}{rest}{rule}")
    })
}

fn assert_narrower(narrow: &NetworkPolicy, wide: &NetworkPolicy) -> Result<(), TestCaseError> {
    for host in [
        "a.example",
        "b.example",
        "b.a.example",
        "192.0.2.1",
        "192.0.2.2",
    ] {
        for port in [22, 80, 443] {
            let narrower = !reaches(narrow, host, port) || reaches(wide, host, port);
            prop_assert!(narrower, "{host}:{port}");
        }
    }
    prop_assert!(narrow.approval == Approval::Deny || wide.approval == Approval::Ask);
    let ports = |policy: &NetworkPolicy| -> Vec<u16> {
        policy.host_ports.iter().map(|port| port.port).collect()
    };
    prop_assert!(ports(narrow).iter().all(|port| ports(wide).contains(port)));
    prop_assert!(narrow.publish.len() <= wide.publish.len());
    Ok(())
}

proptest! {
    #[test]
    fn layers_that_take_away_only_narrow(
        user in source(),
        project in source(),
        above in source(),
        kind in prop::sample::select(&[LayerKind::Organisation, UNTRUSTED][..]),
    ) {
        // A project has one file, trusted or not.
        let mut layers = vec![(LayerKind::User, user.as_str())];
        if kind != UNTRUSTED {
            layers.push((LayerKind::Project(Trust::Trusted), project.as_str()));
        }
        let wide = merged(&layers).unwrap();
        layers.push((kind, above.as_str()));
        match merged(&layers) {
            Ok(narrow) => assert_narrower(&narrow.network, &wide.network)?,
            Err(problems) => {
                prop_assert_eq!(kind, UNTRUSTED);
                prop_assert!(problems.iter().all(|problem| problem.id == "untrusted-grant"));
            }
        }
    }
}
