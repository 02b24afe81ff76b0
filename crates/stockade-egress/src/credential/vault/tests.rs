//! Tests of what a vault puts into requests, refuses, and takes out of
//! responses.

use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use stockade_policy::network::destination::RawHost;
use stockade_policy::network::rules::Target;
use stockade_policy::plan::Rule;
use stockade_policy::value::HostReach;

const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

fn destination(host: &str) -> Destination {
    Destination::new(RawHost::Text(host.as_bytes()), 443).unwrap()
}

fn bearer() -> Attach {
    Attach::Header {
        name: "Authorization".to_owned(),
        format: "Bearer {}".to_owned(),
    }
}

fn binding(mode: Mode, form: Attach) -> Binding {
    Binding {
        rule: Rule {
            id: "credential[0]".to_owned(),
            origin: "stockade.toml:3".to_owned(),
            reason: String::new(),
        },
        name: "github".to_owned(),
        source: Source::Env {
            variable: "TOKEN".to_owned(),
        },
        host: Target::Host {
            reach: HostReach::Exact,
            name: "api.test".to_owned(),
        },
        ports: Vec::new(),
        methods: Vec::new(),
        paths: Vec::new(),
        mode,
        form,
        variable: (mode == Mode::Replace).then(|| "GITHUB_TOKEN".to_owned()),
        scrub: true,
        plaintext: false,
        expires_unix: None,
    }
}

fn value(text: &str) -> SecretSource {
    SecretSource::Value(SecretText::new(text.to_owned()))
}

fn vault(bindings: &[Binding]) -> Vault {
    let secrets = bindings.iter().map(|_| value(SECRET)).collect();
    Vault::new(bindings, secrets, &nobody(), None).unwrap()
}

struct Nobody;

impl Fetch for Nobody {
    fn fetch(&self, _: http::Request<Bytes>) -> Fetched<'_> {
        Box::pin(async { Err("nobody answers".to_owned()) })
    }
}

fn nobody() -> Rc<dyn Fetch> {
    Rc::new(Nobody)
}

struct Sent {
    headers: HeaderMap,
    path: String,
    query: Option<String>,
    applied: Applied,
}

struct Request<'a> {
    host: &'a str,
    method: Method,
    target: &'a str,
    headers: &'a [(&'a str, &'a str)],
    transport: Transport,
}

impl<'a> Request<'a> {
    fn get(host: &'a str, target: &'a str, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self {
            host,
            method: Method::GET,
            target,
            headers,
            transport: Transport::VerifiedTls,
        }
    }

    fn send(&self, vault: &Vault) -> Result<Sent, Denial> {
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let (path, query) = match self.target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (self.target, None),
        };
        let (mut path, mut query) = (path.to_owned(), query);
        let applied = finish(vault.apply(Outgoing {
            destination: &destination(self.host),
            transport: self.transport,
            method: &self.method,
            headers: &mut headers,
            path: &mut path,
            query: &mut query,
            now_unix: 1000,
        }))?;
        Ok(Sent {
            headers,
            path,
            query,
            applied,
        })
    }

    fn code(&self, vault: &Vault) -> &'static str {
        match self.send(vault) {
            Ok(_) => "sent",
            Err(denial) => denial.code,
        }
    }
}

fn finish<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

#[test]
fn attach_needs_nothing_from_the_client() {
    let vault = vault(&[binding(Mode::Attach, bearer())]);
    let sent = Request::get("api.test", "/a", &[]).send(&vault).unwrap();
    assert_eq!(sent.headers["authorization"], format!("Bearer {SECRET}"));
    assert_eq!(sent.applied.credentials, [(0, "github".to_owned())]);
    assert!(vault.placeholders().is_empty());
    let other = Request::get("other.test", "/a", &[]).send(&vault).unwrap();
    assert!(other.headers.is_empty() && other.applied.credentials.is_empty());
}

