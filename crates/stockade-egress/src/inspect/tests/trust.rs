//! Whom both sides believe.

use stockade_policy::network::rules::Content;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::{HOST, plan, roots, run};
use crate::inspect::authority::Protocol::Http1;
use crate::inspect::authority::{Authority, Scope};
use crate::inspect::tls::Origins;
use stockade_policy::network::Destination;
use stockade_policy::network::destination::RawHost;

#[test]
fn row_46_an_origin_that_cannot_be_verified_is_not_used() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let (_, other) = Authority::new("other", Scope::Any).unwrap();
        world.distrust(Origins::with_roots(roots(&other)));
        let mut stream = world.greet(HOST, &[b"http/1.1"]).await.unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        drop(stream.read_to_string(&mut answer).await);
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert!(answer.contains("\"code\":\"upstream-tls\""), "{answer}");
        assert!(answer.contains("UnknownIssuer"), "{answer}");
    });
}

#[test]
fn row_62_the_authority_vouches_for_what_the_plan_inspects_only() {
    let plan = plan(Content::default());
    let (authority, pem) = Authority::new("run", Scope::of(&plan)).unwrap();
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----"));
    let host = |name: &str| Destination::new(RawHost::Text(name.as_bytes()), 443).unwrap();
    for name in ["other.test", "test", "xorigin.test", "10.0.0.1", "::1"] {
        assert!(
            authority.configuration(host(name).host(), Http1).is_err(),
            "{name}"
        );
    }
    assert!(authority.configuration(host(HOST).host(), Http1).is_ok());
    let narrower = Scope::Only {
        names: [format!("www.{HOST}")].into(),
        networks: Default::default(),
    };
    assert!(authority.scope().covers_all(&narrower));
    assert!(!narrower.covers_all(authority.scope()));
    assert!(!authority.scope().covers_all(&Scope::Any));
}
