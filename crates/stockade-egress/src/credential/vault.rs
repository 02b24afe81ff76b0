//! The secrets of one sandbox, what they are bound to, and their placeholders.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, SET_COOKIE};
use http::{HeaderValue, Method};
use percent_encoding::percent_decode_str;
use ring::digest;
use ring::rand::SystemRandom;
use stockade_policy::network::Destination;
use stockade_policy::network::pattern::Pattern;
use stockade_policy::network::rules::{Attach, Binding, Mode, Source, holds_port};

use super::body::{BodyPlan, Change};
use super::encodings::{SECRET_BYTES_MIN, forms};
use super::mint::Minted;
use super::patterns::{Patterns, Scan};
use super::place::{self, Head, Placed};
use super::placeholder::{self, Shape};
use super::scrub::Scrubber;
use super::sigv4::{self, Keys, Signable};
use super::{Denial, Wanted, denied, foreign};
use crate::secret::SecretText;
use crate::wire::SecretSource;

/// Largest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 16 * 1024;

/// Secrets of one credential that are looked for in responses: minted ones
/// live on for a while after they are renewed.
const KNOWN_MAX: usize = 8;

/// Cookies that hosts with a credential set, and that may come back.
const COOKIES_MAX: usize = 1024;

/// What a fetch answers.
pub type Fetched<'a> = Pin<Box<dyn Future<Output = Result<http::Response<Bytes>, String>> + 'a>>;

/// Sends a request outside, over verified TLS and through the one dial, to
/// mint a secret. Redirects are not followed; a body of more than 64 KiB is an
/// error, and so is anything that takes longer than half a minute.
pub trait Fetch {
    fn fetch(&self, request: http::Request<Bytes>) -> Fetched<'_>;
}

/// How a request travels to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TLS whose certificate was verified for the destination.
    VerifiedTls,
    Plaintext,
}

/// A request that is about to be sent, hop-by-hop headers already removed.
pub struct Outgoing<'a> {
    /// The one that was dialled.
    pub destination: &'a Destination,
    pub transport: Transport,
    pub method: &'a Method,
    pub headers: &'a mut HeaderMap,
    /// Canonical; the rules were held against it before.
    pub path: &'a mut String,
    /// As it came, without its question mark.
    pub query: &'a mut Option<String>,
    pub now_unix: u64,
}

/// What was done to a request, and what is left to do.
pub struct Applied {
    /// Numbers and names of the bindings whose secrets it carries now.
    pub credentials: Vec<(usize, String)>,
    /// The body must be read whole (at most [`super::BODY_BYTES_MAX`]) and
    /// rewritten before anything is sent.
    pub body: Option<BodyPlan>,
    scan: Option<Scan>,
    off_binding: Option<Denial>,
}

/// The secrets of one sandbox. Nothing in it can be printed.
pub struct Vault {
    credentials: Vec<Credential>,
    placeholders: Rc<Patterns>,
    /// Patterns that were built, by the credentials that they are of.
    searched: RefCell<BTreeMap<Vec<usize>, Rc<Patterns>>>,
    /// Hashes of destination, name and value.
    cookies: RefCell<HashSet<[u8; 32]>>,
}

struct Credential {
    number: usize,
    binding: Binding,
    paths: Vec<Pattern>,
    value: Value,
    placeholder: Option<String>,
    /// The secret, and those that were valid before and may still come back.
    known: RefCell<Vec<SecretText>>,
}

enum Value {
    Fixed(SecretText),
    Minted(Box<Minted>),
}

impl Applied {
    /// The next piece of the body as it will be sent, of any request: a
    /// placeholder in it is where it does not belong (row 42). After an error
    /// nothing more may be sent.
    pub fn check_body(&mut self, piece: &[u8]) -> Result<(), Denial> {
        let (Some(scan), Some(denial)) = (&mut self.scan, &self.off_binding) else {
            return Ok(());
        };
        if scan.is_found_in(piece) {
            return Err(denial.clone());
        }
        Ok(())
    }

    pub fn checks_body(&self) -> bool {
        self.scan.is_some()
    }
}

