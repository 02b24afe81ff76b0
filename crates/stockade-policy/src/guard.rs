//! Guarded paths: names in a workspace under which a file runs, or steers
//! something, later and outside the sandbox.
//!
//! The built-in rules are data (`data/guarded.paths`); policies add to them,
//! move paths between the strengths and take paths out. Judging is pure and by
//! name alone: what a directory or a link is, the caller finds out.
//!
//! A directory by itself is never active, so making one needs no judging. What
//! is made in it does, and so does moving one to a place [`Guard::is_above`]
//! which something would be guarded. A link made at a guarded place, or at one
//! that is above, counts as the content that it brings there.

mod data;
mod hooks;
pub(crate) mod pattern;
mod verdict;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::path::AbsolutePath;
use hooks::{is_hook, names_hooks};
use pattern::{Component, Folded, Pattern, components};
use verdict::decide;

pub use hooks::{is_git_name, is_hook_name};

/// What reads a guarded path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// git itself.
    Git,
    /// Services that build what is pushed.
    Ci,
    /// Editors and development containers.
    Editor,
    /// Shells and what they load when a directory is entered.
    Shell,
    /// Build tools, package managers and interpreters.
    Build,
    /// AI agents: configuration, hooks and instructions.
    Agent,
    /// Stockade.
    Policy,
    /// Named by a policy.
    Custom,
}

/// What happens to content at a guarded path. The stronger one is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// Written, and named in the report at the end of the run.
    Report,
    /// Never active outside without approval.
    Hold,
}

/// How it is decided whether content at a guarded path is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Judged {
    /// It is, whatever it says.
    Always,
    /// A git configuration file: by its keys ([`crate::git_config`]).
    GitConfig,
    /// A file that says where a git directory is (`.git` as a file, `commondir`,
    /// `gitdir`): by where it leads.
    GitPointer,
}

/// One rule of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub kind: Kind,
    pub strength: Strength,
    pub judged: Judged,
    /// Relative to the workspace, or to another part of the host that may be
    /// written; `*`, `?` and `[…]` within a component, `**` for any number.
    pub pattern: String,
    /// Its id, where it was written, and why it is there.
    pub rule: crate::plan::Rule,
}

/// What one policy layer, or the built-in list, says about guarded paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub rule: Rule,
    /// Takes paths out instead of putting them in; in the built-in list only
    /// those of the rule's own kind.
    pub removes: bool,
    pub rank: Rank,
}

/// Who said it; each speaks after those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// The built-in list; everyone but a project may change what it says.
    BuiltIn,
    /// The user and the command line: replace what the built-in list says.
    User,
    /// The organisation: replaces both; the others can only add to it.
    Organisation,
    /// A project, trusted or not: can only add and strengthen.
    Project,
}

/// The rules of one run. Equal when they say the same.
///
/// Compiled when it is first asked: most runs start, and many end, without a
/// question.
#[derive(Clone)]
pub struct Guard {
    said: Vec<Entry>,
    built_in: Vec<Rank>,
    without_built_in: Option<crate::plan::Rule>,
    refusing: Option<crate::plan::Rule>,
    table: Arc<OnceLock<Table>>,
}

struct Table {
    entries: Vec<Entry>,
    compiled: Vec<Compiled>,
    index: Index,
}

#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub(crate) pattern: Pattern,
    /// Only hooks count: not the samples that git lays beside them.
    pub(crate) hooks: bool,
}

/// Which rules a path can concern, by one literal component of each.
#[derive(Clone, Debug, Default)]
struct Index {
    by_name: HashMap<Vec<u8>, Vec<usize>>,
    /// Rules without a literal component.
    others: Vec<usize>,
}

impl Guard {
    /// What layers say, in their order: later entries of one rank and strength
    /// win over earlier ones. `built_in` says as whose word the built-in list
    /// counts; empty where somebody took it away.
    pub fn new(said: Vec<Entry>, built_in: Vec<Rank>) -> Self {
        Self {
            said,
            built_in,
            without_built_in: None,
            refusing: None,
            table: Arc::new(OnceLock::new()),
        }
    }

