//! What of a caller's git configuration enters a private home: who commits,
//! how repositories are made, and what is kept out of them. Nothing that names
//! a program or a token.

/// Name of the file in the home directory (git-config(1)).
pub const FILE_NAME: &str = ".gitconfig";
/// Id of the rule that puts it into the private home.
pub const RULE: &str = "built-in.git-identity";
/// The file of names that no repository takes, below the directory of
/// configuration (gitignore(5)).
pub const EXCLUDES_FILE: &str = "git/ignore";
/// Id of the rule that puts it into the private home.
pub const EXCLUDES_RULE: &str = "built-in.git-excludes";

/// Whether a rule put a file for git into the private home.
pub fn is_own_file(rule: &str) -> bool {
    [RULE, EXCLUDES_RULE].contains(&rule)
}

/// The keys that enter, as `section.name` in lower case.
pub const KEYS: [&str; 5] = [
    "user.name",
    "user.email",
    "init.defaultbranch",
    "core.autocrlf",
    "safe.directory",
];

/// The lines that keep these paths, each relative to the top of its work tree,
/// out of `git add`, `status` and `stash`, after the caller's `own` lines.
///
/// Git reports what it cannot read as an error that ends `git add -A`. A path
/// with a line end cannot be written in such a file, and is left out.
pub fn excludes<'a>(own: &[u8], hidden: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut text = own.to_vec();
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    for path in hidden.filter(|path| !path.iter().any(|byte| b"\r\n".contains(byte))) {
        text.push(b'/');
        for &byte in path {
            // A trailing space would be dropped.
            if matches!(byte, b'\\' | b'*' | b'?' | b'[' | b' ') {
                text.push(b'\\');
            }
            text.push(byte);
        }
        text.push(b'\n');
    }
    text
}

/// The file with these settings; `None` when there are none. Keys that are
/// not in [`KEYS`] and values with control characters are left out, so a
/// value can never end its line and start another setting.
pub fn configuration(settings: &[(String, Vec<u8>)]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let allowed = settings.iter().filter(|(key, value)| {
        KEYS.contains(&key.as_str()) && !value.iter().any(u8::is_ascii_control)
    });
    for (key, value) in allowed {
        let Some((section, name)) = key.split_once('.') else {
            continue;
        };
        text.extend_from_slice(format!("[{section}]\n\t{name} = \"").as_bytes());
        for &byte in value {
            if matches!(byte, b'"' | b'\\') {
                text.push(b'\\');
            }
            text.push(byte);
        }
        text.extend_from_slice(b"\"\n");
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(settings: &[(&str, &str)]) -> Option<String> {
        let settings: Vec<_> = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect();
        configuration(&settings).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn values_are_quoted() {
        assert_eq!(
            shown(&[("user.name", r#"A "B" \ C; # D"#)]).unwrap(),
            "[user]\n\tname = \"A \\\"B\\\" \\\\ C; # D\"\n"
        );
    }

    #[test]
    fn hidden_names_are_written_as_patterns_that_match_only_them() {
        let hidden = ["a/.env", "b*[c]? \\", "two\nlines", "!x"];
        let text = excludes(b"*.swp", hidden.iter().map(|name| name.as_bytes()));
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "*.swp\n/a/.env\n/b\\*\\[c]\\?\\ \\\\\n/!x\n"
        );
        assert_eq!(excludes(b"", std::iter::empty()), b"");
    }

    #[test]
    fn nothing_else_enters() {
        let settings = [
            ("core.sshcommand", "evil"),
            ("user.signingkey", "key"),
            ("user.name", "a\n[core]\n\tpager = evil"),
        ];
        assert_eq!(shown(&settings), None);
    }
}
