//! The stub against another implementation of DNS, and malformed queries.

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name as DnsName, RData, RecordType};

use super::*;

const IPV4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const IPV6: Ipv6Addr = Ipv6Addr::new(0xFD53, 0, 0, 0, 0, 0, 0, 1);

fn lookup(name: &Name) -> Lookup {
    match name.as_str() {
        "allowed.test" | "_x.allowed.test" => Lookup::Found {
            ipv4: Some(IPV4),
            ipv6: Some(IPV6),
        },
        "four.test" => Lookup::Found {
            ipv4: Some(IPV4),
            ipv6: None,
        },
        "full.test" => Lookup::Unavailable,
        _ => Lookup::NotFound,
    }
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let name = DnsName::from_ascii(name).expect("it is a name");
    message.add_query(Query::query(name, kind));
    message
}

fn ask(name: &str, kind: RecordType) -> (ResponseCode, Vec<RData>) {
    let query = query(name, kind);
    let bytes = query.to_vec().expect("it can be written");
    let reply = answer(&bytes, lookup).expect("there is an answer");
    let reply = Message::from_vec(&reply).expect("the answer is good");
    assert_eq!((reply.metadata.id, &reply.queries), (4711, &query.queries));
    assert_eq!(reply.metadata.message_type, MessageType::Response);
    let data = reply.answers.iter().map(|record| record.data.clone());
    (reply.metadata.response_code, data.collect())
}

/// The code of the answer to bytes, if there is one.
fn code(bytes: &[u8]) -> Option<u8> {
    answer(bytes, lookup).map(|reply| {
        assert_eq!(reply[..2], bytes[..2]);
        assert!(Message::from_vec(&reply).is_ok(), "{reply:x?}");
        reply[3] & 15
    })
}

fn plain(name: &str) -> Vec<u8> {
    query(name, RecordType::A)
        .to_vec()
        .expect("it can be written")
}

#[test]
fn row_23_only_permitted_names_exist() {
    let (code, data) = ask("allowed.test.", RecordType::A);
    assert_eq!(
        (code, data),
        (ResponseCode::NoError, vec![RData::A(IPV4.into())])
    );
    let (code, data) = ask("allowed.test.", RecordType::AAAA);
    assert_eq!(
        (code, data),
        (ResponseCode::NoError, vec![RData::AAAA(IPV6.into())])
    );
    let (code, data) = ask("_x.allowed.test.", RecordType::A);
    assert_eq!((code, data.len()), (ResponseCode::NoError, 1));
    assert_eq!(
        ask("four.test.", RecordType::AAAA),
        (ResponseCode::NoError, vec![])
    );
    for name in [
        "secret.evil.test.",
        "x.allowed.test.",
        "test.",
        ".",
        "127.1.",
    ] {
        for kind in [RecordType::A, RecordType::TXT, RecordType::ANY] {
            assert_eq!(
                ask(name, kind),
                (ResponseCode::NXDomain, vec![]),
                "{name} {kind}"
            );
        }
    }
    assert_eq!(
        ask("full.test.", RecordType::A),
        (ResponseCode::ServFail, vec![])
    );
}

#[test]
fn row_25_no_records_but_addresses_are_given() {
    for kind in [
        RecordType::HTTPS,
        RecordType::SVCB,
        RecordType::ANY,
        RecordType::TXT,
        RecordType::MX,
        RecordType::SRV,
        RecordType::CNAME,
        RecordType::NS,
        RecordType::SOA,
        RecordType::AXFR,
    ] {
        assert_eq!(
            ask("allowed.test.", kind),
            (ResponseCode::NoError, vec![]),
            "{kind}"
        );
    }
}

#[test]
fn names_of_this_machine_and_addresses_are_never_looked_up() {
    let never = |_: &Name| panic!("it must not be asked");
    for (name, kind, records) in [
        ("localhost.", RecordType::A, 1),
        ("app.LOCALHOST.", RecordType::AAAA, 1),
        ("localhost.", RecordType::TXT, 0),
        ("1.0.18.198.in-addr.arpa.", RecordType::PTR, 0),
        ("1.0.18.198.in-addr.arpa.", RecordType::A, 0),
        ("allowed.test.", RecordType::PTR, 0),
    ] {
        let bytes = query(name, kind).to_vec().expect("it can be written");
        let reply = answer(&bytes, never).expect("there is an answer");
        let reply = Message::from_vec(&reply).expect("the answer is good");
        assert_eq!(reply.answers.len(), records, "{name}");
    }
    let data = ask("localhost.", RecordType::A).1;
    assert_eq!(data, [RData::A(Ipv4Addr::LOCALHOST.into())]);
}

