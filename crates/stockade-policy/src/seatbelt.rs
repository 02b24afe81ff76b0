//! A plan as a profile of Seatbelt, the sandbox of macOS: text in SBPL,
//! version 1, for sandbox-exec(1).
//!
//! Pure, and made from the grants, masks, guard and network part that
//! [`crate::decide`] reads. Apple documents the language only by the profiles
//! in `/System/Library/Sandbox/Profiles`; what is relied on:
//!
//! - What no rule permits is denied, and of the rules that match the last wins.
//! - The kernel asks with resolved paths. `/tmp`, `/var` and `/etc` are links
//!   into `/private`, and so rules name places there ([`resolved`]).
//! - A file that exists is asked for under its stored name, one that is made
//!   under the name that the caller wrote. `subpath` and `literal` follow the
//!   case rule of the volume, `regex` never does: so what is taken away is a
//!   regular expression over every case, and what is granted is a `subpath`.
//! - A rename asks for `file-write-unlink` where the file was and for
//!   `file-write-create` where it will be; neither asks for what lies below a
//!   directory. So the directories above what is taken away stay in place.
//! - A hard link would give a file a name under which other rules hold, so none
//!   can be made: nothing permits `file-link` and `file-clone`.

mod base;
mod guarded;
mod text;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::guard::Guard;
use crate::network::NetworkPlan;
use crate::path::{AbsolutePath, printable};
use crate::plan::{Access, Grant, Mask, Plan, Rule};

pub use base::{BASE, SERVICES};
pub use text::{Inexpressible, resolved};

/// Parameter that names the private directory of the run, below [`TEMPORARY`].
pub const TEMPORARY_PARAMETER: &str = "TEMPORARY";
/// Where that directory is made: the places above it are in every profile.
pub const TEMPORARY: &str = "/private/tmp";
/// Parameter that names the proxy, `localhost:PORT`; only with a network.
pub const PROXY_PARAMETER: &str = "PROXY";

/// Id of the rule of devices, which are not programs.
const DEVICES_RULE: &str = "built-in.devices";

/// What a profile is made from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    pub grants: &'a [Grant],
    pub masks: &'a [Mask],
    pub guard: &'a Guard,
    pub workspace: &'a AbsolutePath,
    pub network: Option<&'a NetworkPlan>,
}

impl<'a> From<&'a Plan> for Sources<'a> {
    fn from(plan: &'a Plan) -> Self {
        Self {
            grants: &plan.grants,
            masks: &plan.masks,
            guard: &plan.guard,
            workspace: &plan.workspace,
            network: plan.network.as_ref(),
        }
    }
}

/// The profile, or the first path that SBPL cannot express.
pub fn profile(sources: Sources<'_>) -> Result<String, Inexpressible> {
    let mut grants: Vec<Place<'_>> = sources
        .grants
        .iter()
        .filter(|grant| !grant.private)
        .map(|grant| Place {
            path: resolved(&grant.path),
            grant,
        })
        .collect();
    // The most specific grant speaks, so it stands last.
    grants.sort_by_key(|place| place.path.as_bytes().len());
    let mut page = Page(String::with_capacity(64 << 10));
    page.0.push_str(base::BEGINNING);
    page.system();
    page.ways(&grants)?;
    page.grants(&grants)?;
    page.temporary();
    page.guarded(&grants, &sources)?;
    page.masks(sources.masks)?;
    page.pins(&grants, sources.masks)?;
    page.0.push_str(base::END);
    page.network(sources.network);
    Ok(page.0)
}

/// A grant, and its path as the kernel knows it.
struct Place<'a> {
    path: AbsolutePath,
    grant: &'a Grant,
}

impl Place<'_> {
    fn writes(&self) -> bool {
        self.grant.access == Access::Write && self.grant.rule.id != DEVICES_RULE
    }
}

struct Page(String);

impl Page {
    fn comment(&mut self, rule: &Rule) {
        let text = format!("{} ({}): {}", rule.id, rule.origin, rule.reason);
        self.line(&format!("; {}", printable(text.as_bytes())));
    }

    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    /// Kernel settings and services without which programs do not start.
    fn system(&mut self) {
        let exact = base::SETTINGS.iter().map(|name| ("sysctl-name", name));
        let prefixes = base::SETTING_PREFIXES
            .iter()
            .map(|name| ("sysctl-name-prefix", name));
        self.0.push_str("(allow sysctl-read");
        for (filter, name) in exact.chain(prefixes) {
            write!(self.0, "\n  ({filter} \"{name}\")").expect(STRING);
        }
        self.line(")");
        for (name, reason) in SERVICES {
            self.line(&format!("; {reason}"));
            self.line(&format!("(allow mach-lookup (global-name \"{name}\"))"));
        }
    }

