//! Against the examples that AWS publishes (Signature Version 4 test suite and
//! the reference's ListUsers example).

use super::*;

const DATE: &str = "20150830T123600Z";

fn keys() -> Keys {
    Keys::parse("AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY").unwrap()
}

fn signature(method: &str, query: Option<&str>, headers: &[(&str, &str)], service: &str) -> String {
    let scope = Scope {
        region: "us-east-1".to_owned(),
        service: service.to_owned(),
    };
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let request = ToSign {
        method,
        path: "/",
        query,
        headers: headers.iter().map(owned).collect(),
        payload: hash(b""),
    };
    let authorization = request.authorization(&keys(), &scope, DATE);
    authorization.rsplit('=').next().unwrap().to_owned()
}

#[test]
fn published_signatures_come_out() {
    let plain = [("host", "example.amazonaws.com"), ("x-amz-date", DATE)];
    assert_eq!(
        signature("GET", None, &plain, "service"),
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    );
    assert_eq!(
        signature("POST", None, &plain, "service"),
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
    );
    assert_eq!(
        signature(
            "GET",
            Some("Param2=value2&Param1=value1"),
            &plain,
            "service"
        ),
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"
    );
    let users = [
        (
            "content-type",
            "application/x-www-form-urlencoded; charset=utf-8",
        ),
        ("host", "iam.amazonaws.com"),
        ("x-amz-date", DATE),
    ];
    assert_eq!(
        signature(
            "GET",
            Some("Action=ListUsers&Version=2010-05-08"),
            &users,
            "iam"
        ),
        "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    );
}

#[test]
fn a_timestamp_is_of_the_calendar() {
    for (unix, text) in [
        (0, "19700101T000000Z"),
        (951_782_399, "20000228T235959Z"),
        (951_782_400, "20000229T000000Z"),
        (1_440_938_160, "20150830T123600Z"),
        (4_107_542_400, "21000301T000000Z"),
    ] {
        assert_eq!(timestamp(unix), text);
    }
}

#[test]
fn keys_are_read_in_each_form() {
    let json = r#"{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"s","SessionToken":"t"}"#;
    for (text, count) in [("AKID:secret", 1), ("AKID:secret:token", 2), (json, 2)] {
        let keys = Keys::parse(text).unwrap();
        assert_eq!((keys.id(), keys.secrets().count()), ("AKID", count));
    }
    for text in [
        "",
        "AKID",
        ":secret",
        "AKID:",
        "a:b:c:d",
        "A D:secret",
        "{}",
    ] {
        assert!(Keys::parse(text).is_err(), "{text}");
    }
}
