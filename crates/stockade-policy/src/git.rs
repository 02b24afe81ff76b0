//! What of a caller's git configuration enters a private home: who commits,
//! and how repositories are made. Nothing that names a program or a token.

/// Name of the file in the home directory (git-config(1)).
pub const FILE_NAME: &str = ".gitconfig";
/// Id of the rule that puts it into the private home.
pub const RULE: &str = "built-in.git-identity";
/// The keys that enter, as `section.name` in lower case.
pub const KEYS: [&str; 5] = [
    "user.name",
    "user.email",
    "init.defaultbranch",
    "core.autocrlf",
    "safe.directory",
];

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
    fn nothing_else_enters() {
        let settings = [
            ("core.sshcommand", "evil"),
            ("user.signingkey", "key"),
            ("user.name", "a\n[core]\n\tpager = evil"),
        ];
        assert_eq!(shown(&settings), None);
    }
}