impl Vault {
    /// Checks everything, so that a run or a reload with a secret that cannot
    /// be used is refused. `secrets` are those of `bindings`, in their order;
    /// what is minted is minted through `fetch` when it is first needed.
    /// With `previous`, placeholders stay the same over a reload, and its
    /// secrets are still taken out of responses.
    pub fn new(
        bindings: &[Binding],
        secrets: Vec<SecretSource>,
        fetch: &Rc<dyn Fetch>,
        previous: Option<&Self>,
    ) -> Result<Self, String> {
        if bindings.len() != secrets.len() {
            return Err("the secrets do not belong to the credentials".to_owned());
        }
        let mut credentials: Vec<Credential> = Vec::with_capacity(bindings.len());
        for (number, (binding, source)) in bindings.iter().zip(secrets).enumerate() {
            let named = |reason: String| format!("credential `{}`: {reason}", binding.name);
            let credential = Credential::new(number, binding, source, fetch).map_err(named)?;
            credentials.push(credential);
            let placeholder = placeholder_for(&credentials, previous).map_err(named)?;
            if let Some(last) = credentials.last_mut() {
                last.placeholder = placeholder;
                last.inherit(previous);
            }
        }
        let placeholders = credentials
            .iter()
            .filter_map(|one| one.placeholder.as_deref());
        let placeholders = Patterns::new(placeholders.flat_map(forms).collect())?;
        let cookies = previous.map(|vault| vault.cookies.borrow().clone());
        let vault = Self {
            credentials,
            placeholders: Rc::new(placeholders),
            searched: RefCell::default(),
            cookies: RefCell::new(cookies.unwrap_or_default()),
        };
        // Fails here and not at the first response.
        vault.patterns(&vault.credentials.iter().collect::<Vec<_>>())?;
        Ok(vault)
    }

    /// Variables to set inside and their values, without doubles.
    pub fn placeholders(&self) -> Vec<(String, String)> {
        let variables: BTreeMap<_, _> = self
            .credentials
            .iter()
            .filter_map(|one| Some((one.binding.variable.clone()?, one.placeholder.clone()?)))
            .collect();
        variables.into_iter().collect()
    }

    /// Whether some credential is bound to the destination.
    pub fn binds(&self, destination: &Destination) -> bool {
        self.bound(destination).next().is_some()
    }

    /// Attaches what is bound to a request, and refuses one that carries a
    /// credential of someone else, or a placeholder where it does not belong.
    /// To be called for every request to every host. After an error the
    /// request is spoilt and must not be sent.
    pub async fn apply(&self, mut request: Outgoing<'_>) -> Result<Applied, Denial> {
        let bound: Vec<&Credential> = self.bound(request.destination).collect();
        let mut places: BTreeMap<String, Vec<&Credential>> = BTreeMap::new();
        for credential in &bound {
            if credential.covers(request.method, request.path) {
                credential.may_be_used(&request)?;
                let group = places.entry(place_name(&credential.binding.form));
                group.or_default().push(credential);
            }
        }
        let mut applied = self.applied();
        let mut filled = Filled::default();
        for group in places.values() {
            for credential in group {
                filled.mention(&credential.binding.form);
            }
            self.fill(group, &mut request, &mut applied).await?;
        }
        self.refuse_placeholders(&request)?;
        if let Some(first) = bound.first() {
            self.refuse_foreign(first, &request, &filled)?;
        }
        Ok(applied)
    }

    /// Cookies that a response of a bound host sets (already scrubbed): they
    /// belong to the bound credential and may come back. Others may not.
    pub fn remember_cookies(&self, destination: &Destination, headers: &HeaderMap) {
        if !self.binds(destination) {
            return;
        }
        let mut cookies = self.cookies.borrow_mut();
        for value in headers.get_all(SET_COOKIE) {
            let pair = value.as_bytes().split(|byte| *byte == b';').next();
            if cookies.len() < COOKIES_MAX {
                cookies.insert(cookie_hash(
                    destination,
                    pair.unwrap_or_default().trim_ascii(),
                ));
            }
        }
    }

    /// For the responses of a destination; `None` where nothing is scrubbed.
    /// To be made after the request's [`Vault::apply`].
    pub fn scrubber(&self, destination: &Destination) -> Result<Option<Scrubber>, Denial> {
        let bound = self.bound(destination).filter(|one| one.binding.scrub);
        let bound: Vec<_> = bound.collect();
        if bound.is_empty() {
            return Ok(None);
        }
        let patterns = self.patterns(&bound).map_err(unsearchable)?;
        Ok(Some(Scrubber::new(patterns)))
    }

