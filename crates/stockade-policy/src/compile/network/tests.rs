//! What a plan has when its policy opens a network, and what is refused.

use expect_test::{Expect, expect};

use super::super::fixtures::{compiled, fact, facts, link, path, policy, rule};
use crate::document::parse;
use crate::facts::{Ability, Facts, PathKind};
use crate::guarantee::Guarantee;
use crate::merge::merge;
use crate::network::machine::Crossings;
use crate::network::rules::Capture;
use crate::plan::{Action, Form, Hold, Listener, Plan, StoreFormat, Wall};
use crate::policy::Policy;
use crate::problem::{Layer, LayerKind};
use crate::validate::{Context, validate};

/// The fixture's policy with the network half of a document.
pub(crate) fn policy_with(source: &str) -> Policy {
    let layer = Layer::new(LayerKind::User, "user.toml");
    let context = Context {
        workspace: path("/home/u/project"),
        home: path("/home/u"),
    };
    let document = parse(format!("version = 1\n{source}").as_bytes(), &layer).unwrap();
    let merged = merge(&[validate(&document, &context).unwrap()], &context).unwrap();
    Policy {
        network: merged.network,
        ..policy()
    }
}

/// The fixture's machine with files that say how names are found.
pub(crate) fn facts_with_names() -> Facts {
    let mut facts = facts();
    for file in ["/etc/resolv.conf", "/etc/hosts"] {
        facts.paths.insert(path(file), fact(PathKind::File, file));
    }
    facts
}

fn plan(source: &str, facts: &Facts) -> Plan {
    compiled(&policy_with(source), facts).unwrap()
}

fn steps(plan: &Plan) -> String {
    let shown = |name: &str| {
        name.starts_with("network")
            || name.starts_with("egress")
            || name.starts_with("view.file /etc")
    };
    let names = plan.steps.iter().map(|step| step.name.as_str());
    names
        .filter(|name| shown(name))
        .collect::<Vec<_>>()
        .join("\n")
        + "\n"
}

fn variable(plan: &Plan, name: &str) -> Option<String> {
    let found = plan
        .command
        .environment
        .iter()
        .find(|(variable, _)| variable == name.as_bytes())?;
    String::from_utf8(found.1.clone()).ok()
}

fn listeners(plan: &Plan) -> Vec<Listener> {
    let found = plan.steps.iter().find_map(|step| match &step.action {
        Action::Listen { listeners } => Some(listeners.clone()),
        _ => None,
    });
    found.unwrap_or_default()
}

fn refusals(source: &str, facts: &Facts, expected: Expect) {
    let refused = compiled(&policy_with(source), facts).unwrap_err();
    expected.assert_eq(
        &refused
            .iter()
            .map(|one| format!("{one}\n"))
            .collect::<String>(),
    );
}

const CREDENTIAL: &str = "network.allow = ['api.example']\n[[credential]]\nname = 'x'\n\
    host = 'api.example'\nfrom = {env = 'SECRET_TOKEN'}\nattach = {header = 'Authorization'}\n";

#[test]
fn without_a_network_nothing_of_it_is_there() {
    let plan = plan("", &facts_with_names());
    assert_eq!(plan.network, None);
    assert_eq!(steps(&plan), "network.loopback\n");
    assert_eq!(variable(&plan, "HTTPS_PROXY"), None);
}

