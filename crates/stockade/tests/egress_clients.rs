//! Real clients through real runs: whatever a program does with proxy
//! variables and trust stores, it reaches what is allowed, fails at once
//! elsewhere, and verifies what it is shown.

mod way_out;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use way_out::{Ended, Range, all_refused, all_said, there};

/// Whether a program looks at variables that say where a proxy is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variables {
    Read,
    Ignored,
}

use Variables::{Ignored, Read};

/// A client's name, what it needs, and its command, which fetches `$URL`.
const CLIENTS: &[(&str, Variables, &str, &str)] = &[
    (
        "curl, HTTP/1.1",
        Read,
        "curl",
        "curl -sSf --http1.1 \"$URL\"",
    ),
    ("curl, HTTP/2", Read, "curl", "curl -sSf --http2 \"$URL\""),
    (
        "Python urllib",
        Read,
        "/usr/bin/python3",
        "/usr/bin/python3 get_urllib.py \"$URL\"",
    ),
    (
        "Python requests",
        Read,
        "/usr/lib/python3/dist-packages/requests",
        "/usr/bin/python3 get_requests.py \"$URL\"",
    ),
    (
        "Python httpx",
        Read,
        "/usr/lib/python3/dist-packages/httpx",
        "/usr/bin/python3 get_httpx.py \"$URL\"",
    ),
    (
        "Python socket",
        Ignored,
        "/usr/bin/python3",
        "/usr/bin/python3 get_socket.py \"$URL\"",
    ),
    ("Node fetch", Ignored, "node", "node get_fetch.mjs \"$URL\""),
    ("Node https", Ignored, "node", "node get_https.mjs \"$URL\""),
    ("Go", Read, "go", "./get \"$URL\""),
    (
        "Go, its own transport",
        Ignored,
        "go",
        "./get \"$URL\" direct",
    ),
    (
        "Java HttpClient",
        Ignored,
        "javac",
        "java $JAVA Get.java \"$URL\"",
    ),
];

/// Takes every variable away that says where a proxy is.
const NO_VARIABLES: &str = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy \
                            https_proxy all_proxy no_proxy; ";

/// The clients that are here, for a URL; those that read proxy variables with
/// them and without.
fn clients(test: &str, url: &str, java: &str) -> Vec<(String, String)> {
    let mut commands = Vec::new();
    for (name, variables, needed, command) in CLIENTS {
        if !there(test, needed) {
            continue;
        }
        let command = format!("URL='{url}'; JAVA='{java}'; {command}");
        if *variables == Read {
            let without = format!("{NO_VARIABLES}{command}");
            commands.push((format!("{name}, without variables"), without));
        }
        commands.push(((*name).to_owned(), command));
    }
    commands
}

/// A range with the compiled Go client in the project.
fn range(test: &str) -> Range {
    let range = Range::new();
    range.internet.zone("denied.test", &["93.184.216.99"]);
    if there(test, "go") {
        let mut go = Command::new("go");
        go.args(["build", "-o", "get", "get.go"])
            .current_dir(&range.world.project)
            .env("GOCACHE", range.world.outside().join("go-cache"))
            .env("GOFLAGS", "-mod=mod")
            .env("GO111MODULE", "off");
        let built = go.output().expect("go starts");
        assert!(built.status.success(), "{built:?}");
    }
    range
}

/// How many connections came in for what no test allows.
fn strayed(range: &Range) -> usize {
    let connects = range.internet.seen("connect");
    let stray = connects
        .iter()
        .filter(|one| one["address"] == "93.184.216.99");
    stray.count()
}

/// A trust store with the origins' authority, as keytool makes it.
fn java_store(range: &Range) -> Option<String> {
    let store = range.world.project.join("trust.p12");
    let mut keytool = Command::new("keytool");
    keytool
        .args(["-importcert", "-noprompt", "-storepass", "changeit"])
        .arg("-file")
        .arg(range.world.project.join("ca.pem"))
        .arg("-keystore")
        .arg(&store);
    keytool.output().ok()?;
    Some(format!(
        "-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStorePassword=changeit",
        store.display()
    ))
}

