//! Files of a project that git runs, or reads settings from, because its
//! configuration says so: they are guarded as hooks are.
//!
//! What the configuration says is taken as it stands before the run. It can
//! only add guarded paths, so a hostile one gains nothing.

use std::collections::BTreeMap;

use rustix::fs::ResolveFlags;
use stockade_policy::git_config::{self, LeadKind};
use stockade_policy::guard::{Judged, Kind, Rule, Strength, exact_pattern};
use stockade_policy::path::{AbsolutePath, printable};
use stockade_policy::plan;
use stockade_sys::rustix;

use crate::regular;

/// Settings for all users of the machine (git-config(1), FILES).
const SYSTEM_FILE: &str = "/etc/gitconfig";
/// Most files that are read, with all that they include.
const FILES_MAX: usize = 32;
/// Most paths that are guarded because of them.
const RULES_MAX: usize = 512;

/// The rules for what the configurations that git reads in `workspace` lead
/// to, inside of it.
pub fn guarded(
    workspace: &AbsolutePath,
    home: &AbsolutePath,
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Vec<Rule> {
    let Some((top, own)) = repository(workspace) else {
        return Vec::new();
    };
    let mut finding = Finding {
        workspace,
        home,
        top: &top,
        files: 0,
        rules: Vec::new(),
    };
    let mut files = vec![SYSTEM_FILE.into()];
    files.extend(super::files(home, environment));
    for file in files {
        use std::os::unix::ffi::OsStrExt;
        if let Ok(file) = AbsolutePath::parse(file.as_os_str().as_bytes()) {
            finding.follow(&file);
        }
    }
    let common = below(&own, b"commondir")
        .and_then(|file| pointed(workspace, &file, b""))
        .unwrap_or_else(|| own.clone());
    for (directory, name) in [(&common, "config"), (&own, "config.worktree")] {
        if let Some(file) = below(directory, name.as_bytes()) {
            finding.follow(&file);
        }
    }
    finding.rules
}

/// The work tree that a directory is in, and its git directory.
fn repository(workspace: &AbsolutePath) -> Option<(AbsolutePath, AbsolutePath)> {
    let mut top = workspace.clone();
    loop {
        let dot = below(&top, b".git")?;
        if std::fs::symlink_metadata(dot.as_path()).is_ok() {
            let own = match dot.as_path().is_dir() {
                true => dot,
                false => pointed(workspace, &dot, b"gitdir: ")?,
            };
            return Some((top, own));
        }
        top = top.parent()?;
    }
}

/// Where a pointer file of git leads.
fn pointed(workspace: &AbsolutePath, file: &AbsolutePath, prefix: &[u8]) -> Option<AbsolutePath> {
    let text = read(workspace, file)?;
    file.link_target(text.strip_prefix(prefix)?.trim_ascii_end())
}

fn below(directory: &AbsolutePath, name: &[u8]) -> Option<AbsolutePath> {
    directory.join(name).ok()
}

struct Finding<'a> {
    workspace: &'a AbsolutePath,
    home: &'a AbsolutePath,
    /// The top of the work tree, where git runs hooks and filters.
    top: &'a AbsolutePath,
    files: usize,
    rules: Vec<Rule>,
}

impl Finding<'_> {
    /// Follows what one file says.
    fn follow(&mut self, file: &AbsolutePath) {
        self.files += 1;
        if self.files > FILES_MAX {
            return;
        }
        let Some(text) = read(self.workspace, file) else {
            return;
        };
        // What git would not read either leads nowhere.
        for lead in git_config::leads(&text).unwrap_or_default() {
            let origin = format!("{file}:{}", lead.line);
            match lead.kind {
                LeadKind::Hooks => {
                    if let Some(target) = self.resolve(&lead.value, None) {
                        self.guard(&target, true, &lead.key, &origin);
                    }
                }
                LeadKind::Include => {
                    if let Some(target) = self.resolve(&lead.value, Some(file)) {
                        self.guard(&target, false, &lead.key, &origin);
                        self.follow(&target);
                    }
                }
                LeadKind::Command => {
                    for word in git_config::words(&lead.value) {
                        self.word(word, &lead.key, &origin);
                    }
                }
            }
        }
    }

    /// A word of a command: a path, or the name of a file that is there.
    fn word(&mut self, word: &[u8], key: &str, origin: &str) {
        let Some(target) = self.resolve(word, None) else {
            return;
        };
        let is_file = match std::fs::metadata(target.as_path()) {
            Ok(found) => found.is_file(),
            Err(_) => word.contains(&b'/'),
        };
        if is_file {
            self.guard(&target, false, key, origin);
        }
    }

    /// A path as git resolves it: below the home directory, or relative to the
    /// file that includes it, or to the top of the work tree.
    fn resolve(&self, path: &[u8], file: Option<&AbsolutePath>) -> Option<AbsolutePath> {
        match (path.strip_prefix(b"~/"), file) {
            (Some(rest), _) => below(self.home, b"-")?.link_target(rest),
            (None, Some(file)) => file.link_target(path),
            (None, None) => below(self.top, b"-")?.link_target(path),
        }
    }

    /// Guards a path, and where it leads now when links are on the way.
    fn guard(&mut self, target: &AbsolutePath, is_directory: bool, key: &str, origin: &str) {
        let real = std::fs::canonicalize(target.as_path()).ok();
        let real = real.and_then(|path| {
            use std::os::unix::ffi::OsStringExt;
            AbsolutePath::parse(path.into_os_string().into_vec()).ok()
        });
        let mut places = vec![target.clone()];
        places.extend(real.filter(|real| real != target));
        for place in places {
            let relative = place.relative_to(self.workspace);
            let Some(relative) = relative.filter(|relative| !relative.is_empty()) else {
                continue;
            };
            let mut pattern = exact_pattern(relative);
            if is_directory {
                pattern.push_str("/**");
            }
            let known = self.rules.iter().any(|rule| rule.pattern == pattern);
            if known || self.rules.len() >= RULES_MAX {
                continue;
            }
            self.rules.push(Rule {
                kind: Kind::Git,
                strength: Strength::Hold,
                judged: Judged::Always,
                pattern,
                rule: plan::Rule {
                    id: key.to_owned(),
                    origin: origin.to_owned(),
                    reason: format!(
                        "{key} of git's configuration leads to {}",
                        printable(relative)
                    ),
                },
            });
        }
    }
}

