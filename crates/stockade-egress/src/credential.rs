//! Credentials: attached to requests on the way out, taken out of responses on
//! the way in, and minted where that narrows them (CR1, CR2, CR3).
//!
//! The secrets live here and nowhere else. Which destination a request has is
//! decided before and handed in: it is the one that was dialled and whose
//! certificate was checked, never what a header says (row 30). Moving bytes is
//! left to the callers, and so is following redirects, which nobody does.

mod body;
pub mod decode;
mod encodings;
mod foreign;
mod github_app;
mod mint;
mod oauth2;
mod patterns;
mod place;
mod placeholder;
mod scrub;
mod sigv4;
mod sts;
mod vault;

pub use body::{BODY_BYTES_MAX, BodyPlan};
pub use encodings::SECRET_BYTES_MIN;
pub(crate) use encodings::forms;
pub use patterns::{Patterns, Scan};
pub use scrub::Scrubber;
pub use stockade_policy::network::judge::Denial;
pub use vault::{Applied, Fetch, Fetched, Outgoing, Transport, Vault};

use stockade_policy::network::rules::Mode;

use crate::secret::SecretText;

/// A secret and what the client has to send in its place.
struct Wanted {
    mode: Mode,
    secret: SecretText,
    /// In mode `Replace`.
    placeholder: Option<String>,
}

/// A denial that names no rule yet; [`vault`] fills in the binding's.
fn denied(code: &'static str, reason: String) -> Denial {
    Denial {
        code,
        rule: "credential".to_owned(),
        origin: "built-in".to_owned(),
        reason,
        smallest_grant: None,
    }
}
