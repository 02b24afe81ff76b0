//! Installation tokens of a GitHub App, for chosen repositories and with chosen
//! permissions only.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::json;
use stockade_policy::network::rules::Source;
use zeroize::Zeroizing;

use super::mint::{Fresh, post};
use crate::secret::SecretText;

/// Installation tokens end after an hour.
const LIFE_SECONDS: u64 = 3600;
/// The app's own token: begins a minute ago, because clocks differ, and ends
/// within the ten minutes that GitHub allows.
const EARLIER_SECONDS: u64 = 60;
const JWT_SECONDS: u64 = 540;

pub(super) struct GitHubApp {
    url: String,
    app_id: String,
    key: RsaKeyPair,
    /// What the token is narrowed to.
    body: String,
}

#[derive(Deserialize)]
struct Answer {
    token: SecretText,
}

impl GitHubApp {
    pub(super) fn new(source: &Source, parts: Vec<SecretText>) -> Result<Self, String> {
        let Source::GitHubApp {
            api_url,
            app_id,
            installation_id,
            repositories,
            permissions,
            ..
        } = source
        else {
            return Err("its source is not a GitHub App".to_owned());
        };
        let [key] = &parts[..] else {
            return Err("it needs one private key".to_owned());
        };
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(installation_id) {
            return Err("its installation_id is not a number".to_owned());
        }
        let mut body = serde_json::Map::new();
        if !repositories.is_empty() {
            // The installation knows its owner; GitHub wants the names alone.
            let names = repositories
                .iter()
                .map(|name| name.rsplit('/').next().unwrap_or(name));
            body.insert("repositories".to_owned(), json!(names.collect::<Vec<_>>()));
        }
        if !permissions.is_empty() {
            let permissions: serde_json::Map<_, _> = permissions
                .iter()
                .map(|(name, access)| (name.clone(), json!(access)))
                .collect();
            body.insert("permissions".to_owned(), permissions.into());
        }
        let recipe = Self {
            url: format!(
                "{}/app/installations/{installation_id}/access_tokens",
                api_url.trim_end_matches('/')
            ),
            app_id: app_id.clone(),
            key: key_pair(key)?,
            body: serde_json::Value::from(body).to_string(),
        };
        recipe.request(EARLIER_SECONDS).map(|_| recipe)
    }

    pub(super) fn request(&self, now_unix: u64) -> Result<http::Request<Bytes>, String> {
        let authorization = Zeroizing::new(format!("Bearer {}", self.jwt(now_unix)?));
        let headers = [
            ("authorization", authorization.as_str()),
            ("accept", "application/vnd.github+json"),
            ("content-type", "application/json"),
            ("x-github-api-version", "2022-11-28"),
        ];
        post(&self.url, &headers, &self.body)
    }

    pub(super) fn fresh(&self, body: &Bytes) -> Result<Fresh, String> {
        let answer: Answer = serde_json::from_slice(body)
            .map_err(|_| "the answer of the GitHub API cannot be understood".to_owned())?;
        Ok(Fresh {
            secret: answer.token,
            life_seconds: LIFE_SECONDS,
        })
    }

    /// A JSON Web Token (RFC 7519) that says which app this is, RS256.
    fn jwt(&self, now_unix: u64) -> Result<String, String> {
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": "RS256", "typ": "JWT"}).to_string());
        let claims = json!({
            "iat": now_unix.saturating_sub(EARLIER_SECONDS),
            "exp": now_unix + JWT_SECONDS,
            "iss": self.app_id,
        });
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let mut signature = vec![0; self.key.public().modulus_len()];
        let random = SystemRandom::new();
        self.key
            .sign(
                &RSA_PKCS1_SHA256,
                &random,
                signed.as_bytes(),
                &mut signature,
            )
            .map_err(|_| "its private key cannot sign".to_owned())?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// PKCS#1, as GitHub hands it out, or PKCS#8.
fn key_pair(pem: &SecretText) -> Result<RsaKeyPair, String> {
    let bad = |_| "its private key is not an RSA key in PEM".to_owned();
    let key = PrivateKeyDer::from_pem_slice(pem.reveal().as_bytes()).map_err(|_| bad(()))?;
    match &key {
        PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
        PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
        _ => return Err(bad(())),
    }
    .map_err(|_| bad(()))
}

#[cfg(test)]
impl GitHubApp {
    /// DER of the public key (PKCS#1).
    pub(super) fn public_key(&self) -> Vec<u8> {
        use ring::signature::KeyPair;
        self.key.public_key().as_ref().to_vec()
    }
}