/// The content of a configuration. In the workspace no link is followed.
fn read(workspace: &AbsolutePath, path: &AbsolutePath) -> Option<Vec<u8>> {
    let resolve = match path.is_within(workspace) {
        true => regular::WITHOUT_LINKS,
        false => ResolveFlags::NO_MAGICLINKS,
    };
    let length = git_config::TEXT_BYTES_MAX as u64;
    regular::read(path.as_path(), resolve, length)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn found(scratch: &tempfile::TempDir, workspace: &str) -> Vec<(String, String)> {
        let at = |name: &str| {
            let path = scratch.path().canonicalize().unwrap().join(name);
            AbsolutePath::parse(path.as_os_str().as_bytes()).unwrap()
        };
        let rules = guarded(&at(workspace), &at("home"), &BTreeMap::new());
        let shown = |rule: Rule| (rule.rule.id, rule.pattern);
        rules.into_iter().map(shown).collect()
    }

    fn write(scratch: &tempfile::TempDir, name: &str, text: &str) {
        let path = scratch.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn what_a_configuration_leads_to_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let config = "[core]\nhooksPath = tools/./hooks\n[include]\npath = ../more[1]\n\
                      [filter \"x\"]\nclean = python3 clean.py --in ../out ./missing . /etc/x dir/\n";
        write(&scratch, "p/.git/config", config);
        write(
            &scratch,
            "p/more[1]",
            "[diff]\nexternal = bin/diff\n[include]\npath = more[1]\n",
        );
        write(&scratch, "p/clean.py", "");
        write(&scratch, "p/dir/x", "");
        write(
            &scratch,
            "home/.gitconfig",
            "[core]\nfsmonitor = ~/../p/watch\nexcludesFile = ~/x\n",
        );
        std::fs::create_dir(scratch.path().join("p/real")).unwrap();
        std::os::unix::fs::symlink("../real", scratch.path().join("p/tools")).unwrap();
        let mut found = found(&scratch, "p");
        found.retain(|(_, pattern)| pattern != "/real/hooks/**");
        let expected = [
            ("core.fsmonitor", "/watch"),
            ("core.hookspath", "/tools/hooks/**"),
            ("include.path", "/more[[]1]"),
            ("diff.external", "/bin/diff"),
            ("filter.x.clean", "/clean.py"),
            ("filter.x.clean", "/missing"),
        ];
        assert_eq!(
            found,
            expected.map(|(key, path)| (key.to_owned(), path.to_owned()))
        );
    }

    #[test]
    fn links_on_the_way_are_guarded_at_both_ends() {
        let scratch = tempfile::tempdir().unwrap();
        write(&scratch, "p/real/hooks/x", "");
        std::os::unix::fs::symlink("real", scratch.path().join("p/tools")).unwrap();
        write(
            &scratch,
            "p/.git/config",
            "[core]\nhooksPath = tools/hooks\n",
        );
        let patterns: Vec<_> = found(&scratch, "p")
            .into_iter()
            .map(|(_, path)| path)
            .collect();
        assert_eq!(patterns, ["/tools/hooks/**", "/real/hooks/**"]);
    }

    #[test]
    fn a_project_below_the_top_and_a_linked_one_are_led_from_the_top() {
        let scratch = tempfile::tempdir().unwrap();
        write(&scratch, "p/.git/config", "[core]\nhooksPath = sub/hooks\n");
        write(&scratch, "p/sub/x", "");
        assert_eq!(found(&scratch, "p/sub")[0].1, "/hooks/**");
        write(&scratch, "w/.git", "gitdir: ../p/.git/worktrees/w\n");
        write(&scratch, "p/.git/worktrees/w/commondir", "../..\n");
        write(
            &scratch,
            "p/.git/worktrees/w/config.worktree",
            "[core]\npager = ./page\n",
        );
        let patterns: Vec<_> = found(&scratch, "w")
            .into_iter()
            .map(|(_, path)| path)
            .collect();
        assert_eq!(patterns, ["/sub/hooks/**", "/page"]);
        assert!(found(&scratch, "home").is_empty());
    }

    #[test]
    fn a_link_or_a_circle_is_no_way_out() {
        let scratch = tempfile::tempdir().unwrap();
        write(&scratch, "outside", "[core]\nhooksPath = hooks\n");
        write(
            &scratch,
            "p/.git/config",
            "[include]\npath = ../link\npath = config\n",
        );
        std::os::unix::fs::symlink("../outside", scratch.path().join("p/link")).unwrap();
        let patterns: Vec<_> = found(&scratch, "p")
            .into_iter()
            .map(|(_, path)| path)
            .collect();
        assert_eq!(patterns, ["/link", "/.git/config"]);
    }
}