    /// All forms of all secrets, to search what must carry none (git packs).
    pub fn secrets(&self) -> Result<Rc<Patterns>, Denial> {
        let all: Vec<_> = self.credentials.iter().collect();
        self.patterns(&all).map_err(unsearchable)
    }

    fn bound(&self, destination: &Destination) -> impl Iterator<Item = &Credential> {
        let destination = destination.clone();
        let is_bound = move |credential: &&Credential| {
            credential.binding.host.holds(destination.host())
                && holds_port(&credential.binding.ports, destination.port())
        };
        self.credentials.iter().filter(is_bound)
    }

    fn applied(&self) -> Applied {
        let has_placeholders = !self.placeholders.is_empty();
        Applied {
            credentials: Vec::new(),
            body: None,
            scan: has_placeholders.then(|| Scan::new(Rc::clone(&self.placeholders))),
            off_binding: has_placeholders.then(|| self.off_binding(None, "the body")),
        }
    }

    /// Fills one place from the credentials that belong there: the one whose
    /// placeholder is there, or else the first that is attached.
    async fn fill(
        &self,
        group: &[&Credential],
        request: &mut Outgoing<'_>,
        applied: &mut Applied,
    ) -> Result<(), Denial> {
        let mut refused = None;
        let by_mode = |mode| move |one: &&&Credential| one.binding.mode == mode;
        let replaced = group.iter().filter(by_mode(Mode::Replace));
        for credential in replaced.chain(group.iter().filter(by_mode(Mode::Attach)).take(1)) {
            let wanted = self.wanted(credential, request.now_unix).await?;
            let form = &credential.binding.form;
            if matches!(form, Attach::Form { .. } | Attach::Json { .. }) {
                let changes = &mut applied.body.get_or_insert_default().changes;
                changes.push(Change {
                    form: form.clone(),
                    wanted,
                });
                applied.credentials.push(credential.label());
                continue;
            }
            let placed = match form {
                Attach::SigV4 { region, service } => {
                    let scope = (region.as_deref(), service.as_deref());
                    sign(&wanted, scope, request, applied)
                }
                form => place::place(form, &wanted, &mut head_of(request)),
            };
            match placed {
                Ok(Placed::Yes) => {
                    applied.credentials.push(credential.label());
                    return Ok(());
                }
                Ok(Placed::No) => {}
                Err(denial) => refused = Some(credential.named(denial)),
            }
        }
        match refused {
            Some(denial) => {
                self.refuse_placeholders(request)?;
                Err(denial)
            }
            None => Ok(()),
        }
    }

    async fn wanted(&self, credential: &Credential, now_unix: u64) -> Result<Wanted, Denial> {
        let secret = match &credential.value {
            Value::Fixed(secret) => secret.clone(),
            Value::Minted(minted) => {
                let secret = minted.current(now_unix).await;
                let secret = secret.and_then(|secret| {
                    check_secret(secret.reveal(), &credential.binding)?;
                    Ok(secret)
                });
                secret.map_err(|reason| credential.unavailable(&reason))?
            }
        };
        if credential.learn(&secret) {
            self.searched.borrow_mut().clear();
        }
        Ok(Wanted {
            mode: credential.binding.mode,
            secret,
            placeholder: credential.placeholder.clone(),
        })
    }

    /// Row 42.
    fn refuse_placeholders(&self, request: &Outgoing<'_>) -> Result<(), Denial> {
        if self.placeholders.is_empty() {
            return Ok(());
        }
        let found = |text: &[u8]| self.placeholders.is_in(text);
        let encoded = |text: &str| {
            found(text.as_bytes()) || found(&percent_decode_str(text).collect::<Vec<u8>>())
        };
        for (name, value) in &*request.headers {
            if found(value.as_bytes()) || found(name.as_str().as_bytes()) {
                let place = format!("the header `{name}`");
                return Err(self.off_binding(Some(value.as_bytes()), &place));
            }
        }
        if encoded(request.path) {
            return Err(self.off_binding(Some(request.path.as_bytes()), "the path"));
        }
        match request.query.as_deref() {
            Some(query) if encoded(query) => {
                Err(self.off_binding(Some(query.as_bytes()), "the query"))
            }
            _ => Ok(()),
        }
    }