#[test]
fn row_07_a_label_with_a_foreign_byte_is_no_host_name() {
    for byte in [b'.', 0, b'*', b'@', b':', b' ', b'\\', 0xC3] {
        let mut bytes = plain("x.allowed.test.");
        bytes[13] = byte;
        let reply = answer(&bytes, |_| panic!("it must not be asked"));
        assert_eq!(reply.map(|reply| reply[3] & 15), Some(3), "{byte}");
    }
}

#[test]
fn the_case_of_the_question_is_kept() {
    let bytes = plain("aLLoWed.TEST.");
    let reply = answer(&bytes, lookup).expect("there is an answer");
    assert_eq!(reply[12..bytes.len()], bytes[12..]);
    assert_eq!(reply[7], 1);
}

#[test]
fn extensions_are_tolerated() {
    let mut extended = plain("allowed.test.");
    extended[11] = 1;
    let opt = [0, 0, 41, 16, 0, 0, 0, 0x80, 0, 0, 12];
    let cookie = [0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    extended.extend_from_slice(&opt);
    extended.extend_from_slice(&cookie);
    let reply = answer(&extended, lookup).expect("there is an answer");
    let reply = Message::from_vec(&reply).expect("the answer is good");
    assert_eq!(reply.answers.len(), 1);
    assert_eq!(reply.edns.map(|edns| edns.max_payload()), Some(1232));
    let at = extended.len() - cookie.len() - opt.len();
    let mut newer = extended.clone();
    newer[at + 6] = 1;
    let reply = answer(&newer, lookup).expect("there is an answer");
    let reply = Message::from_vec(&reply).expect("the answer is good");
    assert_eq!(u16::from(reply.metadata.response_code), 16);
    for (place, value) in [(0, 1), (2, 250), (10, 11), (10, 13), (14, 9)] {
        let mut bad = extended.clone();
        bad[at + place] = value;
        assert_eq!(code(&bad), Some(1), "byte {place}");
    }
}

#[test]
fn malformed_queries_are_refused() {
    let good = plain("allowed.test.");
    assert_eq!(code(&good), Some(0));
    for end in 0..good.len() {
        let expected = if end < 12 { None } else { Some(1) };
        assert_eq!(code(&good[..end]), expected, "cut at {end}");
    }
    let changed = |place: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[place] = value;
        code(&bytes)
    };
    assert_eq!(changed(2, 0x81), None, "a reply");
    assert_eq!(changed(2, 0x29), Some(4), "an update");
    assert_eq!(changed(2, 0x03), Some(1), "truncated");
    for count in [4, 6, 8, 10, 7, 9, 11] {
        assert_eq!(changed(count, 1), Some(1), "count {count}");
    }
    assert_eq!(changed(5, 2), Some(1), "two questions");
    assert_eq!(changed(5, 0), Some(1), "no question");
    assert_eq!(changed(12, 0xC0), Some(1), "a pointer");
    assert_eq!(changed(12, 64), Some(1), "a long label");
    let class = good.len() - 1;
    for value in [3, 254, 255] {
        assert_eq!(changed(class, value), Some(5), "class {value}");
    }
    let trailing = [&good[..], b"\0"].concat();
    assert_eq!(code(&trailing), Some(1));
    let huge = [&good[..], &[0; QUERY_BYTES_MAX]].concat();
    assert_eq!(code(&huge), None);
}

#[test]
fn the_longest_name_is_looked_up() {
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "b".repeat(61));
    let mut asked = None;
    let reply = answer(&plain(&longest), |name| {
        asked = Some(name.as_str().len());
        Lookup::NotFound
    });
    assert_eq!(
        (reply.map(|reply| reply[3] & 15), asked),
        (Some(3), Some(253))
    );
}
