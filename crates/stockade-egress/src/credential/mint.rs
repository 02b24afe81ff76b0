//! Secrets that are minted: narrow, short-lived, and renewed before they end.
//!
//! What they are made of never leaves this process but to the place that
//! mints. One request at a time mints; the others wait for what it gets. A
//! secret that cannot be had refuses the request that needs it.

use std::rc::Rc;

use bytes::Bytes;
use stockade_policy::network::rules::Source;
use tokio::sync::Mutex;

use super::github_app::GitHubApp;
use super::oauth2::OAuth2;
use super::sts::AssumeRole;
use super::vault::Fetch;
use crate::secret::SecretText;

/// Largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How long a failure is remembered, in seconds: what runs inside must not be
/// able to make us ask without end.
const FAILURE_SECONDS: u64 = 5;
/// A secret counts as over so long before its end, in seconds.
const MARGIN_SECONDS: u64 = 5;

/// A source whose secret is minted.
pub(super) struct Minted {
    recipe: Recipe,
    fetch: Rc<dyn Fetch>,
    state: Mutex<State>,
}

enum Recipe {
    OAuth2(OAuth2),
    GitHubApp(GitHubApp),
    AssumeRole(AssumeRole),
}

/// What minting gives.
pub(super) struct Fresh {
    pub secret: SecretText,
    pub life_seconds: u64,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// When, and why.
    failed: Option<(u64, String)>,
}

struct Token {
    secret: SecretText,
    renew_unix: u64,
    end_unix: u64,
}

impl Minted {
    /// `parts` are the values of the nested sources, in the order in which
    /// they are declared.
    pub(super) fn new(
        source: &Source,
        parts: Vec<SecretText>,
        fetch: Rc<dyn Fetch>,
    ) -> Result<Self, String> {
        let recipe = match source {
            Source::OAuth2 { .. } => OAuth2::new(source, parts).map(Recipe::OAuth2),
            Source::GitHubApp { .. } => GitHubApp::new(source, parts).map(Recipe::GitHubApp),
            Source::AwsSts { .. } => AssumeRole::new(source, parts).map(Recipe::AssumeRole),
            _ => Err("its source is a value and is not minted".to_owned()),
        };
        Ok(Self {
            recipe: recipe?,
            fetch,
            state: Mutex::default(),
        })
    }

    /// A secret that is valid now. The error says why there is none.
    pub(super) async fn current(&self, now_unix: u64) -> Result<SecretText, String> {
        let mut state = self.state.lock().await;
        if let Some(token) = &state.token
            && now_unix < token.renew_unix
        {
            return Ok(token.secret.clone());
        }
        if let Some((when, reason)) = &state.failed
            && now_unix < when.saturating_add(FAILURE_SECONDS)
        {
            return state.still_valid(now_unix).ok_or_else(|| reason.clone());
        }
        match self.mint(now_unix).await {
            Ok(fresh) => {
                let life = fresh.life_seconds;
                state.failed = None;
                state.token = Some(Token {
                    secret: fresh.secret.clone(),
                    // At four fifths of its life.
                    renew_unix: now_unix.saturating_add(life / 5 * 4),
                    end_unix: now_unix.saturating_add(life.saturating_sub(MARGIN_SECONDS)),
                });
                Ok(fresh.secret)
            }
            Err(reason) => {
                state.failed = Some((now_unix, reason.clone()));
                state.still_valid(now_unix).ok_or(reason)
            }
        }
    }

    async fn mint(&self, now_unix: u64) -> Result<Fresh, String> {
        let request = match &self.recipe {
            Recipe::OAuth2(recipe) => recipe.request(),
            Recipe::GitHubApp(recipe) => recipe.request(now_unix),
            Recipe::AssumeRole(recipe) => recipe.request(now_unix),
        };
        let response = self.fetch.fetch(request?).await?;
        let (parts, body) = response.into_parts();
        if body.len() > ANSWER_BYTES_MAX {
            return Err("the place that mints it answered with too much".to_owned());
        }
        // A redirect is one of them: none is followed.
        if !parts.status.is_success() {
            return Err(refusal(parts.status, &body));
        }
        match &self.recipe {
            Recipe::OAuth2(recipe) => recipe.fresh(&body),
            Recipe::GitHubApp(recipe) => recipe.fresh(&body),
            Recipe::AssumeRole(recipe) => recipe.fresh(&body),
        }
    }
}

impl State {
    fn still_valid(&self, now_unix: u64) -> Option<SecretText> {
        let token = self.token.as_ref()?;
        (now_unix < token.end_unix).then(|| token.secret.clone())
    }
}

/// The status, and the code of the error when the answer has one: a word, and
/// never more of what it says.
fn refusal(status: http::StatusCode, body: &Bytes) -> String {
    let answer: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let code = answer
        .as_ref()
        .and_then(|answer| answer.get("error")?.as_str())
        .filter(|code| code.len() <= 64)
        .filter(|code| {
            code.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        });
    match code {
        Some(code) => format!("the place that mints it answered {status} ({code})"),
        None => format!("the place that mints it answered {status}"),
    }
}

/// A request to mint, with a body.
pub(super) fn post(
    url: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<http::Request<Bytes>, String> {
    let mut request = http::Request::post(url).header("user-agent", "stockade");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Bytes::copy_from_slice(body.as_bytes());
    let request = request.body(body);
    let mut request = request.map_err(|_| "the request that mints it cannot be made".to_owned())?;
    if request.uri().scheme_str() != Some("https") {
        return Err("secrets are minted over https only".to_owned());
    }
    if let Some(value) = request.headers_mut().get_mut(http::header::AUTHORIZATION) {
        value.set_sensitive(true);
    }
    Ok(request)
}

#[cfg(test)]
mod tests;