    fn off_binding(&self, found_in: Option<&[u8]>, place: &str) -> Denial {
        let is_it = |credential: &&Credential| {
            let placeholder = credential.placeholder.as_deref();
            let mut texts = placeholder.into_iter().flat_map(forms);
            found_in.is_some_and(|text| texts.any(|form| contains(text, &form)))
        };
        let (which, credential) = match self.credentials.iter().find(is_it) {
            Some(one) => (format!(" of credential `{}`", one.binding.name), Some(one)),
            None => (String::new(), None),
        };
        let denial = denied(
            "placeholder-off-binding",
            format!(
                "a placeholder{which} is in {place} of a request that it is not bound to; nothing \
                 was sent"
            ),
        );
        match credential {
            Some(credential) => credential.named(denial),
            None => denial,
        }
    }

    /// CR3, row 41.
    fn refuse_foreign(
        &self,
        first: &Credential,
        request: &Outgoing<'_>,
        filled: &Filled,
    ) -> Result<(), Denial> {
        let refused = |place: &str| {
            let mut denial = place::foreign(first.binding.mode);
            denial.reason = format!("{} ({place})", denial.reason);
            Err(first.named(denial))
        };
        for (name, value) in &*request.headers {
            let is_foreign = match name {
                _ if value.is_empty() || filled.headers.contains(name) => false,
                name if foreign::is_cookie(name) => !self.knows_cookies(request.destination, value),
                name => foreign::is_header(name),
            };
            if is_foreign {
                return refused(&format!("in the header `{name}`"));
            }
        }
        for field in request.query.as_deref().unwrap_or_default().split('&') {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            let name = place::query_decoded(name);
            let is_free = value.is_empty() || filled.parameters.contains(&name);
            if !is_free && foreign::is_parameter(&name) {
                return refused(&format!("in the parameter `{}`", name.escape_default()));
            }
        }
        Ok(())
    }

    fn knows_cookies(&self, destination: &Destination, value: &HeaderValue) -> bool {
        let cookies = self.cookies.borrow();
        value
            .as_bytes()
            .split(|byte| *byte == b';')
            .map(<[u8]>::trim_ascii)
            .filter(|pair| !pair.is_empty())
            .all(|pair| cookies.contains(&cookie_hash(destination, pair)))
    }

    fn patterns(&self, credentials: &[&Credential]) -> Result<Rc<Patterns>, String> {
        let numbers: Vec<usize> = credentials.iter().map(|one| one.number).collect();
        if let Some(known) = self.searched.borrow().get(&numbers) {
            return Ok(Rc::clone(known));
        }
        let texts = credentials.iter().flat_map(|one| one.searched_forms());
        let patterns = Rc::new(Patterns::new(texts.collect())?);
        let mut searched = self.searched.borrow_mut();
        searched.insert(numbers, Rc::clone(&patterns));
        Ok(patterns)
    }
}

impl Credential {
    fn new(
        number: usize,
        binding: &Binding,
        source: SecretSource,
        fetch: &Rc<dyn Fetch>,
    ) -> Result<Self, String> {
        place::check_form(&binding.form, binding.mode)?;
        let is_signed = matches!(binding.form, Attach::SigV4 { .. });
        if matches!(binding.source, Source::AwsSts { .. }) && !is_signed {
            return Err("keys of AWS STS can only sign: attach them by sigv4".to_owned());
        }
        let value = match source {
            SecretSource::Value(secret) => {
                check_secret(secret.reveal(), binding)?;
                Value::Fixed(secret)
            }
            SecretSource::Mint(parts) => {
                let minted = Minted::new(&binding.source, parts, Rc::clone(fetch))?;
                Value::Minted(Box::new(minted))
            }
        };
        let known = match &value {
            Value::Fixed(secret) => vec![secret.clone()],
            Value::Minted(_) => Vec::new(),
        };
        let paths = binding.paths.iter().map(|path| Pattern::new(path));
        Ok(Self {
            number,
            binding: binding.clone(),
            paths: paths.collect::<Result<_, _>>()?,
            value,
            placeholder: None,
            known: RefCell::new(known),
        })
    }

