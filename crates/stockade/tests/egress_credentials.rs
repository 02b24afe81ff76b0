//! Credentials through the product: every source, every place in a request,
//! and what is minted, against origins that write down what they got.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::Value;
use stockade_testkit::net::{Internet, ORIGIN};
use stockade_testkit::{Finished, World, has_program, skip};

/// A world in which everything below `test` that is named here is there.
fn internet(names: &[&str]) -> (World, Internet) {
    let world = World::new();
    let internet = Internet::start(&world);
    for name in names {
        internet.zone(name, &[ORIGIN]);
    }
    (world, internet)
}

/// A shell script inside, with variables of the user outside.
fn sh(world: &World, internet: &Internet, variables: &[(&str, &str)], script: &str) -> Finished {
    let mut command = world.stockade();
    command.args(["run", "--", "sh", "-c", script]);
    command.envs(variables.iter().copied());
    let mut command = internet.on_machine(&command);
    Finished::of(command.stdin(Stdio::null()).output().expect("it starts"))
}

/// A file that only its owner reads.
fn private(world: &World, name: &str, content: &[u8]) {
    let path = world.write(name, content);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// The only request that an origin of this name got.
#[track_caller]
fn request(internet: &Internet, name: &str) -> Value {
    let mut seen = requests(internet, name);
    assert_eq!(seen.len(), 1, "{name}: {seen:?}");
    seen.remove(0)
}

fn requests(internet: &Internet, name: &str) -> Vec<Value> {
    let mut seen = internet.seen("request");
    seen.retain(|one| one["sni"] == name);
    seen
}

fn header<'a>(request: &'a Value, name: &str) -> Option<&'a str> {
    let headers = request["headers"].as_array()?;
    let pair = headers.iter().find(|pair| pair[0] == name)?;
    pair[1].as_str()
}

fn credential(name: &str, host: &str, from: &str, place: &str) -> String {
    format!("[[credential]]\nname = \"{name}\"\nhost = \"{host}\"\nfrom = {{ {from} }}\n{place}\n")
}

#[test]
fn secrets_of_each_source_reach_their_host_and_nothing_else() {
    let names = [
        "env.test",
        "file.test",
        "command.test",
        "keyring.test",
        "none.test",
    ];
    let (world, internet) = internet(&names);
    private(&world, "token", b"secret-of-file\n");
    let mut set = world.stockade();
    set.args(["secret", "set", "kept"]).stdin(Stdio::piped());
    let mut set = set
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    stockade_testkit::net::feed(&mut set, b"secret-of-keyring");
    assert!(set.wait().unwrap().success());
    let bearer = "attach = { header = \"Authorization\", format = \"Bearer {}\" }";
    let credentials = [
        ("env.test", "env = \"MY_TOKEN\"".to_owned()),
        ("file.test", "file = \"~/token\"".to_owned()),
        (
            "command.test",
            "command = [\"/bin/echo\", \"secret-of-command\"]".to_owned(),
        ),
        ("keyring.test", "keyring = \"kept\"".to_owned()),
    ];
    let rest: String = credentials
        .iter()
        .map(|(host, from)| credential(host, host, from, bearer))
        .collect();
    internet.policy(&world, "allow = [\"*.test\"]", &rest);
    let script = "for host in env file command keyring none; do \
        curl -sS https://$host.test/leak/plain; curl -sS https://$host.test/x -o /dev/null; done; \
        env; cat ~/token 2>&1";
    let finished = sh(&world, &internet, &[("MY_TOKEN", "secret-of-env")], script);
    assert!(!finished.stdout.contains("secret-of-"), "{finished:?}");
    for (host, source) in [
        ("env.test", "env"),
        ("file.test", "file"),
        ("command.test", "command"),
        ("keyring.test", "keyring"),
    ] {
        let expected = format!("Bearer secret-of-{source}");
        let seen = requests(&internet, host);
        assert!(!seen.is_empty(), "{host} {finished:?}");
        for one in seen {
            assert_eq!(
                header(&one, "authorization"),
                Some(expected.as_str()),
                "{host}"
            );
        }
    }
    for one in requests(&internet, "none.test") {
        assert_eq!(header(&one, "authorization"), None);
    }
    let log = world.stockade().args(["log", "--json"]).output().unwrap();
    let log = String::from_utf8(log.stdout).unwrap();
    assert!(
        !log.contains("secret-of-") && log.contains("credential_used"),
        "{log}"
    );
}

