//! Which names belong to one owner: the public suffix list, compiled in.
//!
//! A pattern over all names below a public suffix (`**.co.uk`, `*.github.io`)
//! would permit hosts that anybody can register, so no rule may be one.

/// Top-level names that are never delegated, so that names below them are this
/// network's own (RFC 2606, RFC 6762 appendix G, and ICANN's resolutions on
/// `internal`, `corp`, `home` and `mail`).
const OWN: &[&str] = &[
    "corp",
    "example",
    "home",
    "home.arpa",
    "internal",
    "intranet",
    "lan",
    "local",
    "mail",
    "private",
    "test",
];

/// Whether names one label below `base` can belong to strangers.
pub fn is_shared(base: &str) -> bool {
    if OWN.contains(&base) {
        return false;
    }
    // The list has rules such as `*.kawasaki.jp`, whose base is no suffix.
    let below = format!("x.{base}");
    is_suffix(base) || is_suffix(&below)
}

/// The name that its owner registered, by which questions are grouped; the
/// name itself where there is none above it.
pub fn registrable(name: &str) -> &str {
    psl::domain_str(name).unwrap_or(name)
}

/// A top-level name that is not listed counts: it may be newer than the list.
fn is_suffix(name: &str) -> bool {
    psl::suffix_str(name).is_some_and(|suffix| suffix == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_may_be_below_a_public_suffix() {
        for base in ["com", "co.uk", "github.io", "kawasaki.jp", "newtld", "ck"] {
            assert!(is_shared(base), "{base}");
        }
        for base in [
            "example.com",
            "acme.github.io",
            "internal",
            "test",
            "a.test",
        ] {
            assert!(!is_shared(base), "{base}");
        }
    }

    #[test]
    fn questions_are_grouped_by_owner() {
        assert_eq!(registrable("a.b.example.co.uk"), "example.co.uk");
        assert_eq!(registrable("x.y.test"), "y.test");
        assert_eq!(registrable("localhost"), "localhost");
    }
}
