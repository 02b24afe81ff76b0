//! Tests of minted secrets, against servers that answer what the test says.

use super::*;
use std::cell::RefCell;
use std::process::Command;

use crate::credential::Fetched;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

/// The place that mints: says what it is told, and keeps what it was asked.
#[derive(Default)]
struct Server {
    answers: RefCell<Vec<(u16, String)>>,
    asked: RefCell<Vec<http::Request<Bytes>>>,
}

impl Fetch for Server {
    fn fetch(&self, request: http::Request<Bytes>) -> super::super::Fetched<'_> {
        let answer: Fetched<'_> = Box::pin(async move {
            self.asked.borrow_mut().push(request);
            tokio::task::yield_now().await;
            let (status, body) = self.answers.borrow_mut().pop().ok_or("down")?;
            let response = http::Response::builder().status(status);
            Ok(response.body(Bytes::from(body)).unwrap())
        });
        answer
    }
}

impl Server {
    fn answering(answers: &[(u16, &str)]) -> Rc<Self> {
        let answers = answers.iter().rev();
        Rc::new(Self {
            answers: RefCell::new(
                answers
                    .map(|(status, body)| (*status, (*body).to_owned()))
                    .collect(),
            ),
            asked: RefCell::default(),
        })
    }

    fn body(&self, number: usize) -> String {
        String::from_utf8(self.asked.borrow()[number].body().to_vec()).unwrap()
    }
}

fn env() -> Box<Source> {
    Box::new(Source::Env {
        variable: "X".to_owned(),
    })
}

fn secret(text: &str) -> SecretText {
    SecretText::new(text.to_owned())
}

fn oauth2(has_secret: bool, has_refresh: bool) -> Source {
    Source::OAuth2 {
        token_url: "https://auth.test/token".to_owned(),
        client_id: "my id".to_owned(),
        client_secret: has_secret.then(env),
        refresh_token: has_refresh.then(env),
        scopes: vec!["read".to_owned(), "write:x".to_owned()],
    }
}

fn finish<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

fn shown(result: Result<SecretText, String>) -> Result<String, String> {
    result.map(|secret| secret.reveal().to_owned())
}

#[test]
fn a_token_is_minted_once_and_renewed_before_its_end() {
    let one = r#"{"access_token":"token-one","token_type":"Bearer","expires_in":1000}"#;
    let two = r#"{"access_token":"token-two","token_type":"bearer","expires_in":1000}"#;
    let server = Server::answering(&[(200, one), (200, two)]);
    let minted = Minted::new(&oauth2(true, false), vec![secret("s/c")], server.clone()).unwrap();
    let now = |second| shown(finish(minted.current(second)));
    assert_eq!(now(0).as_deref(), Ok("token-one"));
    assert_eq!(now(799).as_deref(), Ok("token-one"));
    assert_eq!(now(800).as_deref(), Ok("token-two"));
    assert_eq!(server.asked.borrow().len(), 2);
    let request = &server.asked.borrow()[0];
    assert_eq!(
        request.headers()["authorization"],
        format!("Basic {}", STANDARD.encode("my%20id:s%2Fc"))
    );
    assert!(request.headers()["authorization"].is_sensitive());
    drop(request.clone());
}

#[test]
fn what_is_asked_for_is_narrowed() {
    let answer = r#"{"access_token":"token-one","token_type":"Bearer"}"#;
    let server = Server::answering(&[(200, answer)]);
    let minted = Minted::new(&oauth2(true, false), vec![secret("s")], server.clone()).unwrap();
    assert!(finish(minted.current(0)).is_ok());
    assert_eq!(
        server.body(0),
        "grant_type=client_credentials&scope=read%20write%3Ax"
    );
}

#[test]
fn many_who_wait_ask_once() {
    let answer = r#"{"access_token":"token-one","token_type":"Bearer","expires_in":60}"#;
    let server = Server::answering(&[(200, answer)]);
    let minted = Minted::new(&oauth2(true, false), vec![secret("s")], server.clone()).unwrap();
    let (one, two, three) =
        finish(async { tokio::join!(minted.current(0), minted.current(0), minted.current(0)) });
    for result in [one, two, three] {
        assert_eq!(shown(result).as_deref(), Ok("token-one"));
    }
    assert_eq!(server.asked.borrow().len(), 1);
}

