//! AWS Security Token Service: AssumeRole, with a session policy that narrows
//! what the role may do.

use bytes::Bytes;
use stockade_policy::network::rules::Source;
use zeroize::Zeroizing;

use super::mint::{Fresh, post};
use super::place::form_encoded;
use super::sigv4::{Keys, Scope, ToSign, hash};
use crate::secret::SecretText;

/// What AssumeRole takes, in seconds.
const LIFE_SECONDS: std::ops::RangeInclusive<u64> = 900..=43_200;

pub(super) struct AssumeRole {
    endpoint: String,
    host: String,
    scope: Scope,
    keys: Keys,
    body: String,
    seconds: u64,
}

impl AssumeRole {
    pub(super) fn new(source: &Source, parts: Vec<SecretText>) -> Result<Self, String> {
        let Source::AwsSts {
            endpoint,
            region,
            role,
            policy,
            seconds,
            ..
        } = source
        else {
            return Err("its source is not AWS STS".to_owned());
        };
        let [id, secret] = &parts[..] else {
            return Err("it needs an access key id and a secret access key".to_owned());
        };
        if !LIFE_SECONDS.contains(seconds) {
            return Err(format!(
                "its life must be {} to {} seconds",
                LIFE_SECONDS.start(),
                LIFE_SECONDS.end()
            ));
        }
        let mut body = format!(
            "Action=AssumeRole&Version=2011-06-15&RoleSessionName=stockade&DurationSeconds={seconds}\
             &RoleArn={}",
            *form_encoded(role)
        );
        if let Some(policy) = policy {
            body.push_str("&Policy=");
            body.push_str(&form_encoded(policy));
        }
        let uri: http::Uri = endpoint.parse().map_err(|_| "its endpoint is no URL")?;
        let recipe = Self {
            endpoint: endpoint.clone(),
            host: uri
                .authority()
                .ok_or("its endpoint names no host")?
                .to_string(),
            scope: Scope {
                region: region.clone(),
                service: "sts".to_owned(),
            },
            keys: Keys::parse(&Zeroizing::new(format!(
                "{}:{}",
                id.reveal(),
                secret.reveal()
            )))?,
            body,
            seconds: *seconds,
        };
        recipe.request(0).map(|_| recipe)
    }

    pub(super) fn request(&self, now_unix: u64) -> Result<http::Request<Bytes>, String> {
        let kind = "application/x-www-form-urlencoded; charset=utf-8";
        let date = super::sigv4::timestamp(now_unix);
        let uri: http::Uri = self
            .endpoint
            .parse()
            .map_err(|_| "its endpoint is no URL")?;
        let signed = ToSign {
            method: "POST",
            path: uri.path(),
            query: None,
            headers: vec![
                ("content-type".to_owned(), kind.to_owned()),
                ("host".to_owned(), self.host.clone()),
                ("x-amz-date".to_owned(), date.clone()),
            ],
            payload: hash(self.body.as_bytes()),
        };
        let authorization = signed.authorization(&self.keys, &self.scope, &date);
        let headers = [
            ("content-type", kind),
            ("x-amz-date", &date),
            ("authorization", &authorization),
        ];
        post(&self.endpoint, &headers, &self.body)
    }

    /// The keys as [`Keys::parse`] takes them.
    pub(super) fn fresh(&self, body: &Bytes) -> Result<Fresh, String> {
        let text = str::from_utf8(body).map_err(|_| damaged())?;
        let credentials = element(text, "Credentials").ok_or_else(damaged)?;
        let part = |name: &str| {
            let value = element(credentials, name)?;
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=_-".contains(&byte);
            value.bytes().all(is_plain).then_some(value)
        };
        let id = part("AccessKeyId").ok_or_else(damaged)?;
        let secret = part("SecretAccessKey").ok_or_else(damaged)?;
        let token = part("SessionToken").ok_or_else(damaged)?;
        Ok(Fresh {
            secret: SecretText::new(format!("{id}:{secret}:{token}")),
            life_seconds: self.seconds,
        })
    }
}

/// The content of the only element of a name. The answer is of AWS, over
/// verified TLS; what is taken from it is checked for its letters.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (content, rest) = rest.split_once(&format!("</{name}>"))?;
    (!rest.contains(&format!("<{name}>"))).then_some(content.trim())
}

fn damaged() -> String {
    "the answer of AWS STS cannot be understood".to_owned()
}