    fn covers(&self, method: &Method, path: &str) -> bool {
        let methods = &self.binding.methods;
        (methods.is_empty() || methods.iter().any(|one| one == method.as_str()))
            && (self.paths.is_empty() || self.paths.iter().any(|one| one.matches(path)))
    }

    /// Row 46, and the end of a binding.
    fn may_be_used(&self, request: &Outgoing<'_>) -> Result<(), Denial> {
        let is_plain = request.transport == Transport::Plaintext;
        if is_plain && !self.binding.plaintext {
            return Err(self.named(denied(
                "plaintext-credential",
                "a credential is bound to this request, and it would go out unencrypted: use https"
                    .to_owned(),
            )));
        }
        match self.binding.expires_unix {
            Some(end) if request.now_unix >= end => Err(self.named(denied(
                "expired",
                format!(
                    "the credential `{}` has expired in the policy",
                    self.binding.name
                ),
            ))),
            _ => Ok(()),
        }
    }

    fn label(&self) -> (usize, String) {
        (self.number, self.binding.name.clone())
    }

    fn named(&self, denial: Denial) -> Denial {
        Denial {
            rule: self.binding.rule.id.clone(),
            origin: self.binding.rule.origin.clone(),
            ..denial
        }
    }

    /// What a reload must not forget.
    fn inherit(&mut self, previous: Option<&Vault>) {
        let same = |one: &&Credential| one.binding.name == self.binding.name;
        let Some(before) = previous.and_then(|vault| vault.credentials.iter().find(same)) else {
            return;
        };
        for secret in before.known.borrow().iter() {
            self.learn(secret);
        }
    }

    /// Remembers a secret that responses may hold from now on; whether it is
    /// new.
    fn learn(&self, secret: &SecretText) -> bool {
        let mut known = self.known.borrow_mut();
        if known.contains(secret) {
            return false;
        }
        if known.len() >= KNOWN_MAX {
            known.remove(0);
        }
        known.push(secret.clone());
        true
    }

    fn searched_forms(&self) -> Vec<zeroize::Zeroizing<Vec<u8>>> {
        let known = self.known.borrow();
        let known = known.iter();
        let texts: Vec<SecretText> = match self.binding.form {
            Attach::SigV4 { .. } => known
                .filter_map(|keys| Keys::parse(keys.reveal()).ok())
                .flat_map(|keys| keys.secrets().cloned().collect::<Vec<_>>())
                .collect(),
            _ => known.cloned().collect(),
        };
        texts
            .iter()
            .map(SecretText::reveal)
            // Shorter ones are only there where nothing is scrubbed.
            .filter(|secret| secret.len() >= SECRET_BYTES_MIN)
            .flat_map(forms)
            .collect()
    }

    fn unavailable(&self, reason: &str) -> Denial {
        self.named(denied(
            "credential-unavailable",
            format!(
                "the credential `{}` of this host cannot be had, and nothing is sent without it: \
                 {reason}",
                self.binding.name
            ),
        ))
    }
}

/// Places that belong to the bound credentials of one request.
#[derive(Default)]
struct Filled {
    headers: Vec<HeaderName>,
    parameters: Vec<String>,
}

impl Filled {
    fn mention(&mut self, form: &Attach) {
        self.headers.extend(place::header_of(form));
        if matches!(form, Attach::SigV4 { .. }) {
            self.headers.push(sigv4::SECURITY_TOKEN);
        }
        if let Attach::Query { name } = form {
            self.parameters.push(name.clone());
        }
    }
}

fn head_of<'a>(request: &'a mut Outgoing<'_>) -> Head<'a> {
    Head {
        headers: request.headers,
        path: request.path,
        query: request.query,
    }
}

/// Signs a request, or plans to once its body is known.
fn sign(
    wanted: &Wanted,
    scope: (Option<&str>, Option<&str>),
    request: &mut Outgoing<'_>,
    applied: &mut Applied,
) -> Result<Placed, Denial> {
    let mut signable = Signable {
        destination: request.destination,
        default_port: match request.transport {
            Transport::VerifiedTls => 443,
            Transport::Plaintext => 80,
        },
        method: request.method.as_str(),
        headers: request.headers,
        path: request.path,
        query: request.query.as_deref(),
        now_unix: request.now_unix,
    };
    let Some(unsigned) = sigv4::prepare(wanted, scope, &mut signable)? else {
        return Ok(Placed::No);
    };
    if let Some(later) = unsigned.sign_early(request.headers)? {
        applied.body.get_or_insert_default().sign = Some(later);
    }
    Ok(Placed::Yes)
}