#[test]
fn row_30_a_host_header_selects_no_credential() {
    let vault = vault(&[binding(Mode::Attach, bearer())]);
    let spoofed = [("host", "api.test")];
    let sent = Request::get("evil.test", "/", &spoofed)
        .send(&vault)
        .unwrap();
    assert!(!sent.headers.contains_key("authorization"));
    let real = Request::get("api.test", "/", &spoofed)
        .send(&vault)
        .unwrap();
    assert!(real.headers.contains_key("authorization"));
}

#[test]
fn row_41_a_foreign_credential_is_refused_on_a_bound_host() {
    for mode in [Mode::Attach, Mode::Replace] {
        let vault = vault(&[binding(mode, bearer())]);
        for header in [
            ("authorization", "Bearer mine"),
            ("authorization", "Basic bTpt"),
            ("x-api-key", "mine"),
            ("cookie", "session=mine"),
            ("private-token", "mine"),
        ] {
            let headers = [header];
            let denied = Request::get("api.test", "/", &headers).send(&vault);
            let denial = denied.map(|_| ()).unwrap_err();
            assert_eq!(denial.code, "foreign-credential", "{header:?}");
            assert_eq!(denial.rule, "credential[0]");
            let elsewhere = Request::get("other.test", "/", &headers);
            assert_eq!(elsewhere.code(&vault), "sent", "{header:?}");
        }
        for query in ["/?access_token=mine", "/?a=1&Api%5fKey=mine", "/?token=x"] {
            let denied = Request::get("api.test", query, &[]);
            assert_eq!(denied.code(&vault), "foreign-credential", "{query}");
        }
        for query in ["/?q=token&page_token=3", "/?token="] {
            assert_eq!(Request::get("api.test", query, &[]).code(&vault), "sent");
        }
    }
}

#[test]
fn a_foreign_credential_is_refused_on_paths_without_the_binding_too() {
    let mut bound = binding(Mode::Attach, bearer());
    bound.paths = vec!["/repos/acme/**".to_owned()];
    bound.methods = vec!["GET".to_owned()];
    let vault = vault(&[bound]);
    let inside = Request::get("api.test", "/repos/acme/site", &[])
        .send(&vault)
        .unwrap();
    assert!(inside.headers.contains_key("authorization"));
    let outside = Request::get("api.test", "/user", &[]).send(&vault).unwrap();
    assert!(!outside.headers.contains_key("authorization"));
    let mut post = Request::get("api.test", "/repos/acme/site", &[]);
    post.method = Method::POST;
    assert!(
        !post
            .send(&vault)
            .unwrap()
            .headers
            .contains_key("authorization")
    );
    let foreign = [("authorization", "Bearer mine")];
    let denied = Request::get("api.test", "/user", &foreign);
    assert_eq!(denied.code(&vault), "foreign-credential");
}

#[test]
fn cookies_of_the_same_host_come_back_and_others_do_not() {
    let vault = vault(&[binding(Mode::Attach, bearer())]);
    let mut response = HeaderMap::new();
    response.append("set-cookie", "lb=abc; Path=/; Secure".parse().unwrap());
    vault.remember_cookies(&destination("api.test"), &response);
    let known = [("cookie", "lb=abc")];
    assert_eq!(Request::get("api.test", "/", &known).code(&vault), "sent");
    for cookie in ["lb=abd", "lb=abc; session=mine", "lb=abc;lb2=x"] {
        let denied = Request::get("api.test", "/", &[("cookie", cookie)]).code(&vault);
        assert_eq!(denied, "foreign-credential", "{cookie}");
    }
}

