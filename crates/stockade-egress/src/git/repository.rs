//! The one name of a repository: `owner/name`, however it was written.
//!
//! A final `.git` and a leading slash are no part of the name, as on every
//! forge. On a server where `/a/b` and `~/a/b` are two repositories, one rule
//! names both.

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// The canonical name for a path in a URL or on an SSH command line; `None`
/// when it is empty, has a byte or a segment that a server may read in another
/// way, or is too long.
pub fn canonical(path: &str) -> Option<&str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let name = path.strip_suffix(".git").unwrap_or(path);
    let good = name.len() <= NAME_BYTES_MAX && name.split('/').all(is_segment);
    // `a.git.git` is `a.git` to one server and `a` to another.
    (good && !name.ends_with(".git")).then_some(name)
}

fn is_segment(segment: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+@~".contains(&byte);
    !segment.is_empty()
        && segment.bytes().all(plain)
        && segment != "."
        && segment != ".."
        && segment != ".git"
        // An option to some command, or a home directory that a shell expands.
        && !segment.starts_with(['-', '~'])
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn one_repository_has_one_name() {
        for path in ["/o/n.git", "o/n", "o/n.git/", "/o/n"] {
            assert_eq!(canonical(path), Some("o/n"), "{path}");
        }
        assert_eq!(canonical("g/s/n.git"), Some("g/s/n"));
        assert_eq!(canonical("n.x-y_z+1"), Some("n.x-y_z+1"));
    }

    #[test]
    fn what_servers_may_read_differently_is_refused() {
        let long = "a".repeat(600);
        for path in [
            "",
            "/",
            "//o/n",
            "o//n",
            "o/../n",
            "./n",
            "~o/n",
            "o/-n",
            "o/n'",
            "o/n;x",
            "o/n n",
            "o/n%2e",
            "o\\n",
            "o/ä",
            "o/n.git.git",
            "o/.git",
            ".git",
            "o/$n",
            "o/n!",
            &long,
        ] {
            assert_eq!(canonical(path), None, "{path:?}");
        }
    }
}