    /// Places on the way to a grant: that they exist, and nothing more. The
    /// names in the root directory must be readable, or no program starts.
    fn ways(&mut self, grants: &[Place<'_>]) -> Result<(), Inexpressible> {
        let mut ways: BTreeSet<AbsolutePath> = text::links().chain([place(TEMPORARY)]).collect();
        ways.extend(above(&place(TEMPORARY)));
        ways.extend(grants.iter().flat_map(|place| above(&place.path)));
        self.line("; on the way to what is granted");
        self.line("(allow file-read* (literal \"/\"))");
        self.0.push_str("(allow file-read-metadata");
        for way in ways {
            write!(self.0, "\n  (literal {})", text::quoted(&way)?).expect(STRING);
        }
        self.line(")");
        Ok(())
    }

    fn grants(&mut self, grants: &[Place<'_>]) -> Result<(), Inexpressible> {
        for place in grants {
            let path = text::quoted(&place.path)?;
            self.comment(&place.grant.rule);
            if place.grant.rule.id == DEVICES_RULE {
                self.line(&format!(
                    "(allow file-read* file-write-data (literal {path}))"
                ));
                continue;
            }
            let write = if place.writes() { " file-write*" } else { "" };
            self.line(&format!(
                "(allow file-read*{write} file-map-executable process-exec* (subpath {path}))"
            ));
            let around = |other: &&Place<'_>| {
                other.writes() && other.path != place.path && place.path.is_within(&other.path)
            };
            if !place.writes() && grants.iter().any(|other| around(&other)) {
                let below = text::below(&place.path);
                self.line(&format!("(deny file-write* (regex #\"{below}\"))"));
            }
        }
        Ok(())
    }

    fn temporary(&mut self) {
        self.line("; files of this run alone, gone with it");
        self.line(&format!(
            "(allow file-read* file-write* file-map-executable process-exec* \
             (subpath (param \"{TEMPORARY_PARAMETER}\")))"
        ));
    }

    /// Guarded names cannot be written, because nothing could keep what is
    /// written until somebody approves it; and what lies above them can be
    /// neither made nor moved.
    fn guarded(
        &mut self,
        grants: &[Place<'_>],
        sources: &Sources<'_>,
    ) -> Result<(), Inexpressible> {
        let workspace = resolved(sources.workspace);
        let written = grants.iter().filter(|place| place.writes());
        let mut places: BTreeSet<&AbsolutePath> = written.map(|place| &place.path).collect();
        if places.iter().any(|place| workspace.is_within(place)) {
            places.insert(&workspace);
        }
        for &place in &places {
            let within = |other: &&&AbsolutePath| **other != place && other.is_within(place);
            let inside = guarded::inside(place, places.iter().filter(within).copied())?;
            let of_workspace = place.is_within(&workspace);
            let scope = guarded::Scope {
                base: if of_workspace { &workspace } else { place },
                floats: !of_workspace,
            };
            let refused = guarded::refused(sources.guard, &scope)?;
            let above = guarded::above(sources.guard, &scope)?;
            self.line(&format!("; guarded names below {place}"));
            for (operations, filter) in [
                ("file-write*", refused),
                ("file-write-create file-write-unlink", above),
                ("file-write*", guarded::deceptive()),
            ] {
                let filter = inside.clone().and(filter);
                if filter != guarded::Filter::Never {
                    self.line(&format!("(deny {operations} {filter})"));
                }
            }
        }
        Ok(())
    }

    fn masks(&mut self, masks: &[Mask]) -> Result<(), Inexpressible> {
        for mask in masks {
            let path = resolved(&mask.path);
            text::quoted(&path)?;
            self.comment(&mask.rule);
            self.line(&format!(
                "(deny file* process-exec* (regex #\"{}\"))",
                text::below(&path)
            ));
        }
        Ok(())
    }

    /// A directory that moves takes what lies below it out of the rules that
    /// name it: so writable places, and what lies between them and something
    /// that is taken away, stay where they are.
    fn pins(&mut self, grants: &[Place<'_>], masks: &[Mask]) -> Result<(), Inexpressible> {
        let written: Vec<&AbsolutePath> = grants
            .iter()
            .filter(|place| place.writes())
            .map(|place| &place.path)
            .collect();
        let mut pins: BTreeSet<AbsolutePath> = written.iter().map(|&path| path.clone()).collect();
        let named = grants.iter().map(|place| place.path.clone());
        let masked = masks.iter().map(|mask| resolved(&mask.path));
        for path in named.chain(masked) {
            let pinned = above(&path)
                .filter(|directory| written.iter().any(|written| directory.is_within(written)));
            pins.extend(pinned);
        }
        if pins.is_empty() {
            return Ok(());
        }
        self.line("; what stays in its place, because rules name what lies below it");
        self.0.push_str("(deny file-write-unlink");
        for pin in pins {
            write!(self.0, "\n  (regex #\"{}\")", text::exactly(&pin)).expect(STRING);
        }
        self.line(")");
        Ok(())
    }

    fn network(&mut self, network: Option<&NetworkPlan>) {
        let Some(network) = network else {
            return;
        };
        self.line("; the one way out");
        self.line(&format!(
            "(allow network-outbound (remote ip (param \"{PROXY_PARAMETER}\")))"
        ));
        for offer in &network.host_ports {
            self.comment(&offer.rule);
            self.line(&format!(
                "(allow network-outbound (remote ip \"localhost:{}\"))",
                offer.port
            ));
        }
    }
}

const STRING: &str = "writing to a string cannot fail";

/// The directories above a path, without the root.
fn above(path: &AbsolutePath) -> impl Iterator<Item = AbsolutePath> + use<> {
    std::iter::successors(path.parent(), AbsolutePath::parent).filter(|path| !path.is_root())
}

fn place(text: &str) -> AbsolutePath {
    AbsolutePath::parse(text).expect("a constant of this module is an absolute path")
}

#[cfg(test)]
mod tests;
