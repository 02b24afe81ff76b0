//! Places that mint secrets: an OAuth 2.0 server, the API of a forge, and the
//! token service of a cloud. Each answer has a secret of its own.

use std::cell::Cell;

use serde_json::json;

thread_local! {
    static MINTED: Cell<u32> = const { Cell::new(0) };
}

/// The next secret: `minted-token-1`, and so on.
fn next() -> String {
    MINTED.set(MINTED.get() + 1);
    format!("minted-token-{}", MINTED.get())
}

/// RFC 6749, section 5.1; with a new refresh token each time.
pub fn oauth2(life_seconds: &str) -> String {
    json!({
        "access_token": next(), "token_type": "Bearer",
        "expires_in": life_seconds.parse().unwrap_or(3600),
        "refresh_token": format!("refresh-{}", MINTED.get()),
    })
    .to_string()
}

/// `POST /app/installations/ID/access_tokens` of GitHub.
pub fn installation() -> String {
    json!({ "token": next(), "expires_at": "2099-01-01T00:00:00Z" }).to_string()
}

/// AssumeRole of AWS.
pub fn role() -> String {
    format!(
        "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult>\
         <Credentials><AccessKeyId>ASIAMINTED{number}</AccessKeyId>\
         <SecretAccessKey>minted/secret+key</SecretAccessKey><SessionToken>{token}</SessionToken>\
         <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult>\
         </AssumeRoleResponse>",
        token = next(),
        number = MINTED.get(),
    )
}