#[test]
fn a29_clients_that_ignore_the_proxy_reach_what_is_allowed_and_fail_at_once_elsewhere() {
    let test = "a29_clients_that_ignore_the_proxy_reach_what_is_allowed_and_fail_at_once_elsewhere";
    let range = range(test);
    range.policy("allow = [\"origin.test\"]", &range.trusting());
    let java = java_store(&range).unwrap_or_default();
    let allowed = clients(test, "https://origin.test/page", &java);
    all_said(&range.run_each(&[], &allowed), "origin /page");
    let versions: Vec<_> = range.internet.seen("request");
    for version in ["HTTP/1.1", "HTTP/2.0"] {
        assert!(
            versions.iter().any(|one| one["version"] == version),
            "{version}"
        );
    }
    for url in ["https://denied.test/page", "https://93.184.216.99/page"] {
        all_refused(&range.run_each(&[], &clients(test, url, &java)));
    }
    assert_eq!(strayed(&range), 0);
    assert!(!range.internet.saw_text("denied.test"));
}

#[test]
fn a30_every_trust_store_knows_who_inspects() {
    let test = "a30_every_trust_store_knows_who_inspects";
    let range = range(test);
    range.policy(
        "",
        "[[network.rule]]\nhost = \"origin.test\"\ntls = \"inspect\"",
    );
    let allowed = clients(test, "https://origin.test/page", "");
    all_said(&range.run_each(&[], &allowed), "origin /page");
    all_refused(&range.run_each(&[], &clients(test, "https://denied.test/page", "")));
    assert_eq!(strayed(&range), 0);
    // They verify: no switch is off, and another authority's word is nothing.
    let switches =
        "env | grep -E 'NODE_TLS_REJECT|SSL_NO_VERIFY|HTTPSVERIFY|INSECURE' || echo none";
    assert_eq!(range.internet.sh(&range.world, switches).ok(), "none");
    let issuer = range.internet.sh(
        &range.world,
        "/usr/bin/python3 get_socket.py https://origin.test/page --issuer",
    );
    assert!(!issuer.ok().contains("Stockade test origins"));
}

#[test]
fn a30_a_java_of_ones_own_trusts_who_inspects_too() {
    let test = "a30_a_java_of_ones_own_trusts_who_inspects_too";
    let range = Range::new();
    let Some(java) = java_of_ones_own(test, &range) else {
        return;
    };
    range.policy(
        "",
        "[[network.rule]]\nhost = \"origin.test\"\ntls = \"inspect\"",
    );
    let mut stockade = range.world.stockade();
    stockade
        .env("JAVA_HOME", &java)
        .args(["run", "--read", "toolchains", "--"])
        .arg(java.join("bin/java"))
        .args(["Get.java", "https://origin.test/page"]);
    assert_eq!(range.outside(&stockade).ok(), "origin /page");
}

/// An installation that shares nothing with the system's, as an archive from a
/// vendor does: its trust store is its own.
fn java_of_ones_own(test: &str, range: &Range) -> Option<PathBuf> {
    if !there(test, "jlink") || !there(test, "/etc/ssl/certs/java/cacerts") {
        return None;
    }
    let home = range.world.home.join("jdk");
    let mut jlink = Command::new("jlink");
    jlink
        .args([
            "--add-modules",
            "java.net.http,jdk.compiler,jdk.crypto.ec",
            "--output",
        ])
        .arg(&home);
    let linked = jlink.output().expect("jlink starts");
    assert!(linked.status.success(), "{linked:?}");
    let store = home.join("lib/security/cacerts");
    let _absent = fs::remove_file(&store).is_err();
    fs::copy("/etc/ssl/certs/java/cacerts", store).expect("it can be copied");
    Some(home)
}