#[test]
fn row_42_a_placeholder_works_in_its_place_only() {
    let mut bound = binding(Mode::Replace, bearer());
    bound.paths = vec!["/repos/**".to_owned()];
    let vault = vault(&[bound]);
    let [(variable, stand_in)] = &vault.placeholders()[..] else {
        panic!("one placeholder");
    };
    assert_eq!(
        (variable.as_str(), stand_in.len()),
        ("GITHUB_TOKEN", SECRET.len())
    );
    assert!(stand_in.starts_with("ghp_") && stand_in != SECRET);
    let bearer = format!("Bearer {stand_in}");
    let headers = [("authorization", bearer.as_str())];
    let good = Request::get("api.test", "/repos/a", &headers);
    let sent = good.send(&vault).unwrap();
    assert_eq!(sent.headers["authorization"], format!("Bearer {SECRET}"));

    let basic = format!("Basic {}", STANDARD.encode(format!("user:{stand_in}")));
    let query = format!("/repos/a?q={stand_in}");
    let in_path = format!("/repos/{stand_in}");
    let encoded: String = stand_in
        .bytes()
        .map(|byte| format!("%{byte:02x}"))
        .collect();
    let encoded = format!("/x?q={encoded}");
    for (host, target, headers) in [
        ("evil.test", "/", vec![("authorization", bearer.as_str())]),
        (
            "api.test",
            "/user",
            vec![("authorization", bearer.as_str())],
        ),
        (
            "api.test",
            "/repos/a",
            vec![("authorization", basic.as_str())],
        ),
        ("api.test", "/repos/a", vec![("x-note", bearer.as_str())]),
        ("evil.test", "/", vec![("x-note", basic.as_str())]),
        ("api.test", query.as_str(), vec![]),
        ("evil.test", in_path.as_str(), vec![]),
        ("evil.test", encoded.as_str(), vec![]),
    ] {
        let denied = Request::get(host, target, &headers).send(&vault);
        let denial = denied.map(|_| ()).unwrap_err();
        assert_eq!(
            denial.code, "placeholder-off-binding",
            "{host} {target} {headers:?}"
        );
        assert_eq!(denial.rule, "credential[0]", "{}", denial.reason);
    }
}

#[test]
fn a_placeholder_in_a_body_is_found_over_borders() {
    let vault = vault(&[binding(Mode::Replace, bearer())]);
    let stand_in = vault.placeholders().remove(0).1;
    let encoded = STANDARD.encode(format!("x{stand_in}y"));
    for body in [
        format!("a {stand_in} b"),
        format!("{{\"f\":\"{encoded}\"}}"),
    ] {
        for size in [1, 7, 4096] {
            let mut sent = Request::get("evil.test", "/", &[]).send(&vault).unwrap();
            assert!(sent.applied.checks_body());
            let mut pieces = body.as_bytes().chunks(size);
            let denial = pieces.find_map(|piece| sent.applied.check_body(piece).err());
            let denial = denial.expect("it is found");
            assert_eq!(denial.code, "placeholder-off-binding");
        }
    }
    let mut sent = Request::get("evil.test", "/", &[]).send(&vault).unwrap();
    assert_eq!(sent.applied.check_body(b"nothing here"), Ok(()));
}

#[test]
fn without_its_placeholder_a_request_goes_out_without_the_secret() {
    let vault = vault(&[binding(Mode::Replace, bearer())]);
    let sent = Request::get("api.test", "/", &[]).send(&vault).unwrap();
    assert!(sent.headers.is_empty() && sent.applied.credentials.is_empty());
}

#[test]
fn one_variable_serves_several_forms() {
    let basic = Attach::Basic {
        user: String::new(),
    };
    let vault = vault(&[
        binding(Mode::Replace, bearer()),
        binding(Mode::Replace, basic),
    ]);
    let stand_in = vault.placeholders().remove(0).1;
    assert_eq!(vault.placeholders().len(), 1);
    let token = format!("Bearer {stand_in}");
    let sent = Request::get("api.test", "/", &[("authorization", &token)]).send(&vault);
    assert_eq!(
        sent.unwrap().headers["authorization"],
        format!("Bearer {SECRET}")
    );
    let pair = format!("Basic {}", STANDARD.encode(format!("me:{stand_in}")));
    let sent = Request::get("api.test", "/", &[("authorization", &pair)]).send(&vault);
    let wanted = format!(
        "Basic {}",
        STANDARD.encode(format!("x-access-token:{SECRET}"))
    );
    assert_eq!(sent.unwrap().headers["authorization"], wanted);
}

#[test]
fn row_46_plaintext_gets_no_credential_unless_the_binding_says_so() {
    let mut bound = binding(Mode::Attach, bearer());
    let mut plain = Request::get("api.test", "/", &[]);
    plain.transport = Transport::Plaintext;
    assert_eq!(plain.code(&vault(&[bound.clone()])), "plaintext-credential");
    bound.plaintext = true;
    assert_eq!(plain.code(&vault(&[bound])), "sent");
}

