//! Text that must not be seen: never printed, wiped when dropped.

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// A secret value. `Debug` shows its length only; there is no `Display`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The value, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SecretText({} bytes)", self.0.len())
    }
}