    /// Remembers who took the built-in list away.
    pub fn without_built_in(self, rule: crate::plan::Rule) -> Self {
        Self {
            without_built_in: Some(rule),
            ..self
        }
    }

    /// Refuses what is held, instead of keeping it for approval.
    pub fn refusing(self, rule: crate::plan::Rule) -> Self {
        Self {
            refusing: Some(rule),
            ..self
        }
    }

    /// Adds files that the built-in rules concern in this project: where the
    /// built-in list counts they count with it, else not at all.
    pub fn with_found(mut self, rules: Vec<Rule>) -> Self {
        for &rank in &self.built_in {
            self.said.extend(rules.iter().map(|rule| Entry {
                rule: rule.clone(),
                removes: false,
                rank,
            }));
        }
        self.table = Arc::new(OnceLock::new());
        self
    }

    /// The built-in list alone.
    pub fn built_in() -> Self {
        Self::new(Vec::new(), vec![Rank::BuiltIn])
    }

    /// A guard that guards nothing.
    pub fn nothing() -> Self {
        Self::new(Vec::new(), Vec::new())
    }

    /// What policies say beyond the built-in list.
    pub fn said(&self) -> &[Entry] {
        &self.said
    }

    /// As whose word the built-in list counts.
    pub fn built_in_ranks(&self) -> &[Rank] {
        &self.built_in
    }

    /// Who took the built-in list away.
    pub fn built_in_taken_by(&self) -> Option<&crate::plan::Rule> {
        self.without_built_in.as_ref()
    }

    /// The rule by which what is held is refused at once (`approval.guarded =
    /// "deny"`); without one it is kept until somebody approves it.
    pub fn refused_by(&self) -> Option<&crate::plan::Rule> {
        self.refusing.as_ref()
    }

    /// Every entry, the built-in ones among them.
    pub fn entries(&self) -> &[Entry] {
        &self.table().entries
    }

    fn table(&self) -> &Table {
        self.table.get_or_init(|| {
            let built_in = self
                .built_in
                .iter()
                .flat_map(|&rank| built_in_entries(rank));
            Table::new(built_in.chain(self.said.iter().cloned()).collect())
        })
    }

    /// The strongest rule for a path relative to the workspace: bytes, without
    /// `.`, `..` and a leading slash. `None` when nothing guards it.
    pub fn judge(&self, path: &[u8]) -> Option<&Rule> {
        let path = components(path);
        self.verdict(&path, &|compiled| compiled.pattern.matches(&path))
    }

    /// As [`Guard::judge`], for a path relative to `grant`, another part of the
    /// host that may be written. Names above it count for rules that hold at
    /// any depth: in a granted `/x/.git` the file `hooks/pre-commit` is a hook.
    pub fn judge_below(&self, grant: &AbsolutePath, path: &[u8]) -> Option<&Rule> {
        let relative = components(path);
        let mut whole = components(grant.as_bytes());
        whole.extend(relative.iter().cloned());
        self.verdict(&whole, &|compiled| {
            let pattern = &compiled.pattern;
            pattern.matches(&relative) || pattern.floats() && pattern.matches(&whole)
        })
    }

    /// Whether a directory moved to this path, or a link made there, could make
    /// something below it held: the path is a proper prefix of what a rule that
    /// holds matches, and a name in the rule led to it.
    pub fn is_above(&self, path: &[u8]) -> bool {
        let path = components(path);
        self.any_above(&|compiled| compiled.pattern.is_above(&path))
    }

    /// As [`Guard::is_above`], for a path relative to `grant`.
    pub fn is_above_below(&self, grant: &AbsolutePath, path: &[u8]) -> bool {
        let relative = components(path);
        let mut whole = components(grant.as_bytes());
        whole.extend(relative.iter().cloned());
        self.any_above(&|compiled| {
            let pattern = &compiled.pattern;
            pattern.is_above(&relative) || pattern.floats() && pattern.is_above(&whole)
        })
    }