#[test]
fn an_expired_binding_sends_nothing() {
    let mut bound = binding(Mode::Attach, bearer());
    bound.expires_unix = Some(1001);
    let request = Request::get("api.test", "/", &[]);
    assert_eq!(request.code(&vault(&[bound.clone()])), "sent");
    bound.expires_unix = Some(1000);
    assert_eq!(request.code(&vault(&[bound])), "expired");
}

#[test]
fn a_secret_in_a_body_is_planned() {
    let form = Attach::Json {
        pointer: "/token".to_owned(),
    };
    let vault = vault(&[binding(Mode::Attach, form)]);
    let sent = Request::get("api.test", "/", &[("content-type", "application/json")]);
    let mut sent = sent.send(&vault).unwrap();
    let plan = sent.applied.body.take().expect("a plan");
    let body = plan
        .rewrite(&mut sent.headers, Bytes::from_static(b"{\"a\":1}"))
        .unwrap();
    assert_eq!(body, format!("{{\"token\":\"{SECRET}\",\"a\":1}}"));
}

#[test]
fn placeholders_in_the_path_and_query_are_replaced() {
    let vault = vault(&[
        binding(Mode::Replace, Attach::Path),
        binding(
            Mode::Replace,
            Attach::Query {
                name: "key".to_owned(),
            },
        ),
    ]);
    let stand_in = vault.placeholders().remove(0).1;
    let target = format!("/bot{stand_in}/x?key={stand_in}");
    let sent = Request::get("api.test", &target, &[]).send(&vault).unwrap();
    assert_eq!(sent.path, format!("/bot{SECRET}/x"));
    assert_eq!(sent.query, Some(format!("key={SECRET}")));
}

#[test]
fn row_47_a_secret_that_could_end_a_header_is_refused() {
    let bound = [binding(Mode::Attach, bearer())];
    for bad in [
        "",
        "abcdefgh\r\nX: y",
        "abcdefgh\n",
        "abcdefgh\0",
        " abcdefgh",
        "abc1",
    ] {
        let denied = Vault::new(&bound, vec![value(bad)], &nobody(), None);
        let reason = denied.map(|_| ()).unwrap_err();
        assert!(reason.contains("credential `github`"), "{reason}");
        assert!(bad.is_empty() || !reason.contains(bad), "{reason}");
    }
    let long = "a".repeat(SECRET_BYTES_MAX + 1);
    assert!(Vault::new(&bound, vec![value(&long)], &nobody(), None).is_err());
    assert!(Vault::new(&bound, Vec::new(), &nobody(), None).is_err());
}

#[test]
fn a_reload_keeps_placeholders_and_still_scrubs_what_was() {
    let bound = [binding(Mode::Replace, bearer())];
    let before = vault(&bound);
    let after = Vault::new(
        &bound,
        vec![value("ghp_another0secret0value")],
        &nobody(),
        Some(&before),
    )
    .unwrap();
    assert_eq!(before.placeholders(), after.placeholders());
    let mut scrubber = after.scrubber(&destination("api.test")).unwrap().unwrap();
    for secret in [SECRET, "ghp_another0secret0value"] {
        let clean = scrubber.whole(secret.as_bytes()).expect("it is found");
        assert!(clean.iter().all(|byte| *byte == b'*'));
    }
}

#[test]
fn responses_are_scrubbed_where_a_binding_says_so() {
    let mut bound = binding(Mode::Attach, bearer());
    let scrubbed = |vault: &Vault, host: &str| {
        let scrubber = vault.scrubber(&destination(host)).unwrap();
        scrubber.is_some()
    };
    assert!(scrubbed(&vault(&[bound.clone()]), "api.test"));
    assert!(!scrubbed(&vault(&[bound.clone()]), "other.test"));
    bound.scrub = false;
    assert!(!scrubbed(&vault(&[bound]), "api.test"));
}