fn check_secret(secret: &str, binding: &Binding) -> Result<(), String> {
    if secret.is_empty() {
        return Err("the secret is empty".to_owned());
    }
    if secret.len() > SECRET_BYTES_MAX {
        return Err(format!("the secret has more than {SECRET_BYTES_MAX} bytes"));
    }
    // Row 47: a line end would begin another header.
    if secret.chars().any(char::is_control) {
        return Err("the secret has a line end or another control character".to_owned());
    }
    if secret.trim() != secret {
        return Err("the secret begins or ends with a space".to_owned());
    }
    if matches!(binding.form, Attach::SigV4 { .. }) {
        Keys::parse(secret)?;
    }
    if matches!(binding.form, Attach::Header { .. }) && HeaderValue::from_str(secret).is_err() {
        return Err("the secret has letters that cannot stand in a header".to_owned());
    }
    if binding.scrub && secret.len() < SECRET_BYTES_MIN {
        return Err(format!(
            "the secret is shorter than {SECRET_BYTES_MIN} bytes, so it could not be told from \
             other text in responses; use a longer one"
        ));
    }
    Ok(())
}

/// The placeholder of the last credential: the one that its variable has
/// already, or a new one.
fn placeholder_for(
    credentials: &[Credential],
    previous: Option<&Vault>,
) -> Result<Option<String>, String> {
    let Some((last, before)) = credentials.split_last() else {
        return Ok(None);
    };
    if last.binding.mode == Mode::Attach {
        return Ok(None);
    }
    let Some(variable) = &last.binding.variable else {
        return Err("a placeholder needs a variable that it is put into".to_owned());
    };
    let same = |one: &&Credential| one.binding.variable.as_ref() == Some(variable);
    if let Some(other) = before.iter().find(same) {
        if other.binding.source != last.binding.source {
            return Err(format!(
                "the variable {variable} has the placeholder of `{}` already",
                other.binding.name
            ));
        }
        return Ok(other.placeholder.clone());
    }
    let kept = previous
        .and_then(|vault| vault.credentials.iter().find(same))
        .and_then(|one| one.placeholder.clone());
    if kept.is_some() {
        return Ok(kept);
    }
    let random = SystemRandom::new();
    let placeholder = match &last.binding.source {
        Source::GitHubApp { .. } => placeholder::of_shape(Shape::GitHubInstallation, &random),
        Source::AwsSts { .. } => placeholder::of_shape(Shape::AwsAccessKey, &random),
        Source::OAuth2 { .. } => placeholder::of_shape(Shape::Opaque, &random),
        _ => match &last.value {
            Value::Fixed(secret) => match last.binding.form {
                // Clients name the id of a key; the key itself they only use.
                Attach::SigV4 { .. } => {
                    placeholder::like(Keys::parse(secret.reveal())?.id(), &random)
                }
                _ => placeholder::like(secret.reveal(), &random),
            },
            Value::Minted(_) => placeholder::of_shape(Shape::Opaque, &random),
        },
    };
    placeholder.map(Some)
}

/// Credentials with the same name compete for one place of a request.
fn place_name(form: &Attach) -> String {
    match form {
        Attach::Header { .. } | Attach::Basic { .. } | Attach::SigV4 { .. } => {
            place::header_of(form).map_or_else(String::new, |name| format!("header {name}"))
        }
        Attach::Query { name } => format!("query {name}"),
        Attach::Path => "path".to_owned(),
        Attach::Form { name } => format!("form {name}"),
        Attach::Json { pointer } => format!("json {pointer}"),
    }
}

fn cookie_hash(destination: &Destination, pair: &[u8]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(destination.to_string().as_bytes());
    context.update(b"\n");
    context.update(pair);
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(text, part).is_some()
}

fn unsearchable(reason: String) -> Denial {
    denied("secret-in-response", reason)
}

#[cfg(test)]
mod tests;