    /// Exceptions below do not matter: what is moved is looked at name by name.
    fn any_above(&self, above: &dyn Fn(&Compiled) -> bool) -> bool {
        let table = self.table();
        table
            .entries
            .iter()
            .zip(&table.compiled)
            .any(|(entry, compiled)| {
                !entry.removes && entry.rule.strength == Strength::Hold && above(compiled)
            })
    }

    fn verdict(&self, path: &Folded<'_>, matches: &dyn Fn(&Compiled) -> bool) -> Option<&Rule> {
        let table = self.table();
        let mut numbers: Vec<usize> = path
            .iter()
            .filter_map(|name| table.index.by_name.get(name.as_ref()))
            .chain([&table.index.others])
            .flatten()
            .copied()
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let matching = |&number: &usize| {
            let compiled = &table.compiled[number];
            let hook = !compiled.hooks || is_hook(path, &compiled.pattern);
            (hook && matches(compiled)).then(|| &table.entries[number])
        };
        let matching: Vec<&Entry> = numbers.iter().filter_map(matching).collect();
        decide(&matching)
    }
}

impl Table {
    fn new(entries: Vec<Entry>) -> Self {
        let compiled: Vec<Compiled> = entries.iter().map(compile).collect();
        let mut index = Index::default();
        for (number, compiled) in compiled.iter().enumerate() {
            // The last literal is the rarest in paths.
            let name = compiled.pattern.0.iter().rev().find_map(|part| match part {
                Component::Literal(name) => Some(name.clone()),
                _ => None,
            });
            match name {
                Some(name) => index.by_name.entry(name).or_default().push(number),
                None => index.others.push(number),
            }
        }
        Self {
            entries,
            compiled,
            index,
        }
    }
}

impl PartialEq for Guard {
    fn eq(&self, other: &Self) -> bool {
        self.said == other.said
            && self.built_in == other.built_in
            && self.without_built_in == other.without_built_in
            && self.refusing == other.refusing
    }
}

impl Eq for Guard {}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut guard = formatter.debug_struct("Guard");
        guard.field("said", &self.said);
        guard.field("built_in", &self.built_in);
        guard.field("refusing", &self.refusing).finish()
    }
}

pub(crate) fn compile(entry: &Entry) -> Compiled {
    let built_in = entry.rule.kind != Kind::Custom;
    Compiled {
        pattern: match built_in {
            true => Pattern::new(&entry.rule.pattern),
            // A person who names a directory means what is in it.
            false => Pattern::with_content(&entry.rule.pattern),
        },
        hooks: built_in && entry.rule.kind == Kind::Git && names_hooks(&entry.rule.pattern),
    }
}

/// A pattern that matches exactly this path, relative to the workspace. Bytes
/// that are no text match any byte.
pub fn exact_pattern(path: &[u8]) -> String {
    let mut pattern = String::from("/");
    for chunk in path.utf8_chunks() {
        for one in chunk.valid().chars() {
            match one {
                '*' | '?' | '[' => pattern.extend(['[', one, ']']),
                _ => pattern.push(one),
            }
        }
        pattern.extend(chunk.invalid().iter().map(|_| '?'));
    }
    pattern
}

/// The text of the built-in list.
pub(crate) fn built_in_text() -> &'static str {
    data::TEXT
}

/// The built-in list, as entries of this rank.
fn built_in_entries(rank: Rank) -> Vec<Entry> {
    let entry = |entry: &Entry| Entry {
        rank,
        ..entry.clone()
    };
    data::entries().iter().map(entry).collect()
}

impl Kind {
    /// The word in data, JSON and text.
    pub fn word(self) -> &'static str {
        match self {
            Self::Git => "git",
            Self::Ci => "ci",
            Self::Editor => "editor",
            Self::Shell => "shell",
            Self::Build => "build",
            Self::Agent => "agent",
            Self::Policy => "policy",
            Self::Custom => "custom",
        }
    }
}

impl Strength {
    /// The word in data, JSON and text.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Report => "report",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

impl fmt::Display for Strength {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

#[cfg(test)]
mod tests;
