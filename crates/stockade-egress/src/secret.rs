//! Text that must not be seen: never printed, wiped when dropped.
//!
//! Wiping is the most that can be done for memory that was copied by then; the
//! processes that hold secrets are not dumpable, which keeps others out.

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// A secret value. `Debug` shows its length only, and there is no `Display`:
///
/// ```compile_fail
/// let secret = stockade_egress::secret::SecretText::new("s3cret".to_owned());
/// println!("{secret}");
/// ```
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_for_debugging() {
        let secret = SecretText::new("s3cret".to_owned());
        assert_eq!(format!("{:?}", Some(&secret)), "Some(SecretText(6 bytes))");
        assert!(!format!("{secret:#?}").contains("s3cret"));
    }
}
