//! Turns grants into parts of the host, following links that a person made
//! and refusing those that a run could have made.

use std::collections::BTreeMap;

use crate::credentials;
use crate::facts::{Facts, PathKind};
use crate::guarantee::Guarantee;
use crate::merge::is_of_worktree;
use crate::path::AbsolutePath;
use crate::plan::{Access, Grant, Rule, WorkspaceMode};
use crate::policy::{GrantTarget, NamedSet, PathGrant, Policy};
use crate::sets;

use super::super::findings::Findings;
use super::super::image;
use super::super::places;
use super::{Entry, View, built_in};

/// Links that the resolution of one path may go through (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// The parts of the host that a policy grants.
pub(super) struct HostParts {
    parts: BTreeMap<AbsolutePath, Part>,
    links: BTreeMap<AbsolutePath, Vec<u8>>,
}

struct Part {
    access: Access,
    directory: bool,
    rule: Rule,
}

/// Who asked for a path: a missing one is an error only when a person did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Named,
    Suggested,
}

pub(super) fn collect(policy: &Policy, facts: &Facts, findings: &mut Findings) -> HostParts {
    let mut collector = Collector {
        facts,
        findings,
        writable: writable_places(policy, facts),
        image: image::shown(policy, facts),
        found: HostParts {
            parts: BTreeMap::new(),
            links: BTreeMap::new(),
        },
    };
    let own = built_in(
        "filesystem.workspace",
        "the project that the command works on",
    );
    collector.add(&policy.workspace, Access::Read, &own, Origin::Named);
    let layered = policy.workspace_mode.0 != WorkspaceMode::Live;
    let (of_worktree, named): (Vec<_>, Vec<_>) =
        policy.write.iter().partition(|grant| is_of_worktree(grant));
    for grant in named {
        collector.add_grant(grant, Access::Write);
    }
    if layered && !of_worktree.is_empty() {
        // It is a part of the project that no layer can be over.
        collector.findings.note(format!(
            "this is a linked work tree, and in {} mode its git directory is only read: commit \
             outside, or name that directory in filesystem.write to have it written directly",
            policy.workspace_mode.0.word()
        ));
    } else {
        for grant in of_worktree {
            collector.add_grant(grant, Access::Write);
        }
    }
    for grant in &policy.read {
        collector.add_grant(grant, Access::Read);
    }
    collector.found
}

impl HostParts {
    /// Puts the parts into a view.
    pub(super) fn enter(self, view: &mut View, findings: &mut Findings) {
        for (path, target) in self.links {
            view.entries.insert(path, Entry::Symlink { target });
        }
        for (path, part) in self.parts {
            let Part {
                access,
                directory,
                rule,
            } = part;
            let inside_file = path.ancestors().any(|above| {
                matches!(
                    view.entries.get(above),
                    Some(Entry::Host {
                        directory: false,
                        ..
                    })
                )
            });
            if inside_file {
                findings.note(format!("{path} lies below a file and was skipped"));
                continue;
            }
            view.entries
                .insert(path.clone(), Entry::Host { access, directory });
            view.grants.push(Grant {
                path,
                access,
                private: false,
                rule,
            });
        }
    }
}

struct Collector<'a, 'b, 'c> {
    facts: &'a Facts,
    findings: &'b mut Findings<'c>,
    /// Where an earlier run may have made links.
    writable: Vec<AbsolutePath>,
    /// What the image shows in its root.
    image: Vec<AbsolutePath>,
    found: HostParts,
}

