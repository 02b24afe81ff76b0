//! OAuth 2.0 (RFC 6749): the client credentials grant and the refresh grant.

use std::cell::RefCell;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use stockade_policy::network::rules::Source;
use zeroize::Zeroizing;

use super::mint::{Fresh, post};
use super::place::form_encoded;
use crate::secret::SecretText;

/// Life of a token whose answer names none, in seconds (RFC 6749, section 5.1
/// leaves it open).
const LIFE_SECONDS: u64 = 300;

pub(super) struct OAuth2 {
    token_url: String,
    client_id: String,
    client_secret: Option<SecretText>,
    /// The last one: a server may hand out a new one with each answer.
    refresh_token: RefCell<Option<SecretText>>,
    scopes: Vec<String>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: SecretText,
    token_type: String,
    expires_in: Option<u64>,
    refresh_token: Option<SecretText>,
}

impl OAuth2 {
    pub(super) fn new(source: &Source, parts: Vec<SecretText>) -> Result<Self, String> {
        let Source::OAuth2 {
            token_url,
            client_id,
            client_secret,
            refresh_token,
            scopes,
        } = source
        else {
            return Err("its source is not OAuth 2.0".to_owned());
        };
        let mut parts = parts.into_iter();
        let mut part = |is_there: bool| is_there.then(|| parts.next()).flatten();
        let recipe = Self {
            token_url: token_url.clone(),
            client_id: client_id.clone(),
            client_secret: part(client_secret.is_some()),
            refresh_token: RefCell::new(part(refresh_token.is_some())),
            scopes: scopes.clone(),
        };
        let is_complete = recipe.client_secret.is_some() == client_secret.is_some()
            && recipe.refresh_token.borrow().is_some() == refresh_token.is_some();
        let has_any = client_secret.is_some() || refresh_token.is_some();
        if !is_complete || !has_any || parts.next().is_some() {
            return Err("it needs a client_secret, a refresh_token, or both".to_owned());
        }
        recipe.request().map(|_| recipe)
    }

    pub(super) fn request(&self) -> Result<http::Request<Bytes>, String> {
        let mut body = Zeroizing::new(String::new());
        match &*self.refresh_token.borrow() {
            Some(token) => {
                body.push_str("grant_type=refresh_token&refresh_token=");
                body.push_str(&form_encoded(token.reveal()));
            }
            None => body.push_str("grant_type=client_credentials"),
        }
        if !self.scopes.is_empty() {
            body.push_str("&scope=");
            body.push_str(&form_encoded(&self.scopes.join(" ")));
        }
        let mut headers = vec![
            ("content-type", "application/x-www-form-urlencoded"),
            ("accept", "application/json"),
        ];
        let authorization;
        match &self.client_secret {
            // Section 2.3.1: both are form-encoded first.
            Some(secret) => {
                let id = form_encoded(&self.client_id);
                let secret = form_encoded(secret.reveal());
                let pair = Zeroizing::new(format!("{}:{}", *id, *secret));
                authorization = Zeroizing::new(format!("Basic {}", STANDARD.encode(&*pair)));
                headers.push(("authorization", &authorization));
            }
            None => {
                body.push_str("&client_id=");
                body.push_str(&form_encoded(&self.client_id));
            }
        }
        post(&self.token_url, &headers, &body)
    }

    pub(super) fn fresh(&self, body: &Bytes) -> Result<Fresh, String> {
        // The parser's message could quote a token.
        let answer: Answer = serde_json::from_slice(body)
            .map_err(|_| "the answer of the token URL cannot be understood".to_owned())?;
        if !answer.token_type.eq_ignore_ascii_case("bearer") {
            return Err("the token URL gives tokens of another type than Bearer".to_owned());
        }
        if answer.refresh_token.is_some() && self.refresh_token.borrow().is_some() {
            self.refresh_token.replace(answer.refresh_token);
        }
        Ok(Fresh {
            secret: answer.access_token,
            life_seconds: answer.expires_in.unwrap_or(LIFE_SECONDS),
        })
    }
}
