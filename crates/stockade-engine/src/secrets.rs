//! Reads the secrets that a policy names, outside and before anything runs.
//!
//! They go to the egress process and nowhere else: not into the plan, the log,
//! an argument or a variable. What they are for is decided there; minting is
//! done there too.

mod bus;
mod keyring;
mod source;
pub mod store;

use stockade_egress::secret::SecretText;
use stockade_egress::wire::SecretSource;
use stockade_policy::network::rules::{Binding, Source};
use stockade_policy::path::AbsolutePath;

use crate::state::{Places, StateDirectory, StateError};

/// Largest secret, in bytes; private keys are the longest.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;

/// Why a secret cannot be had. Never holds any part of one.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot read the credential `{name}`: {reason}\n  remedy: {remedy}")]
    Credential {
        name: String,
        reason: String,
        remedy: String,
    },
    #[error("cannot use the secret store: {reason}\n  remedy: {remedy}")]
    Store { reason: String, remedy: String },
    #[error(transparent)]
    State(#[from] StateError),
}

/// What is wrong with one source, before it is known whose it is.
struct Trouble {
    reason: String,
    remedy: String,
}

/// The secrets of `bindings`, in their order. Each source is read once, even
/// when several bindings share it. Commands are not taken from the project: what runs
/// inside may have put them there.
pub fn read(
    bindings: &[Binding],
    project: &AbsolutePath,
    places: &Places,
) -> Result<Vec<SecretSource>, SecretError> {
    let mut reader = Reader {
        project,
        places,
        known: Vec::new(),
    };
    let mut secrets = Vec::with_capacity(bindings.len());
    for binding in bindings {
        let nested = nested(&binding.source);
        let mut values = Vec::new();
        for source in nested.clone().unwrap_or_else(|| vec![&binding.source]) {
            let value = reader.value(source).map_err(|trouble| match trouble {
                Failure::Source(trouble) => SecretError::Credential {
                    name: binding.name.clone(),
                    reason: trouble.reason,
                    remedy: trouble.remedy,
                },
                Failure::Store(error) => error,
            })?;
            values.push(value);
        }
        secrets.push(match (nested, values.pop()) {
            (None, Some(value)) => SecretSource::Value(value),
            (_, last) => SecretSource::Mint(values.into_iter().chain(last).collect()),
        });
    }
    Ok(secrets)
}

/// The sources that a minted secret is made of, in the order in which they are
/// declared; `None` when the source is a value itself.
fn nested(source: &Source) -> Option<Vec<&Source>> {
    match source {
        Source::Env { .. }
        | Source::File { .. }
        | Source::Command { .. }
        | Source::Keyring { .. } => None,
        Source::OAuth2 {
            client_secret,
            refresh_token,
            ..
        } => {
            let both = [client_secret, refresh_token];
            Some(both.into_iter().flatten().map(Box::as_ref).collect())
        }
        Source::GitHubApp { private_key, .. } => Some(vec![private_key]),
        Source::AwsSts {
            access_key_id,
            secret_access_key,
            ..
        } => Some(vec![access_key_id, secret_access_key]),
    }
}

struct Reader<'a> {
    project: &'a AbsolutePath,
    places: &'a Places,
    known: Vec<(Source, SecretText)>,
}

enum Failure {
    Source(Trouble),
    Store(SecretError),
}

impl Reader<'_> {
    fn value(&mut self, source: &Source) -> Result<SecretText, Failure> {
        if let Some((_, value)) = self.known.iter().find(|(known, _)| known == source) {
            return Ok(value.clone());
        }
        let value = match source {
            Source::Env { variable } => source::variable(variable),
            Source::File { path } => source::file(path),
            Source::Command { argv } => source::command(argv, self.project),
            Source::Keyring { name } => return self.stored(source, name),
            _ => Err(Trouble {
                reason: "a minted secret cannot be made of another minted one".to_owned(),
                remedy: "name an env, file, command or keyring source".to_owned(),
            }),
        };
        let value = value.map_err(Failure::Source)?;
        self.known.push((source.clone(), value.clone()));
        Ok(value)
    }

    fn stored(&mut self, source: &Source, name: &str) -> Result<SecretText, Failure> {
        let state = StateDirectory::open(self.places);
        let state = state.map_err(|error| Failure::Store(error.into()))?;
        let store = store::Store::open(state);
        let value = store.get(name).map_err(Failure::Store)?.ok_or_else(|| {
            Failure::Source(Trouble {
                reason: format!("no secret is stored under the name `{name}`"),
                remedy: format!("store it with `stockade secret set {name}`"),
            })
        })?;
        self.known.push((source.clone(), value.clone()));
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
