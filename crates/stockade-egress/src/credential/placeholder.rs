//! Stand-ins for secrets, which programs inside may see.
//!
//! A stand-in looks like what its provider issues (clients check prefixes and
//! lengths) and cannot be guessed, so that whoever sends it has seen it in
//! this run.

use ring::rand::SecureRandom;

/// Random choices that make a stand-in unguessable, in bits.
const BITS_MIN: u32 = 60;

/// Prefixes by which providers mark their tokens, longest first where one
/// begins with another. They say nothing about the secret.
const PREFIXES: &[&str] = &[
    "github_pat_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "gldt-",
    "glcbt-",
    "sk-ant-api03-",
    "sk-ant-oat01-",
    "sk-ant-",
    "sk-proj-",
    "sk-svcacct-",
    "sk-or-v1-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "pk_live_",
    "pk_test_",
    "sk-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "npm_",
    "pypi-",
    "cio",
    "hf_",
    "dop_v1_",
    "dckr_pat_",
    "shpat_",
    "figd_",
    "lin_api_",
    "ntn_",
    "hvs.",
    "SG.",
    "r8_",
    "gsk_",
    "eyJ",
];

/// What a secret that is minted later will look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    GitHubInstallation,
    AwsAccessKey,
    Opaque,
}

/// A stand-in of the same length and shape as `secret`; longer only where so
/// few characters could be guessed.
pub fn like(secret: &str, random: &dyn SecureRandom) -> Result<String, String> {
    let prefix = PREFIXES.iter().find(|prefix| secret.starts_with(**prefix));
    let prefix = prefix.copied().unwrap_or_default();
    let classes: Vec<Class> = secret[prefix.len()..].chars().map(Class::of).collect();
    let bits: u32 = classes.iter().map(|class| class.bits()).sum();
    loop {
        let mut text = prefix.to_owned();
        if bits >= BITS_MIN {
            for class in &classes {
                class.push(&mut text, random)?;
            }
        } else {
            let length = classes
                .len()
                .max(BITS_MIN.div_ceil(Class::Any.bits()) as usize);
            for _ in 0..length {
                Class::Any.push(&mut text, random)?;
            }
        }
        if text != secret {
            return Ok(text);
        }
    }
}

/// A stand-in for a secret that does not exist yet.
pub fn of_shape(shape: Shape, random: &dyn SecureRandom) -> Result<String, String> {
    let (prefix, class, length) = match shape {
        Shape::GitHubInstallation => ("ghs_", Class::Any, 36),
        Shape::AwsAccessKey => ("ASIA", Class::Upper, 16),
        Shape::Opaque => ("", Class::Any, 40),
    };
    let mut text = prefix.to_owned();
    for _ in 0..length {
        class.push(&mut text, random)?;
    }
    Ok(text)
}

#[derive(Clone, Copy)]
enum Class {
    Lower,
    Upper,
    Digit,
    /// Letters and digits, also for signs that could need quoting somewhere.
    Any,
    /// A sign that separates parts and stays.
    Separator(char),
}

impl Class {
    fn of(letter: char) -> Self {
        match letter {
            'a'..='z' => Self::Lower,
            'A'..='Z' => Self::Upper,
            '0'..='9' => Self::Digit,
            '-' | '_' | '.' => Self::Separator(letter),
            _ => Self::Any,
        }
    }

    fn letters(self) -> &'static [u8] {
        const ALL: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        match self {
            Self::Digit => &ALL[..10],
            Self::Upper => &ALL[10..36],
            Self::Lower => &ALL[36..],
            Self::Any => ALL,
            Self::Separator(_) => &[],
        }
    }

    /// Rounded down.
    fn bits(self) -> u32 {
        self.letters().len().checked_ilog2().unwrap_or(0)
    }

    fn push(self, text: &mut String, random: &dyn SecureRandom) -> Result<(), String> {
        if let Self::Separator(letter) = self {
            text.push(letter);
            return Ok(());
        }
        let letters = self.letters();
        // Bytes beyond the last whole multiple would favour the first letters.
        let fair = 256 - 256 % letters.len();
        loop {
            let mut byte = [0];
            random
                .fill(&mut byte)
                .map_err(|_| "the system gives no random numbers".to_owned())?;
            let byte = usize::from(byte[0]);
            if byte < fair {
                text.push(char::from(letters[byte % letters.len()]));
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;

    #[test]
    fn a_stand_in_looks_like_its_secret_and_is_another() {
        let random = SystemRandom::new();
        for secret in [
            "ghp_ABCdef0123456789ABCdef0123456789abcd",
            "sk-ant-api03-AbCdEf0123456789-_AbCdEf0123",
            "AKIAIOSFODNN7EXAMPLE",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ] {
            let stand_in = like(secret, &random).unwrap();
            assert_eq!(stand_in.len(), secret.len());
            assert_ne!(stand_in, secret);
            assert_ne!(stand_in, like(secret, &random).unwrap());
            let prefix = PREFIXES.iter().find(|prefix| secret.starts_with(**prefix));
            assert!(stand_in.starts_with(prefix.unwrap_or(&"")));
            assert!(
                stand_in
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            );
        }
    }

    #[test]
    fn a_short_secret_has_a_longer_stand_in() {
        let stand_in = like("12345678", &SystemRandom::new()).unwrap();
        assert_eq!(stand_in.len(), 12);
    }

    #[test]
    fn minted_secrets_have_a_shape_beforehand() {
        let random = SystemRandom::new();
        let token = of_shape(Shape::GitHubInstallation, &random).unwrap();
        assert!(token.starts_with("ghs_") && token.len() == 40);
        let key = of_shape(Shape::AwsAccessKey, &random).unwrap();
        assert!(key.starts_with("ASIA") && key.len() == 20);
    }
}