/// What a program sees of trust: the roots of the system and of Java, the
/// variables that name others, and who signed a server's certificate.
const TRUST_SEEN: &str = "cat /etc/ssl/certs/ca-certificates.crt | sha256sum; \
     cat /etc/ssl/certs/java/cacerts 2>/dev/null | sha256sum; \
     env | grep -E 'CA_BUNDLE|CERT|CAINFO|SSL|cafile' | sort";

#[test]
fn a30_without_interception_nothing_is_altered() {
    let range = Range::new();
    range.policy("allow = [\"origin.test\"]", "");
    let inside = range.internet.sh(&range.world, TRUST_SEEN).stdout;
    assert_eq!(inside, range.world.outside_sh(TRUST_SEEN).stdout);
    // Beside a host that is inspected, another one's certificate is its own.
    range.internet.zone("inspected.test", &["93.184.216.34"]);
    range.policy(
        "allow = [\"origin.test\"]",
        "[[network.rule]]\nhost = \"inspected.test\"\ntls = \"inspect\"",
    );
    assert_ne!(range.internet.sh(&range.world, TRUST_SEEN).stdout, inside);
    let issuer = |host: &str| {
        let script = format!(
            "cat \"$SSL_CERT_FILE\" ca.pem > both.pem; SSL_CERT_FILE=both.pem \
             /usr/bin/python3 get_socket.py https://{host}/page --issuer"
        );
        let said = range.internet.sh(&range.world, &script).ok();
        said.contains("issuer Stockade test origins")
    };
    assert!(issuer("origin.test") && !issuer("inspected.test"));
}

/// Policies under which `origin.test` is reached: unread, and inspected.
fn both_ways(range: &Range, mut check: impl FnMut(&str)) {
    range.policy("allow = [\"origin.test\"]", &range.trusting());
    check("passthrough");
    range.policy(
        "",
        "[[network.rule]]\nhost = \"origin.test\"\ntls = \"inspect\"\nwebsocket = true",
    );
    check("inspect");
}

#[test]
fn a_websocket_client_talks_to_the_allowed_host_only() {
    let range = Range::new();
    range.internet.zone("denied.test", &["93.184.216.99"]);
    let proxy = "http://127.0.0.1:3128";
    let talks = |host: &str| {
        let client = |url: String, proxy: &str| {
            let command = format!("/usr/bin/python3 websocket.py {url} {proxy}");
            (command.clone(), command)
        };
        vec![
            client(format!("wss://{host}/ws"), ""),
            client(format!("wss://{host}/ws"), proxy),
            client(format!("ws://{host}/ws"), ""),
        ]
    };
    both_ways(&range, |way| {
        let ended = range.run_each(&[], &talks("origin.test"));
        all_said(&ended, "5 hello|1000 xxxxx");
        let messages = range.internet.seen("ws");
        assert_eq!(messages.len(), 6, "{way}");
        range.internet.forget();
        all_refused(&range.run_each(&[], &talks("denied.test")));
    });
    assert_eq!(strayed(&range), 0);
}

#[test]
fn a_grpc_client_gets_message_and_trailers() {
    let test = "a_grpc_client_gets_message_and_trailers";
    if !there(test, "/usr/lib/python3/dist-packages/grpc") {
        return;
    }
    let range = Range::new();
    range.internet.zone("denied.test", &["93.184.216.99"]);
    let calls = |host: &str| {
        let call = format!("/usr/bin/python3 grpc_unary.py {host}:443");
        vec![
            ("variables".to_owned(), call.clone()),
            ("none".to_owned(), format!("{NO_VARIABLES}{call}")),
        ]
    };
    both_ways(&range, |_| {
        let ended: Vec<Ended> = range.run_each(&[], &calls("origin.test"));
        all_said(&ended, "hello after");
        all_refused(&range.run_each(&[], &calls("denied.test")));
    });
    assert_eq!(strayed(&range), 0);
}