#[test]
fn a_failure_is_remembered_and_an_old_token_used_while_it_lasts() {
    let one = r#"{"access_token":"token-one","token_type":"Bearer","expires_in":100}"#;
    let bad = r#"{"error":"invalid_grant","error_description":"secret s"}"#;
    let server = Server::answering(&[(200, one), (400, bad), (302, "")]);
    let minted = Minted::new(&oauth2(true, false), vec![secret("s")], server.clone()).unwrap();
    let now = |second| shown(finish(minted.current(second)));
    assert!(now(0).is_ok());
    assert_eq!(now(90).as_deref(), Ok("token-one"));
    assert_eq!(now(92).as_deref(), Ok("token-one"));
    assert_eq!(server.asked.borrow().len(), 2);
    let error = now(96).unwrap_err();
    assert!(error.contains("302"), "a redirect is not followed: {error}");
    assert_eq!(now(97), Err(error));
    assert_eq!(server.asked.borrow().len(), 3);
    assert_eq!(now(101), Err("down".to_owned()));
    let server = Server::answering(&[(400, bad)]);
    let minted = Minted::new(&oauth2(true, false), vec![secret("s")], server).unwrap();
    let error = finish(minted.current(0)).map(|_| ()).unwrap_err();
    assert!(
        error.contains("(invalid_grant)") && !error.contains("secret"),
        "{error}"
    );
}

#[test]
fn a_refresh_token_that_changes_is_followed() {
    let one = r#"{"access_token":"token-one","token_type":"Bearer","expires_in":10,"refresh_token":"r2"}"#;
    let server = Server::answering(&[(200, one), (200, one)]);
    let minted = Minted::new(&oauth2(false, true), vec![secret("r1")], server.clone()).unwrap();
    assert!(finish(minted.current(0)).is_ok() && finish(minted.current(9)).is_ok());
    assert!(
        server
            .body(0)
            .starts_with("grant_type=refresh_token&refresh_token=r1&")
    );
    assert!(
        server
            .body(1)
            .starts_with("grant_type=refresh_token&refresh_token=r2&")
    );
    assert!(server.body(0).ends_with("&client_id=my%20id"));
}

#[test]
fn answers_that_are_not_understood_give_nothing_away() {
    for body in [
        "",
        "token-one",
        r#"{"access_token":"token-one","token_type":"mac"}"#,
    ] {
        let server = Server::answering(&[(200, body)]);
        let minted = Minted::new(&oauth2(true, false), vec![secret("s")], server).unwrap();
        let error = finish(minted.current(0)).map(|_| ()).unwrap_err();
        assert!(!error.contains("token-one"), "{error}");
    }
    let long = " ".repeat(ANSWER_BYTES_MAX + 1);
    let server = Server::answering(&[(200, &long)]);
    let minted = Minted::new(&oauth2(true, false), vec![secret("s")], server).unwrap();
    assert!(finish(minted.current(0)).is_err());
}

#[test]
fn what_cannot_mint_is_refused_beforehand() {
    let server = || Server::answering(&[]);
    let refused = |source: &Source, parts| Minted::new(source, parts, server()).is_err();
    assert!(refused(&oauth2(false, false), Vec::new()));
    assert!(refused(&oauth2(true, true), vec![secret("s")]));
    assert!(refused(
        &oauth2(true, false),
        vec![secret("s"), secret("t")]
    ));
    let mut plain = oauth2(true, false);
    if let Source::OAuth2 { token_url, .. } = &mut plain {
        *token_url = "http://auth.test/token".to_owned();
    }
    assert!(refused(&plain, vec![secret("s")]));
    assert!(refused(&github("x"), vec![secret("no key")]));
    assert!(refused(&env(), Vec::new()));
}

fn github(installation: &str) -> Source {
    Source::GitHubApp {
        api_url: "https://api.github.test/".to_owned(),
        app_id: "12345".to_owned(),
        installation_id: installation.to_owned(),
        private_key: env(),
        repositories: vec!["acme/site".to_owned()],
        permissions: vec![("contents".to_owned(), "read".to_owned())],
    }
}