impl Collector<'_, '_, '_> {
    fn add_grant(&mut self, grant: &PathGrant, access: Access) {
        let set = match &grant.target {
            GrantTarget::Path(path) => return self.add(path, access, &grant.rule, Origin::Named),
            GrantTarget::Set(set) => *set,
        };
        if self.facts.image.is_some() {
            return self.add_image(set, grant, access);
        }
        if access == Access::Write {
            self.findings.refuse(
                Guarantee::FS2,
                format!(
                    "{} ({}) lets a named set be written",
                    grant.rule.id, grant.rule.origin
                ),
                "name the directories that must be written",
            );
            return;
        }
        for candidate in sets::candidates(set, &self.facts.home, &self.facts.environment) {
            let rule = Rule {
                reason: candidate.reason.to_owned(),
                ..grant.rule.clone()
            };
            self.add(&candidate.path, access, &rule, Origin::Suggested);
        }
    }

    /// With an image the system is what it has in its root; toolchains of the
    /// host were not made for it.
    fn add_image(&mut self, set: NamedSet, grant: &PathGrant, access: Access) {
        if set != NamedSet::System || access != Access::Read {
            return;
        }
        let rule = Rule {
            reason: "a directory of the image".to_owned(),
            ..grant.rule.clone()
        };
        for path in self.image.clone() {
            self.add(&path, access, &rule, Origin::Suggested);
        }
    }

    fn add(&mut self, path: &AbsolutePath, access: Access, rule: &Rule, origin: Origin) {
        let Some(fact) = self.facts.paths.get(path) else {
            if origin == Origin::Named && !path.is_root() {
                self.refuse_missing(path, access, rule);
            }
            if path.is_root() {
                self.refuse_root(access, rule);
            }
            return;
        };
        let (Some(resolved), Some(kind)) = (&fact.resolved, &fact.resolved_kind) else {
            self.findings.note(format!(
                "{path} ({}) is a link to nothing and was skipped",
                rule.origin
            ));
            return;
        };
        if self.is_refused(path, resolved, access, rule, origin) {
            return;
        }
        let links = match self.links_of(path, resolved) {
            Ok(links) => links,
            Err(link) if origin == Origin::Suggested => {
                return self.findings.note(format!(
                    "{path} ({}) was skipped: a run could have made the link {link}",
                    rule.origin
                ));
            }
            Err(link) => return self.refuse_link(path, &link, rule),
        };
        if *kind == PathKind::Socket || *kind == PathKind::Other {
            self.findings.note(format!(
                "{path} ({}) is neither a file nor a directory and was skipped",
                rule.origin
            ));
            return;
        }
        self.found.links.extend(links);
        if origin == Origin::Named && self.adds_nothing(resolved, access) {
            return;
        }
        self.insert(resolved.clone(), access, *kind == PathKind::Directory, rule);
    }

    /// Whether a directory above is granted for as much. A credential below it
    /// is covered unless it is granted itself.
    fn adds_nothing(&self, path: &AbsolutePath, access: Access) -> bool {
        let enough = |part: &Part| part.directory && part.access >= access;
        let mut above = path
            .ancestors()
            .filter_map(|above| self.found.parts.get(above));
        credentials::covers(path, &self.facts.home).is_none() && above.any(enough)
    }

    fn insert(&mut self, path: AbsolutePath, access: Access, directory: bool, rule: &Rule) {
        let part = Part {
            access,
            directory,
            rule: rule.clone(),
        };
        let known = self.found.parts.entry(path).or_insert_with(|| Part {
            access,
            directory,
            rule: rule.clone(),
        });
        // The workspace's own rule gives way to the rule that lets it be written.
        if known.access < access {
            *known = part;
        }
    }

    /// The links on the way to `path`, each with a target that leads to the
    /// same place inside. `Err` names a link that a run could have made.
    fn links_of(
        &self,
        path: &AbsolutePath,
        resolved: &AbsolutePath,
    ) -> Result<Vec<(AbsolutePath, Vec<u8>)>, AbsolutePath> {
        let mut links = Vec::new();
        let mut current = path.clone();
        while current != *resolved && links.len() < LINKS_MAX {
            let Some((link, target, lands)) = self.first_link(&current) else {
                // A link that the facts do not show: sound only outside of
                // what a run can write.
                return match self.is_writable(path) {
                    true => Err(path.clone()),
                    false => Ok(links),
                };
            };
            if self.is_writable(&link) {
                return Err(link);
            }
            let rest = current.relative_to(&link).unwrap_or_default();
            let Ok(next) = lands.join(rest) else {
                return Err(link);
            };
            links.push((link.clone(), inside_target(&link, target, lands)));
            current = next;
        }
        Ok(links)
    }

    /// The link nearest to the root among a path and the directories above it.
    fn first_link(&self, path: &AbsolutePath) -> Option<(AbsolutePath, &[u8], &AbsolutePath)> {
        std::iter::once(path.as_bytes())
            .chain(path.ancestors())
            .filter_map(|above| {
                let (link, fact) = self.facts.paths.get_key_value(above)?;
                match (&fact.kind, &fact.resolved) {
                    (PathKind::Symlink { target }, Some(resolved)) => {
                        Some((link.clone(), &target[..], resolved))
                    }
                    _ => None,
                }
            })
            .last()
    }

    fn is_writable(&self, link: &AbsolutePath) -> bool {
        self.writable
            .iter()
            .any(|place| link != place && link.is_within(place))
    }

    fn is_refused(
        &mut self,
        path: &AbsolutePath,
        resolved: &AbsolutePath,
        access: Access,
        rule: &Rule,
        origin: Origin,
    ) -> bool {
        let home = &self.facts.home;
        if origin == Origin::Suggested && home.is_within(resolved) {
            self.findings.note(format!(
                "{path} ({}) was skipped: it holds the whole home directory",
                rule.origin
            ));
            return true;
        }
        if resolved.is_root() {
            self.refuse_root(access, rule);
            return true;
        }
        let credential = match origin {
            // A set names no credential, but a link may lead to one.
            Origin::Suggested => credentials::covers(resolved, home),
            Origin::Named => {
                credentials::covers(path, home).or_else(|| credentials::covers(resolved, home))
            }
        };
        let system = match access {
            Access::Write => places::never_written(resolved, home),
            Access::Read => None,
        };
        if places::has_own(resolved) {
            self.findings.refuse(
                Guarantee::FS1,
                format!(
                    "{} ({}) grants {path}, of which a run has its own",
                    rule.id, rule.origin
                ),
                "remove the rule",
            );
            return true;
        }
        if let Some(reason) = system {
            self.findings.refuse(
                Guarantee::FS2,
                format!(
                    "{} ({}) lets {path} be written: {reason}",
                    rule.id, rule.origin
                ),
                "name the directory below it that must be written",
            );
            return true;
        }
        let Some(credential) = credential else {
            return false;
        };
        if origin == Origin::Suggested {
            return true;
        }
        self.findings.demand(
            Guarantee::FS3,
            format!(
                "{} ({}) grants {path}, which is a credential ({}): {}",
                rule.id, rule.origin, credential.id, credential.reason
            ),
            "remove the rule, or add \"FS3\" to weaken",
        );
        !self.findings.weakened(Guarantee::FS3)
    }

    fn refuse_missing(&mut self, path: &AbsolutePath, access: Access, rule: &Rule) {
        let guarantee = match access {
            Access::Read => Guarantee::FS1,
            Access::Write => Guarantee::FS2,
        };
        self.findings.refuse(
            guarantee,
            format!(
                "{} ({}) grants {path}, which does not exist",
                rule.id, rule.origin
            ),
            "create it, or remove the rule",
        );
    }

    fn refuse_root(&mut self, access: Access, rule: &Rule) {
        let guarantee = match access {
            Access::Read => Guarantee::FS1,
            Access::Write => Guarantee::FS2,
        };
        self.findings.refuse(
            guarantee,
            format!("{} ({}) grants the whole file system", rule.id, rule.origin),
            "grant the directories that are needed",
        );
    }

    fn refuse_link(&mut self, path: &AbsolutePath, link: &AbsolutePath, rule: &Rule) {
        self.findings.refuse(
            Guarantee::FS5,
            format!(
                "{} ({}) grants {path} through the link {link}, which an earlier run could have made",
                rule.id, rule.origin
            ),
            "grant the place that the link leads to, under its own name",
        );
    }
}

/// Places that a run may write, as written and with links resolved.
fn writable_places(policy: &Policy, facts: &Facts) -> Vec<AbsolutePath> {
    let mut writable = vec![policy.workspace.clone()];
    for grant in &policy.write {
        let GrantTarget::Path(path) = &grant.target else {
            continue;
        };
        writable.push(path.clone());
        writable.extend(facts.paths.get(path).and_then(|fact| fact.resolved.clone()));
    }
    writable.sort();
    writable.dedup();
    writable
}

/// The bytes of a link in the view: its own when they lead there directly,
/// else the place itself, because links on the way may be absent inside.
fn inside_target(link: &AbsolutePath, target: &[u8], lands: &AbsolutePath) -> Vec<u8> {
    match link.link_target(target).as_ref() == Some(lands) {
        true => target.to_vec(),
        false => lands.as_bytes().to_vec(),
    }
}
