//! Stockade's view of the file system in the words of bubblewrap.
//!
//! The comparison is fair only if both make the same mounts. So they are not listed here a second
//! time: `stockade explain --json` says what a run in a project would see, and each step becomes
//! the option of `bwrap` that does the same.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;

/// The options of `bwrap` that make the mounts of `plan`, the output of `stockade explain --json`.
///
/// `empty` is an empty file; it stands for each file whose content Stockade makes up. A step that
/// is not known here is an error, so that no mount is missing in silence.
pub fn options_of(plan: &str, empty: &Path) -> Result<Vec<String>> {
    let plan: Value = serde_json::from_str(plan).context("the plan is not JSON")?;
    let empty = empty
        .to_str()
        .context("the empty file's path is not UTF-8")?;
    // First, because later options put files and masks below them.
    let mut options = words(&["--dev", "/dev", "--proc", "/proc"]);
    for step in list(&plan, "steps")? {
        let name = text(step, "name")?;
        if let Some((kind, path)) = name
            .strip_prefix("view.")
            .and_then(|view| view.split_once(' '))
        {
            options.extend(option_of_step(&plan, kind, path, empty)?);
        }
    }
    for mask in list(&plan, "masks")? {
        let path = text(mask, "path")?;
        options.extend(match mask["directory"].as_bool() {
            Some(true) => words(&["--tmpfs", path, "--remount-ro", path]),
            Some(false) => words(&["--ro-bind", "/dev/null", path]),
            None => bail!("the mask of {path} does not say whether it is a directory"),
        });
    }
    Ok(options)
}

fn option_of_step(plan: &Value, kind: &str, path: &str, empty: &str) -> Result<Vec<String>> {
    // `--dev` and `--proc` make all of these.
    if path.starts_with("/dev/") || kind == "proc" {
        return Ok(Vec::new());
    }
    Ok(match kind {
        "bind" if is_writable(plan, path)? => words(&["--bind", path, path]),
        "bind" | "copy" => words(&["--ro-bind", path, path]),
        "private" => words(&["--tmpfs", path]),
        "file" | "settings" => words(&["--ro-bind", empty, path]),
        "caches" => words(&["--bind-try", text(&plan["caches"], "source")?, path]),
        "link" => {
            // Tools find their caches by links that are not there outside.
            let target = std::fs::read_link(path).unwrap_or_else(|_| "/caches".into());
            let target = target.to_str().context("the link's target is not UTF-8")?;
            words(&["--symlink", target, path])
        }
        _ => bail!("bubblewrap has no option here for the step view.{kind} {path}"),
    })
}

/// The nearest grant at or above `path` decides, as in the plan.
fn is_writable(plan: &Value, path: &str) -> Result<bool> {
    let mut nearest: Option<(usize, bool)> = None;
    for grant in list(plan, "grants")? {
        let granted = Path::new(text(grant, "path")?);
        let depth = granted.components().count();
        if Path::new(path).starts_with(granted) && nearest.is_none_or(|(known, _)| depth > known) {
            nearest = Some((depth, text(grant, "access")? == "write"));
        }
    }
    let (_, writable) = nearest.with_context(|| format!("nothing grants the mount {path}"))?;
    Ok(writable)
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key]
        .as_array()
        .with_context(|| format!("the plan has no list `{key}`"))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("the plan lacks a text `{key}`"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(steps: &str) -> Result<String> {
        let plan = format!(
            r#"{{ "steps": [{steps}],
                 "grants": [{{ "path": "/p", "access": "write" }},
                            {{ "path": "/usr", "access": "read" }}],
                 "masks": [{{ "path": "/etc/shadow", "directory": false }},
                           {{ "path": "/etc/ssl/private", "directory": true }}] }}"#
        );
        Ok(options_of(&plan, Path::new("/empty"))?.join(" "))
    }

    #[test]
    fn each_step_and_mask_becomes_an_option() {
        let steps = r#"{"name": "view.root"}, {"name": "view.device /dev/null"},
            {"name": "view.proc /proc"}, {"name": "view.private /tmp"}, {"name": "view.bind /p"},
            {"name": "view.bind /p/.git"}, {"name": "view.bind /usr"}, {"name": "view.file /proc/meminfo"},
            {"name": "confine.landlock"}"#;
        assert_eq!(
            translated(steps).unwrap(),
            "--dev /dev --proc /proc --tmpfs /tmp --bind /p /p --bind /p/.git /p/.git \
             --ro-bind /usr /usr --ro-bind /empty /proc/meminfo --ro-bind /dev/null /etc/shadow \
             --tmpfs /etc/ssl/private --remount-ro /etc/ssl/private"
        );
    }

    #[test]
    fn an_unknown_step_is_an_error() {
        let error = translated(r#"{"name": "view.overlay /p"}"#).unwrap_err();
        assert!(error.to_string().contains("view.overlay /p"), "{error}");
    }
}