fn rsa_key(arguments: &[&str]) -> Option<String> {
    let output = Command::new("openssl").args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8(output.stdout).ok())
        .flatten()
}

#[test]
fn a_github_app_signs_and_asks_for_less() {
    for arguments in [
        ["genrsa", "-traditional", "2048"].as_slice(),
        &["genrsa", "2048"],
    ] {
        let Some(key) = rsa_key(arguments) else {
            println!("skipped: there is no openssl that makes an RSA key");
            return;
        };
        let server =
            Server::answering(&[(201, r#"{"token":"ghs_0123456789abcdef","expires_at":"x"}"#)]);
        let app = GitHubApp::new(&github("77"), vec![secret(&key)]).unwrap();
        let minted = Minted::new(&github("77"), vec![secret(&key)], server.clone()).unwrap();
        let token = shown(finish(minted.current(1_000_000)));
        assert_eq!(token.as_deref(), Ok("ghs_0123456789abcdef"));
        let asked = server.asked.borrow();
        assert_eq!(
            asked[0].uri(),
            "https://api.github.test/app/installations/77/access_tokens"
        );
        let body: serde_json::Value = serde_json::from_slice(asked[0].body()).unwrap();
        let narrowed =
            serde_json::json!({"repositories": ["site"], "permissions": {"contents": "read"}});
        assert_eq!(body, narrowed);
        let jwt = asked[0].headers()["authorization"].to_str().unwrap();
        let (signed, signature) = jwt
            .strip_prefix("Bearer ")
            .unwrap()
            .rsplit_once('.')
            .unwrap();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, app.public_key());
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        public.verify(signed.as_bytes(), &signature).unwrap();
        let claims = URL_SAFE_NO_PAD
            .decode(signed.split_once('.').unwrap().1)
            .unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(
            claims,
            serde_json::json!({"iat": 999_940, "exp": 1_000_540, "iss": "12345"})
        );
    }
}

#[test]
fn aws_keys_are_minted_under_a_session_policy() {
    let source = |seconds| Source::AwsSts {
        endpoint: "https://sts.eu-west-1.amazonaws.test/".to_owned(),
        region: "eu-west-1".to_owned(),
        access_key_id: env(),
        secret_access_key: env(),
        role: "arn:aws:iam::1:role/agent".to_owned(),
        policy: Some("{\"Version\":\"2012-10-17\"}".to_owned()),
        seconds,
    };
    let parts = || vec![secret("AKIDEXAMPLE"), secret("base/secret")];
    let answer = "<AssumeRoleResponse><AssumeRoleResult><Credentials>\
                  <AccessKeyId>ASIAX</AccessKeyId><SecretAccessKey>se/cret</SecretAccessKey>\
                  <SessionToken>to+ken==</SessionToken><Expiration>x</Expiration></Credentials>\
                  </AssumeRoleResult></AssumeRoleResponse>";
    let server = Server::answering(&[(200, answer)]);
    let minted = Minted::new(&source(900), parts(), server.clone()).unwrap();
    let keys = shown(finish(minted.current(1_440_938_160)));
    assert_eq!(keys.as_deref(), Ok("ASIAX:se/cret:to+ken=="));
    let body = server.body(0);
    assert!(body.contains("DurationSeconds=900") && body.contains("&Policy=%7B%22Version"));
    let asked = server.asked.borrow();
    let authorization = asked[0].headers()["authorization"].to_str().unwrap();
    let wanted = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/eu-west-1/sts/aws4_request";
    assert!(authorization.starts_with(wanted), "{authorization}");
    assert!(Minted::new(&source(60), parts(), Server::answering(&[])).is_err());
    for damaged in [
        "",
        "<Credentials></Credentials>",
        &answer.replace("ASIAX", "A&lt;"),
    ] {
        let server = Server::answering(&[(200, damaged)]);
        let minted = Minted::new(&source(900), parts(), server).unwrap();
        assert!(finish(minted.current(0)).is_err(), "{damaged}");
    }
}