#[test]
fn a_secret_is_put_where_the_policy_says() {
    let names = [
        "header.test",
        "basic.test",
        "query.test",
        "form.test",
        "json.test",
        "path.test",
        "git.test",
    ];
    let (world, internet) = internet(&names);
    let rest: String = [
        ("header.test", "attach = { header = \"X-Api-Key\" }"),
        ("basic.test", "attach = { basic = \"someone\" }"),
        ("query.test", "attach = { query = \"key\" }"),
        ("form.test", "attach = { form = \"api_key\" }"),
        ("json.test", "attach = { json = \"/auth/token\" }"),
        (
            "path.test",
            "replace = { path = true }\nvariable = \"PLACEHOLDER\"",
        ),
        ("git.test", "attach = { basic = \"x-access-token\" }"),
    ]
    .iter()
    .map(|(host, place)| credential(host, host, "env = \"MY_TOKEN\"", place))
    .collect();
    let network = "allow = [\"header.test\", \"basic.test\", \"query.test\", \"form.test\", \"json.test\", \"path.test\"]\n\
        [[network.git]]\nhost = \"git.test\"\nread = [\"git/**\"]\n";
    internet.policy(&world, network, &rest);
    let bare = internet.git_root().join("site.git");
    let made = Command::new("git")
        .args(["init", "-q", "--bare"])
        .arg(&bare)
        .status();
    assert!(made.unwrap().success());
    let script = "\
        curl -sS https://header.test/x; curl -sS https://basic.test/x; \
        curl -sS 'https://query.test/x?a=1'; curl -sS -d a=1 https://form.test/x; \
        curl -sS -H 'Content-Type: application/json' -d '{\"a\":1,\"auth\":{\"b\":2}}' https://json.test/x; \
        curl -sS https://path.test/bot$PLACEHOLDER/send; \
        git ls-remote https://git.test/git/site.git && echo read";
    let finished = sh(
        &world,
        &internet,
        &[("MY_TOKEN", "s3cret-value-0815")],
        script,
    );
    assert!(finished.stdout.contains("read"), "{finished:?}");
    assert!(!finished.stdout.contains("0815"), "{finished:?}");
    let secret = "s3cret-value-0815";
    let seen = request(&internet, "header.test");
    assert_eq!(header(&seen, "x-api-key"), Some(secret));
    let seen = request(&internet, "basic.test");
    // someone:s3cret-value-0815
    assert_eq!(
        header(&seen, "authorization"),
        Some("Basic c29tZW9uZTpzM2NyZXQtdmFsdWUtMDgxNQ==")
    );
    let seen = request(&internet, "query.test");
    assert_eq!(seen["target"], format!("/x?a=1&key={secret}"));
    let seen = request(&internet, "form.test");
    assert_eq!(seen["body"], format!("a=1&api_key={secret}"));
    let seen = request(&internet, "json.test");
    let body: Value = serde_json::from_str(seen["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"a": 1, "auth": {"b": 2, "token": secret}})
    );
    let seen = request(&internet, "path.test");
    assert_eq!(seen["target"], format!("/bot{secret}/send"));
    let seen = requests(&internet, "git.test");
    assert!(!seen.is_empty());
    for one in seen {
        let value = header(&one, "authorization").unwrap_or_default();
        assert_eq!(value, "Basic eC1hY2Nlc3MtdG9rZW46czNjcmV0LXZhbHVlLTA4MTU=");
    }
}

const BEARER: &str = "attach = { header = \"Authorization\", format = \"Bearer {}\" }";

#[test]
fn tokens_are_minted_narrow_once_and_anew_before_they_end() {
    let (world, internet) = internet(&["api.test", "short.test", "refresh.test", "id.test"]);
    let client =
        "client_id = \"me\", client_secret = { env = \"CLIENT\" }, scopes = [\"read\", \"list\"]";
    let from = |life: u32| {
        format!("oauth2 = {{ token_url = \"https://id.test/oauth/token/{life}\", {client} }}")
    };
    let refresh = "oauth2 = { token_url = \"https://id.test/oauth/token/5\", client_id = \"me\", \
        refresh_token = { env = \"REFRESH\" } }";
    let rest = credential("long", "api.test", &from(1000), BEARER)
        + &credential("short", "short.test", &from(5), BEARER)
        + &credential("refresh", "refresh.test", refresh, BEARER);
    let network = "allow = [\"api.test\", \"short.test\", \"refresh.test\"]";
    internet.policy(&world, network, &rest);
    let script = "curl -sS https://api.test/leak/plain; curl -sS https://api.test/2; \
        curl -sS https://short.test/1; curl -sS https://refresh.test/1; sleep 5; \
        curl -sS https://short.test/2; curl -sS https://refresh.test/2; \
        curl -s -o /dev/null -w '%{http_connect}\\n' https://id.test/";
    let variables = [("CLIENT", "client-secret"), ("REFRESH", "refresh-0")];
    let finished = sh(&world, &internet, &variables, script);
    assert!(
        finished.stdout.ends_with("403\n"),
        "the place that mints is no host of the sandbox: {finished:?}"
    );
    assert!(!finished.stdout.contains("minted-token"), "{finished:?}");
    let tokens = |host: &str| -> Vec<String> {
        let seen = requests(&internet, host);
        seen.iter()
            .map(|one| header(one, "authorization").unwrap_or_default().to_owned())
            .collect()
    };
    let long = tokens("api.test");
    assert_eq!(long.len(), 2, "{finished:?}");
    assert!(
        long[0].starts_with("Bearer minted-token-") && long[0] == long[1],
        "{long:?}"
    );
    for host in ["short.test", "refresh.test"] {
        let tokens = tokens(host);
        assert_eq!(tokens.len(), 2, "{tokens:?}");
        assert_ne!(tokens[0], tokens[1], "{host}");
    }
    let asked = requests(&internet, "id.test");
    let narrow = asked
        .iter()
        .filter(|one| one["body"] == "grant_type=client_credentials&scope=read%20list");
    // me:client-secret
    let narrow =
        narrow.filter(|one| header(one, "authorization") == Some("Basic bWU6Y2xpZW50LXNlY3JldA=="));
    assert_eq!(narrow.count(), 3, "{asked:?}");
    let refreshed: Vec<&str> = asked
        .iter()
        .filter_map(|one| {
            one["body"]
                .as_str()?
                .strip_prefix("grant_type=refresh_token&refresh_token=")
        })
        .collect();
    assert_eq!(refreshed.len(), 2, "{asked:?}");
    assert!(refreshed[0].starts_with("refresh-0&"), "{refreshed:?}");
    assert!(
        !refreshed[1].starts_with("refresh-0&"),
        "the new one is used: {refreshed:?}"
    );
}

#[test]
fn a_secret_that_cannot_be_minted_denies_the_request() {
    let (world, internet) = internet(&["api.test", "gone.test", "id.test", "inside.test"]);
    internet.zone("private.test", &["10.0.0.1"]);
    let from = |url: &str| {
        format!(
            "oauth2 = {{ token_url = \"{url}\", client_id = \"me\", client_secret = {{ env = \"CLIENT\" }} }}"
        )
    };
    let rest = credential(
        "bad",
        "api.test",
        &from("https://id.test/status/500"),
        BEARER,
    ) + &credential(
        "gone",
        "gone.test",
        &from("https://nowhere.test/token"),
        BEARER,
    ) + &credential(
        "inside",
        "inside.test",
        &from("https://private.test/oauth/token/5"),
        BEARER,
    );
    internet.policy(
        &world,
        "allow = [\"api.test\", \"gone.test\", \"inside.test\"]",
        &rest,
    );
    let script = "for host in api gone inside; do \
        curl -sS -D - -o /dev/null https://$host.test/x | grep -i x-sandbox-denied; done";
    let finished = sh(&world, &internet, &[("CLIENT", "client-secret")], script);
    assert_eq!(
        finished
            .stdout
            .to_ascii_lowercase()
            .matches("credential-unavailable")
            .count(),
        3,
        "{finished:?}"
    );
    for host in ["api.test", "gone.test", "inside.test"] {
        assert!(requests(&internet, host).is_empty(), "{host}");
    }
    let log = world
        .stockade()
        .args(["log", "--network"])
        .output()
        .unwrap();
    let log = String::from_utf8(log.stdout).unwrap();
    assert!(
        log.contains("credential-unavailable") && !log.contains("client-secret"),
        "{log}"
    );
}

#[test]
fn tokens_of_an_app_are_for_named_repositories_and_permissions() {
    if !has_program("openssl") {
        return skip("app_tokens", "openssl", "there is no openssl on PATH");
    }
    let (world, internet) = internet(&["api.test", "forge.test"]);
    let key = Command::new("openssl")
        .args(["genrsa", "2048"])
        .stderr(Stdio::null())
        .output();
    private(&world, "app.pem", &key.unwrap().stdout);
    let from = "github_app = { api_url = \"https://forge.test\", app_id = \"17\", installation_id = \"42\", \
        private_key = { file = \"~/app.pem\" }, repositories = [\"acme/site\"], permissions = { contents = \"read\" } }";
    internet.policy(
        &world,
        "allow = [\"api.test\"]",
        &credential("app", "api.test", from, BEARER),
    );
    let script = "curl -sS https://api.test/1; curl -sS https://api.test/2";
    let finished = sh(&world, &internet, &[], script);
    assert_eq!(finished.stdout, "origin /1\norigin /2\n", "{finished:?}");
    for one in requests(&internet, "api.test") {
        assert_eq!(header(&one, "authorization"), Some("Bearer minted-token-1"));
    }
    let asked = request(&internet, "forge.test");
    assert_eq!(asked["target"], "/app/installations/42/access_tokens");
    let body: Value = serde_json::from_str(asked["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"repositories": ["site"], "permissions": {"contents": "read"}})
    );
    assert!(
        header(&asked, "authorization")
            .unwrap()
            .starts_with("Bearer eyJ")
    );
}

#[test]
fn requests_are_signed_with_keys_of_a_narrowed_role() {
    let (world, internet) = internet(&["s3.test", "sts.test"]);
    let from = "aws_sts = { endpoint = \"https://sts.test/sts\", region = \"eu-central-1\", role = \"arn:aws:iam::1:role/x\", \
        policy = \"{}\", access_key_id = { env = \"KEY_ID\" }, secret_access_key = { env = \"KEY\" } }";
    let place = "attach = { sigv4 = { region = \"eu-central-1\", service = \"s3\" } }";
    internet.policy(
        &world,
        "allow = [\"s3.test\"]",
        &credential("aws", "s3.test", from, place),
    );
    let variables = [
        ("KEY_ID", "AKIAEXAMPLE0000000000"),
        ("KEY", "own/secret+key"),
    ];
    let finished = sh(
        &world,
        &internet,
        &variables,
        "curl -sS https://s3.test/bucket/object",
    );
    assert_eq!(finished.stdout, "origin /bucket/object\n", "{finished:?}");
    let asked = request(&internet, "sts.test");
    let body = asked["body"].as_str().unwrap();
    for part in [
        "Action=AssumeRole&",
        "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fx",
        "&Policy=%7B%7D",
        "DurationSeconds=900",
    ] {
        assert!(body.contains(part), "{body}");
    }
    let own = header(&asked, "authorization").unwrap();
    assert!(own.contains("Credential=AKIAEXAMPLE0000000000/"), "{own}");
    let signed = request(&internet, "s3.test");
    let signature = header(&signed, "authorization").unwrap();
    assert!(
        signature.contains("Credential=ASIAMINTED1/")
            && signature.contains("/eu-central-1/s3/aws4_request"),
        "{signature}"
    );
    assert_eq!(
        header(&signed, "x-amz-security-token"),
        Some("minted-token-1")
    );
    assert!(!internet.saw_text("own/secret+key") && !internet.saw_text("minted/secret+key"));
}