#[test]
fn all_secrets_can_be_searched_for() {
    let vault = vault(&[binding(Mode::Attach, bearer())]);
    let secrets = vault.secrets().unwrap();
    assert!(secrets.is_in(format!("..{SECRET}").as_bytes()));
    assert!(!secrets.is_in(b"..ghp_"));
}

const AWS: &str =
    "AKIAEXAMPLE123456789:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY:session+token/value==";

fn signing(mode: Mode, region: Option<&str>) -> Vault {
    let form = Attach::SigV4 {
        region: region.map(str::to_owned),
        service: Some("s3".to_owned()),
    };
    Vault::new(&[binding(mode, form)], vec![value(AWS)], &nobody(), None).unwrap()
}

#[test]
fn a_request_is_signed_anew() {
    let vault = signing(Mode::Attach, Some("eu-west-1"));
    let sent = Request::get("api.test", "/bucket/a%20b?list-type=2", &[]);
    let sent = sent.send(&vault).unwrap();
    let authorization = sent.headers["authorization"].to_str().unwrap();
    let wanted = "AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE123456789/19700101/eu-west-1/s3/\
                  aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date;\
                  x-amz-security-token, Signature=";
    assert!(authorization.starts_with(wanted), "{authorization}");
    assert_eq!(
        sent.headers["x-amz-security-token"],
        "session+token/value=="
    );
    let mut scrubber = vault.scrubber(&destination("api.test")).unwrap().unwrap();
    for secret in [
        "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        "session+token/value==",
    ] {
        assert!(scrubber.whole(secret.as_bytes()).is_some());
    }
}

#[test]
fn a_signature_of_the_placeholder_is_replaced_and_any_other_refused() {
    let vault = signing(Mode::Replace, None);
    let stand_in = vault.placeholders().remove(0).1;
    assert!(stand_in.starts_with("AKIA") && stand_in.len() == 20);
    let signed = |id: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential={id}/20261129/eu-west-1/s3/aws4_request, \
             SignedHeaders=host, Signature=00"
        )
    };
    let (good, foreign) = (signed(&stand_in), signed("AKIAOTHER"));
    let headers = [
        ("authorization", good.as_str()),
        ("x-amz-security-token", "dummy"),
    ];
    let sent = Request::get("api.test", "/", &headers)
        .send(&vault)
        .unwrap();
    let authorization = sent.headers["authorization"].to_str().unwrap();
    assert!(authorization.contains("AKIAEXAMPLE123456789/19700101/eu-west-1"));
    assert_eq!(
        sent.headers["x-amz-security-token"],
        "session+token/value=="
    );
    let headers = [("authorization", foreign.as_str())];
    let denied = Request::get("api.test", "/", &headers).code(&vault);
    assert_eq!(denied, "foreign-credential");
    let elsewhere = [("authorization", good.as_str())];
    let denied = Request::get("evil.test", "/", &elsewhere).code(&vault);
    assert_eq!(denied, "placeholder-off-binding");
    let presigned = Request::get("api.test", "/?X-Amz-Signature=00", &[]);
    assert_eq!(presigned.code(&vault), "foreign-credential");
}

#[test]
fn a_secret_that_cannot_be_minted_refuses_the_request() {
    let mut bound = binding(Mode::Attach, bearer());
    bound.source = Source::OAuth2 {
        token_url: "https://auth.test/token".to_owned(),
        client_id: "id".to_owned(),
        client_secret: Some(Box::new(Source::Env {
            variable: "X".to_owned(),
        })),
        refresh_token: None,
        scopes: Vec::new(),
    };
    let parts = SecretSource::Mint(vec![SecretText::new("client-secret".to_owned())]);
    let vault = Vault::new(&[bound.clone()], vec![parts], &nobody(), None).unwrap();
    let denied = Request::get("api.test", "/", &[]).send(&vault);
    let denial = denied.map(|_| ()).unwrap_err();
    assert_eq!(denial.code, "credential-unavailable");
    assert!(
        denial.reason.contains("nobody answers"),
        "{}",
        denial.reason
    );
    assert!(
        Vault::new(
            &[bound],
            vec![SecretSource::Mint(Vec::new())],
            &nobody(),
            None
        )
        .is_err()
    );
}
