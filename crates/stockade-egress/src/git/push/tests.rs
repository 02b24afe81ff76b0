//! Bodies of pushes, whole, in pieces and compressed.

use super::*;
use crate::git::packet;

const ZERO: &str = "0000000000000000000000000000000000000000";
const ONE: &str = "1111111111111111111111111111111111111111";
const EMPTY_PACK: &[u8] = b"PACK\0\0\0\x02\0\0\0\0....................";

fn filter(coding: Coding) -> PushFilter<'static> {
    let settings = Settings {
        repository: "o/n".to_owned(),
        transport: Transport::Https,
        coding,
        needles: Needles::new(["branch-secret"]).unwrap(),
        room: Room::new(1 << 20),
    };
    let judge = |operation: &GitOperation<'_>| match operation.action {
        GitAction::Push { updates } if updates.iter().any(|u| u.delete) => {
            Err(denial("git-ref", None, "no deletions".to_owned()))
        }
        _ => Ok(GitPermit {
            rule: Rule {
                id: "network.git[0]".to_owned(),
                origin: "test:1".to_owned(),
                reason: String::new(),
            },
            push_bytes_max: Some(100),
            refs_checked: true,
        }),
    };
    PushFilter::new(settings, Box::new(judge))
}

fn body(old: &str, new: &str, name: &str, pack: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let line = format!("{old} {new} {name}\0 report-status");
    packet::write_data(&mut body, line.as_bytes());
    packet::write_flush(&mut body);
    body.extend_from_slice(pack);
    body
}

fn run(body: &[u8], piece: usize, coding: Coding) -> Result<Vec<u8>, &'static str> {
    let mut filter = filter(coding);
    for piece in body.chunks(piece) {
        filter.feed(piece);
    }
    let mut spool = filter.finish().map_err(|refused| refused.denial.code)?.body;
    let mut all = Vec::new();
    while let Some(chunk) = spool.next_chunk().unwrap() {
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

fn check(body: &[u8], expected: Result<&[u8], &'static str>) {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(body).unwrap();
    let gzip = gzip.finish().unwrap();
    for (body, coding) in [(body, Coding::Identity), (&gzip, Coding::Gzip)] {
        for piece in [1, 10, body.len()] {
            let seen = run(body, piece, coding);
            assert_eq!(seen.as_deref(), expected.as_deref(), "{coding:?} {piece}");
        }
    }
}

#[test]
fn a_permitted_push_comes_out_as_it_went_in() {
    let good = body(ZERO, ONE, "refs/heads/a", EMPTY_PACK);
    check(&good, Ok(&good));
    check(b"0000", Ok(b"0000"));
}

#[test]
fn anything_else_is_refused() {
    let cut = body(ZERO, ONE, "refs/heads/a", &EMPTY_PACK[..9]);
    check(&cut, Err("git-push"));
    check(&body(ZERO, ONE, "refs/heads/a", b""), Err("git-push"));
    check(
        &body(ZERO, ONE, "refs/heads/a", b"JUNK........"),
        Err("git-push"),
    );
    check(&body(ONE, ZERO, "refs/heads/a", b""), Err("git-ref"));
    check(b"0000PACK", Err("git-push"));
    check(b"GET / HTTP/1.1", Err("git-push"));
    check(
        &body(ZERO, ONE, "refs/heads/branch-secret", EMPTY_PACK),
        Err("git-secret"),
    );
    // Nothing shows that it moves forward.
    let forced = body(&"2".repeat(40), ONE, "refs/heads/a", EMPTY_PACK);
    check(&forced, Err("git-ref"));
}

#[test]
fn broken_compression_is_refused() {
    let good = body(ZERO, ONE, "refs/heads/a", EMPTY_PACK);
    assert_eq!(run(&good, 100, Coding::Gzip), Err("git-push"));
}

#[test]
fn an_answer_says_why() {
    let mut filter = filter(Coding::Identity);
    filter.feed(&body(ONE, ZERO, "refs/heads/a", b""));
    let answer = filter.finish().unwrap_err().answer.unwrap();
    let text = String::from_utf8(answer).unwrap();
    let reason = "denied by policy (git-ref): no deletions";
    assert!(text.contains("unpack ok\n"), "{text}");
    assert!(
        text.contains(&format!("ng refs/heads/a {reason}\n")),
        "{text}"
    );
}
