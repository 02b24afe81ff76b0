//! What looks like a credential in a request (CR3, row 41).
//!
//! On a host with a bound credential any other one is refused: with an
//! account of the attacker's own an allowed host becomes a place to leave data
//! in. The lists name what services read; a service that takes credentials in
//! other places needs rules on its paths.

use http::header::{AUTHORIZATION, COOKIE, HeaderName, PROXY_AUTHORIZATION};

/// Headers that services read credentials from, beside the standard ones.
const HEADERS: &[&str] = &[
    "api-key",
    "apikey",
    "circle-token",
    "dd-application-key",
    "deploy-token",
    "job-token",
    "ocp-apim-subscription-key",
    "private-token",
    "sentry-auth",
    "token",
    "x-amz-security-token",
    "x-api-token",
    "x-auth",
    "x-auth-email",
    "x-auth-key",
    "x-authorization",
    "x-figma-token",
    "x-forwarded-access-token",
    "x-github-token",
    "x-goog-iam-authorization-token",
    "x-ms-authorization-auxiliary",
    "x-sentry-auth",
    "x-session-token",
    "x-vault-token",
];

/// Ends of header names that mean the same everywhere.
const HEADER_ENDS: &[&str] = &[
    "-access-token",
    "-api-key",
    "-apikey",
    "-auth-key",
    "-auth-token",
    "-secret-key",
];

/// Parameters of a query, in lower case.
const PARAMETERS: &[&str] = &[
    "access_token",
    "api-key",
    "api_key",
    "api_token",
    "apikey",
    "auth",
    "auth_token",
    "authorization",
    "client_secret",
    "job_token",
    "key",
    "oauth_token",
    "password",
    "private_token",
    "refresh_token",
    "secret",
    "sig",
    "signature",
    "token",
    "x-amz-credential",
    "x-amz-security-token",
    "x-amz-signature",
    "x-goog-credential",
    "x-goog-signature",
];

pub fn is_header(name: &HeaderName) -> bool {
    if [AUTHORIZATION, PROXY_AUTHORIZATION].contains(name) {
        return true;
    }
    let name = name.as_str();
    HEADERS.contains(&name) || HEADER_ENDS.iter().any(|end| name.ends_with(end))
}

/// Cookies are credentials unless the same host set them in this run.
pub fn is_cookie(name: &HeaderName) -> bool {
    *name == COOKIE
}

pub fn is_parameter(name: &str) -> bool {
    PARAMETERS.contains(&name.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_places_are_known_and_usual_headers_are_not() {
        for name in [
            "authorization",
            "x-api-key",
            "x-goog-api-key",
            "private-token",
            "x-auth-token",
            "x-shopify-access-token",
        ] {
            assert!(is_header(&HeaderName::from_static(name)), "{name}");
        }
        for name in ["accept", "x-csrf-token", "idempotency-key", "x-request-id"] {
            assert!(!is_header(&HeaderName::from_static(name)), "{name}");
        }
        assert!(is_parameter("Access_Token") && !is_parameter("page_token"));
    }
}
