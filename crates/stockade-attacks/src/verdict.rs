//! What became of an attack.

use serde::{Deserialize, Serialize};
use std::io;

/// What became of an attack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing was obtained; says how it was stopped, for example `ENOENT`.
    Stopped(String),
    /// Something was obtained; says what.
    Escaped(String),
    /// The attack could not be tried, or only a check outside can tell.
    Inconclusive(String),
}

impl Verdict {
    /// Success of the call is an escape; an error is a stop. Errors that only
    /// show a mistake in the attack itself leave the question open.
    pub fn of<T>(result: io::Result<T>, gained: impl FnOnce(T) -> String) -> Self {
        match result {
            Ok(value) => Self::Escaped(gained(value)),
            Err(error) => Self::refused(&error),
        }
    }

    /// How an error counts.
    pub fn refused(error: &io::Error) -> Self {
        let name = error_name(error);
        match name.as_str() {
            "EFAULT" | "EINVAL" | "ENOTTY" | "ETXTBSY" => Self::Inconclusive(name),
            _ => Self::Stopped(name),
        }
    }

    /// Several ways to one end: an escape counts before an open question, and
    /// that before a stop. Nothing tried is an open question.
    pub fn all(verdicts: impl IntoIterator<Item = Verdict>) -> Self {
        let mut stops: Vec<String> = Vec::new();
        let mut open = None;
        for verdict in verdicts {
            match verdict {
                Self::Escaped(_) => return verdict,
                Self::Inconclusive(_) => open = open.or(Some(verdict)),
                Self::Stopped(how) if stops.contains(&how) => {}
                Self::Stopped(how) => stops.push(how),
            }
        }
        match open {
            Some(open) => open,
            None if stops.is_empty() => Self::Inconclusive("nothing to try".into()),
            None => Self::Stopped(stops.join(", ")),
        }
    }

    /// Joins what was seen inside with what a check outside saw: an escape
    /// seen by either counts, and outside answers what inside left open.
    pub fn joined(self, outside: Verdict) -> Self {
        match (self, outside) {
            (escaped @ Self::Escaped(_), _) | (_, escaped @ Self::Escaped(_)) => escaped,
            (Self::Inconclusive(_), outside @ Self::Stopped(_)) => outside,
            (inside, _) => inside,
        }
    }

    /// The same verdict, with a word on which of several ways it was.
    pub fn about(self, what: impl std::fmt::Display) -> Self {
        match self {
            Self::Stopped(how) => Self::Stopped(how),
            Self::Escaped(gained) => Self::Escaped(format!("{what}: {gained}")),
            Self::Inconclusive(why) => Self::Inconclusive(format!("{what}: {why}")),
        }
    }
}

/// The name of an error as in errno(3), or its text.
pub fn error_name(error: &io::Error) -> String {
    const NAMES: &[(i32, &str)] = &[
        (1, "EPERM"),
        (2, "ENOENT"),
        (3, "ESRCH"),
        (6, "ENXIO"),
        (8, "ENOEXEC"),
        (9, "EBADF"),
        (11, "EAGAIN"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (14, "EFAULT"),
        (16, "EBUSY"),
        (17, "EEXIST"),
        (18, "EXDEV"),
        (19, "ENODEV"),
        (20, "ENOTDIR"),
        (22, "EINVAL"),
        (24, "EMFILE"),
        (25, "ENOTTY"),
        (26, "ETXTBSY"),
        (28, "ENOSPC"),
        (30, "EROFS"),
        (38, "ENOSYS"),
        (92, "ENOPROTOOPT"),
        (93, "EPROTONOSUPPORT"),
        (94, "ESOCKTNOSUPPORT"),
        (95, "EOPNOTSUPP"),
        (97, "EAFNOSUPPORT"),
        (99, "EADDRNOTAVAIL"),
        (101, "ENETUNREACH"),
        (107, "ENOTCONN"),
        (110, "ETIMEDOUT"),
        (111, "ECONNREFUSED"),
        (113, "EHOSTUNREACH"),
        (116, "ESTALE"),
        (122, "EDQUOT"),
        (126, "ENOKEY"),
    ];
    let code = error.raw_os_error();
    let known = NAMES.iter().find(|(number, _)| Some(*number) == code);
    known.map_or_else(|| error.to_string(), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::Verdict::{self, *};

    #[test]
    fn an_escape_counts_wherever_it_was_seen() {
        let stopped = || Stopped("ENOENT".into());
        let escaped = || Escaped("a secret".into());
        let open = || Inconclusive("not tried".into());
        assert_eq!(stopped().joined(escaped()), escaped());
        assert_eq!(escaped().joined(stopped()), escaped());
        assert_eq!(open().joined(stopped()), stopped());
        assert_eq!(stopped().joined(open()), stopped());
        assert_eq!(Verdict::all([stopped(), open(), escaped()]), escaped());
        assert_eq!(Verdict::all([stopped(), open()]), open());
        assert_eq!(Verdict::all([stopped(), stopped()]), stopped());
        assert!(matches!(Verdict::all([]), Inconclusive(_)));
    }
}
