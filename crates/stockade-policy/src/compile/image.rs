//! A plan on an image: its directories are the system inside.
//!
//! Whose a path is follows from the path alone. The project, the home, what
//! a policy grants by path and what every run has of its own is the host's or
//! the run's, with the directories above it; everything else is the image's.
//! So no part of one is ever looked up in the other.

use std::collections::BTreeMap;

use crate::facts::Facts;
use crate::guarantee::Guarantee;
use crate::path::AbsolutePath;
use crate::plan::{Form, Image, Wall};
use crate::policy::{GrantTarget, Policy};

use super::findings::Findings;
use super::network;

/// Directories of the root that every run has of its own.
const OWN: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/tmp"];

/// Places that are not the image's, although there is one.
#[derive(Clone, Debug, Default)]
pub struct HostPlaces(Vec<AbsolutePath>);

impl HostPlaces {
    /// Those of a policy, before anything was looked up.
    pub fn of(policy: &Policy, home: &AbsolutePath) -> Self {
        let grants = policy.write.iter().chain(&policy.read);
        let named = grants.filter_map(|grant| match &grant.target {
            GrantTarget::Path(path) => Some(path.clone()),
            GrantTarget::Set(_) => None,
        });
        let own = OWN.iter().filter_map(|path| AbsolutePath::parse(path).ok());
        let places = named.chain([policy.workspace.clone(), home.clone()]);
        Self(places.chain(own).collect())
    }

    /// The same, with where links of the host lead.
    pub(super) fn resolved(policy: &Policy, facts: &Facts) -> Self {
        let Self(mut places) = Self::of(policy, &facts.home);
        let resolved = |path: &AbsolutePath| facts.paths.get(path)?.resolved.clone();
        let landed: Vec<_> = places.iter().filter_map(resolved).collect();
        places.extend(landed);
        Self(places)
    }

    /// Whether a path lies in such a place.
    pub fn hold(&self, path: &AbsolutePath) -> bool {
        self.0.iter().any(|place| path.is_within(place))
    }

    /// Whether such a place lies below a path.
    pub fn are_below(&self, path: &AbsolutePath) -> bool {
        self.0.iter().any(|place| place.is_within(path))
    }

    /// Whether a path is looked up, and mounted from, in the image.
    pub fn leave_to_image(&self, path: &AbsolutePath) -> bool {
        !self.hold(path) && !self.are_below(path)
    }
}

/// Which of the questions about paths are about the image, and not about the host.
pub fn left_to_image(
    policy: &Policy,
    home: &AbsolutePath,
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> impl Fn(&AbsolutePath) -> bool + use<> {
    let host = HostPlaces::of(policy, home);
    let sockets = network::offered_sockets(policy, environment);
    move |path| host.leave_to_image(path) && !sockets.contains(path)
}

/// What the image shows, under this policy.
pub(super) fn shown(policy: &Policy, facts: &Facts) -> Vec<AbsolutePath> {
    let Some(image) = &facts.image else {
        return Vec::new();
    };
    let host = HostPlaces::resolved(policy, facts);
    let shown = image.parts.iter().filter(|path| host.leave_to_image(path));
    shown.cloned().collect()
}

pub(super) fn in_plan(policy: &Policy, facts: &Facts) -> Option<Image> {
    let (name, rule) = policy.image.as_ref()?;
    let image = facts.image.as_ref()?;
    Some(Image {
        name: name.clone(),
        id: image.id.clone(),
        root: image.root.clone(),
        rule: rule.clone(),
    })
}

/// Refuses an image behind a wall that is not made for one.
pub(super) fn check(policy: &Policy, findings: &mut Findings<'_>) {
    let Some((name, rule)) = &policy.image else {
        return;
    };
    if policy.wall.0 < Wall::Container || policy.form != Form::Namespaces {
        findings.refuse(
            Guarantee::FS1,
            format!(
                "the image {name:?} ({}) needs the container wall, or a stronger one",
                rule.origin
            ),
            "add wall = \"container\", or remove container.image",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::fixtures::{compiled, fact, facts_of_root, path, policy, rule};
    use crate::facts::{ImageFacts, PathKind};
    use crate::plan::Action;

    fn on_image() -> (Policy, Facts) {
        let mut policy = policy();
        policy.wall = (Wall::Container, rule("wall"));
        policy.image = Some(("tiny".to_owned(), rule("container.image")));
        let mut facts = facts_of_root();
        facts.image = Some(ImageFacts {
            id: "sha256:0".to_owned(),
            root: path("/state/root"),
            parts: ["/bin", "/etc", "/home/other", "/usr"].map(path).to_vec(),
            environment: vec![(b"PATH".to_vec(), b"/usr/own".to_vec())],
        });
        for part in ["/bin", "/etc", "/home/other", "/usr"] {
            facts
                .paths
                .insert(path(part), fact(PathKind::Directory, part));
        }
        (policy, facts)
    }

    #[test]
    fn what_is_the_hosts_follows_from_the_path() {
        let (policy, facts) = on_image();
        let host = HostPlaces::of(&policy, &facts.home);
        for (name, of_image) in [
            ("/usr", true),
            ("/etc/passwd", true),
            ("/home/other", true),
            ("/home", false),
            ("/home/u/project", false),
            ("/home/u/project/x", false),
            ("/root/.bashrc", false),
            ("/proc/1", false),
            ("/tmp", false),
            ("/", false),
        ] {
            assert_eq!(host.leave_to_image(&path(name)), of_image, "{name}");
        }
    }

    #[test]
    fn the_parts_of_an_image_are_mounted_from_it() {
        let (policy, facts) = on_image();
        let plan = compiled(&policy, &facts).unwrap();
        let sources: BTreeMap<String, String> = plan
            .steps
            .iter()
            .filter_map(|step| match &step.action {
                Action::Bind { source, path, .. } => Some((path.to_string(), source.to_string())),
                _ => None,
            })
            .collect();
        for (inside, outside) in [
            ("/usr", "/state/root/usr"),
            ("/etc", "/state/root/etc"),
            ("/home/other", "/state/root/home/other"),
            ("/home/u/project", "/home/u/project"),
        ] {
            assert_eq!(sources[inside], outside);
        }
        assert_eq!(plan.image.unwrap().name, "tiny");
        let variables: BTreeMap<_, _> = plan.command.environment.into_iter().collect();
        assert_eq!(variables[&b"PATH".to_vec()], b"/usr/own");
    }

    #[test]
    fn an_image_needs_its_wall_and_the_wall_its_limits() {
        let (mut policy, mut facts) = on_image();
        policy.wall.0 = Wall::Process;
        let refusals = compiled(&policy, &facts).unwrap_err();
        assert!(
            refusals[0].reason.contains("needs the container wall"),
            "{refusals:?}"
        );
        assert_eq!(refusals[0].wall, "process");
        let (mut policy, _) = on_image();
        facts.control_groups = crate::compile::fixtures::facts().control_groups;
        let refusals = compiled(&policy, &facts).unwrap_err();
        assert_eq!(refusals[0].guarantee, Guarantee::PR7);
        policy.weaken.push((Guarantee::PR7, rule("weaken")));
        assert!(compiled(&policy, &facts).is_ok());
    }
}