#[test]
fn a_network_without_inspection_alters_no_roots() {
    let plan = plan("network.allow = ['a.example']", &facts_with_names());
    expect![[r#"
        egress.process
        network.loopback
        network.routes
        network.redirect
        view.file /etc/hosts
        view.file /etc/resolv.conf
        network.listen
        egress.self-test
    "#]]
    .assert_eq(&steps(&plan));
    assert_eq!(
        variable(&plan, "https_proxy").as_deref(),
        Some("http://127.0.0.1:3128")
    );
    assert_eq!(
        variable(&plan, "ALL_PROXY").as_deref(),
        Some("http://127.0.0.1:3128")
    );
    assert_eq!(variable(&plan, "SSL_CERT_FILE"), None);
    assert_eq!(
        listeners(&plan),
        [
            Listener::Proxy,
            Listener::Transparent,
            Listener::NamesUdp,
            Listener::NamesTcp,
            Listener::ProbeTcp,
            Listener::ProbeUdp
        ]
    );
}

#[test]
fn inspection_adds_the_authority_to_every_file_of_roots_that_is_seen() {
    let mut facts = facts_with_names();
    facts.java_stores = vec![
        path("/etc/ssl/certs/java/cacerts"),
        path("/srv/java/cacerts"),
    ];
    let plan = plan(CREDENTIAL, &facts);
    let stores: Vec<_> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.action {
            Action::TrustStore {
                source,
                path,
                format,
            } => Some((source.is_some(), path.to_string(), *format)),
            _ => None,
        })
        .collect();
    assert_eq!(
        stores,
        [
            (
                true,
                "/etc/ssl/certs/ca-certificates.crt".to_owned(),
                StoreFormat::Pem
            ),
            (true, "/run/stockade/ca.pem".to_owned(), StoreFormat::Pem),
            (
                false,
                "/etc/ssl/certs/java/cacerts".to_owned(),
                StoreFormat::Jks
            ),
        ]
    );
    for name in super::TRUST_VARIABLES {
        assert_eq!(
            variable(&plan, name).as_deref(),
            Some("/run/stockade/ca.pem"),
            "{name}"
        );
    }
}

#[test]
fn variables_that_hold_a_bound_secret_never_enter() {
    let mut policy = policy_with(CREDENTIAL);
    let rule = super::super::fixtures::rule("environment.pass");
    policy.environment_pass.push(("SECRET_*".to_owned(), rule));
    let plan = compiled(&policy, &facts_with_names()).unwrap();
    assert_eq!(variable(&plan, "SECRET_TOKEN"), None);
    policy.network = Default::default();
    let plan = compiled(&policy, &facts_with_names()).unwrap();
    assert_eq!(variable(&plan, "SECRET_TOKEN").as_deref(), Some("s3cr3t"));
}

#[test]
fn files_that_hold_a_bound_secret_are_covered() {
    let source = CREDENTIAL.replace("env = 'SECRET_TOKEN'", "file = 'token'");
    let token = path("/home/u/project/token");
    let mut facts = facts_with_names();
    let fact = fact(PathKind::File, "/home/u/project/token");
    facts.paths.insert(token.clone(), fact);
    let asked = super::questions(&policy_with(&source), &facts.environment);
    assert!(asked.contains(&token));
    let plan = plan(&source, &facts);
    assert!(plan.masks.iter().any(|mask| mask.path == token));
}

#[test]
fn files_of_names_are_placed_where_their_links_lead() {
    let mut facts = facts_with_names();
    let stub = "/run/systemd/resolve/stub-resolv.conf";
    link(
        &mut facts,
        "/etc/resolv.conf",
        "../run/systemd/resolve/stub-resolv.conf",
        stub,
        PathKind::File,
    );
    let plan = plan("network.allow = ['a.example']", &facts);
    let name = format!("view.file {stub}");
    assert!(plan.steps.iter().any(|step| step.name == name));
    assert!(
        !plan
            .steps
            .iter()
            .any(|step| step.name == "view.file /etc/resolv.conf")
    );
}

#[test]
fn the_machine_knows_its_own_name_and_no_other() {
    let hosts = |host_name: &str| {
        let facts = Facts {
            host_name: host_name.to_owned(),
            ..facts_with_names()
        };
        let plan = plan("network.allow = ['a.example']", &facts);
        let found = plan.steps.iter().find_map(|step| match &step.action {
            Action::File { path, content, .. } if path.as_bytes() == b"/etc/hosts" => {
                String::from_utf8(content.clone()).ok()
            }
            _ => None,
        });
        found.unwrap()
    };
    assert!(hosts("laptop").ends_with("\n127.0.1.1 laptop\n"));
    for strange in ["", "a b", "x\n1.2.3.4 evil", "10.0.0.1"] {
        assert_eq!(hosts(strange).lines().count(), 2, "{strange}");
    }
}

#[test]
fn without_landlock_the_plan_says_how_the_egress_process_is_held() {
    let mut facts = facts_with_names();
    facts.landlock_abi = 0;
    let mut policy = policy_with("network.allow = ['a.example']");
    // Without these words the plan is refused.
    policy.weaken = vec![
        (Guarantee::FS2, rule("weaken[0]")),
        (Guarantee::PR6, rule("weaken[1]")),
    ];
    let plan = compiled(&policy, &facts).unwrap();
    assert!(
        plan.notes
            .iter()
            .any(|note| note.contains("egress process is held by"))
    );
}

#[test]
fn without_a_redirect_only_the_proxy_is_there_and_the_plan_says_so() {
    let mut facts = facts_with_names();
    facts.redirect = Ability::No {
        reason: "no nf_tables".to_owned(),
        remedy: "load it".to_owned(),
    };
    let plan = plan("network.allow = ['a.example']", &facts);
    assert_eq!(plan.network.as_ref().unwrap().capture, Capture::ProxyOnly);
    assert!(!listeners(&plan).contains(&Listener::Transparent));
    assert!(
        !plan
            .steps
            .iter()
            .any(|step| step.action == Action::Redirect)
    );
    assert!(plan.notes.iter().any(|note| note.contains("no nf_tables")));
}

#[test]
fn sockets_are_offered_below_a_private_directory() {
    let mut facts = facts_with_names();
    let agent = "/tmp/ssh-x/agent.1";
    facts
        .paths
        .insert(path(agent), fact(PathKind::Socket, agent));
    let source = "[[socket]]\nssh_agent = ['SHA256:x']\n";
    refusals(
        source,
        &facts,
        expect![[r#"
        NT1 cannot be kept by the process wall: socket[0] (user.toml:2) offers the ssh agent, but SSH_AUTH_SOCK names none
          remedy: start an agent (`eval $(ssh-agent)`), or remove the table
    "#]],
    );
    let environment = (b"SSH_AUTH_SOCK".to_vec(), agent.as_bytes().to_vec());
    facts.environment.extend([environment]);
    let plan = plan(source, &facts);
    let inside = "/run/stockade/ssh-agent.sock";
    assert_eq!(variable(&plan, "SSH_AUTH_SOCK").as_deref(), Some(inside));
    assert!(listeners(&plan).contains(&Listener::Unix { path: path(inside) }));
    let asked = super::questions(&policy_with(source), &facts.environment);
    assert!(asked.contains(&path(agent)));
}

/// A machine has a loopback of its own, so each offer has a port where it crosses.
#[test]
fn each_offer_crosses_into_a_machine_at_a_port_of_its_own() {
    let mut facts = facts_with_names();
    facts
        .paths
        .insert(path("/run/x.sock"), fact(PathKind::Socket, "/run/x.sock"));
    let source = "network.host_ports = [5432, 2]\n\
         network.publish = ['8080:3000', '0:3000', '8081:2000']\n\
         [[socket]]\npath = '/run/x.sock'\ninside = '/run/a'\n\
         [[socket]]\npath = '/run/x.sock'\ninside = '/run/b'\n";
    let mut policy = policy_with(source);
    let plain = compiled(&policy, &facts).unwrap();
    let crossing = |one: &Listener| matches!(one, Listener::SocketPort { .. });
    assert!(!listeners(&plain).iter().any(crossing));
    policy.wall = (Wall::Microvm, rule("wall"));
    policy.weaken = vec![(Guarantee::PR7, rule("weaken"))];
    let plan = compiled(&policy, &facts).unwrap();
    let crossings = Crossings::of(plan.network.as_ref().unwrap()).unwrap();
    let published = crossings.published.iter();
    let published: Vec<_> = published.map(|one| (one.port, one.card_port)).collect();
    assert_eq!(published, [(2000, 1), (3000, 2)]);
    assert_eq!(crossings.host_ports, [2, 5432]);
    assert_eq!(crossings.processes(), 1);
    // Port 2 is one of the host's.
    for (port, inside) in [(1, "/run/a"), (3, "/run/b")] {
        let path = path(inside);
        assert!(listeners(&plan).contains(&Listener::SocketPort { port, path }));
    }
    let empty = policy_with("network.allow = ['a.example']");
    let plan = compiled(&empty, &facts).unwrap();
    let none = Crossings::of(plan.network.as_ref().unwrap()).unwrap();
    assert_eq!((none.processes(), none), (0, Crossings::default()));
}

#[test]
fn what_cannot_be_led_into_a_machine_is_refused() {
    let facts = facts_with_names();
    let refused = |source: &str| {
        let mut policy = policy_with(source);
        policy.wall = (Wall::Microvm, rule("wall"));
        policy.weaken = vec![(Guarantee::PR7, rule("weaken"))];
        let refused = compiled(&policy, &facts).unwrap_err();
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].guarantee, Guarantee::NT1);
        refused[0].reason.clone()
    };
    let low = refused("network.publish = ['8080:80']");
    assert!(low.contains("nothing in a machine can listen"), "{low}");
    let taken = refused("network.host_ports = [5432]\nnetwork.publish = ['5432']");
    assert!(taken.contains("port of the host inside"), "{taken}");
}

#[test]
fn what_cannot_be_offered_is_refused() {
    let mut facts = facts_with_names();
    facts
        .paths
        .insert(path("/run/x.sock"), fact(PathKind::Socket, "/run/x.sock"));
    refusals(
        "network.host_ports = [3128]\nnetwork.publish = ['8080:53']\n\
         [[socket]]\npath = '/run/gone.sock'\n\
         [[socket]]\npath = '/run/x.sock'\ninside = '/etc/x.sock'\n\
         [[socket]]\npath = '/run/x.sock'\n\
         [[socket]]\npath = '/run/x.sock'\n",
        &facts,
        expect![[r#"
            NT1 cannot be kept by the process wall: socket[0] (user.toml:4) offers /run/gone.sock, which is no socket
              remedy: start what listens there, or remove the table
            NT1 cannot be kept by the process wall: socket[1] (user.toml:6) puts a socket at /etc/x.sock, which is not in a private directory
              remedy: choose a place below /run or /tmp
            NT1 cannot be kept by the process wall: network.host_ports[0] (user.toml:2) wants port 3128 inside, on which the way out listens
              remedy: let the service listen on another port
            NT1 cannot be kept by the process wall: network.publish[0] (user.toml:3) publishes port 53, on which the way out itself listens
              remedy: let the server inside listen on another port
        "#]],
    );
}

#[test]
fn a_form_without_namespaces_opens_no_network() {
    let policy = Policy {
        form: Form::LandlockOnly,
        ..policy_with("network.allow = ['a.example']")
    };
    let refused = compiled(&policy, &facts_with_names()).unwrap_err();
    let network = refused.iter().filter(|one| one.guarantee == Guarantee::NT1);
    assert_eq!(network.count(), 1);
}

#[test]
fn guarantees_rest_on_the_egress_process() {
    let source = CREDENTIAL.to_owned() + "scrub = false\nplaintext = true\n";
    let plan = plan(&source, &facts_with_names());
    let hold = |wanted: Guarantee| {
        let found = plan
            .guarantees
            .iter()
            .find(|(guarantee, _)| *guarantee == wanted);
        found.unwrap().1.clone()
    };
    let step = |name: &str| {
        plan.steps
            .iter()
            .position(|step| step.name == name)
            .unwrap()
    };
    for guarantee in [
        Guarantee::NT1,
        Guarantee::NT3,
        Guarantee::NT6,
        Guarantee::CR3,
    ] {
        let Hold::Held { by, steps } = hold(guarantee) else {
            panic!("{guarantee}");
        };
        assert!(!by.is_empty());
        assert!(steps.contains(&step("egress.process")), "{guarantee}");
        assert!(steps.contains(&step("egress.self-test")), "{guarantee}");
    }
    for guarantee in [Guarantee::CR1, Guarantee::CR2] {
        assert!(
            matches!(hold(guarantee), Hold::Partial { .. }),
            "{guarantee}"
        );
    }
}

#[test]
fn a_credential_that_no_rule_reaches_is_noted() {
    let source = CREDENTIAL.replace("allow = ['api.example']", "allow = ['b.example']");
    let plan = plan(&source, &facts_with_names());
    assert!(plan.notes.iter().any(|note| note.contains("never used")));
}
