//! Which crate may know which: the table of the design, held against the manifests.

use super::{list, text};
use anyhow::Result;
use serde_json::Value;

/// What one crate of the workspace may depend on, outside its tests.
struct Boundary {
    name: &'static str,
    /// Crates of the workspace.
    workspace: &'static [&'static str],
    outside: Outside,
}

/// Which crates from a registry are allowed.
enum Outside {
    /// Any with a permissive licence.
    Any,
    /// Only these.
    Only(&'static [&'static str]),
    /// Any but these and others like them.
    Not(&'static [&'static str]),
}

/// Ways to the operating system and to clocks, which a pure crate must not have.
const OPERATING_SYSTEM: &[&str] = &[
    "async-std",
    "chrono",
    "libc",
    "linux-raw-sys",
    "nix",
    "rustix",
    "tempfile",
    "time",
    "tokio",
];
/// Runtimes and protocols that stay out of the privileged path and of the walls.
const RUNTIMES: &[&str] = &["async-std", "clap", "hyper", "reqwest", "tokio", "toml"];

const BOUNDARIES: &[Boundary] = &[
    Boundary {
        name: "stockade-policy",
        workspace: &[],
        outside: Outside::Not(OPERATING_SYSTEM),
    },
    Boundary {
        name: "stockade-sys",
        workspace: &[],
        outside: Outside::Only(&["libc", "rustix", "thiserror"]),
    },
    Boundary {
        name: "stockade-launch",
        workspace: &["stockade-sys"],
        outside: Outside::Only(&["base64", "postcard", "serde", "sha1", "thiserror"]),
    },
    Boundary {
        name: "stockade-agent",
        workspace: &[],
        outside: Outside::Only(&["postcard", "rustix", "serde"]),
    },
    Boundary {
        name: "stockade-agent-image",
        workspace: &[],
        outside: Outside::Only(&[]),
    },
    Boundary {
        name: "stockade-guest",
        workspace: &[],
        outside: Outside::Only(&[]),
    },
    Boundary {
        name: "stockade-walls",
        workspace: &[
            "stockade-launch",
            "stockade-policy",
            "stockade-sys",
            "stockade-vm",
        ],
        outside: Outside::Not(RUNTIMES),
    },
    Boundary {
        name: "stockade-egress",
        workspace: &["stockade-policy", "stockade-sys"],
        outside: Outside::Not(&["clap", "reqwest", "toml"]),
    },
    Boundary {
        name: "stockade-image",
        workspace: &["stockade-sys"],
        outside: Outside::Not(RUNTIMES),
    },
    Boundary {
        name: "stockade-vm",
        // What a machine and its host tell each other.
        workspace: &["stockade-guest", "stockade-sys"],
        outside: Outside::Not(RUNTIMES),
    },
    Boundary {
        name: "stockade-workspace",
        workspace: &["stockade-policy", "stockade-sys"],
        outside: Outside::Not(RUNTIMES),
    },
    Boundary {
        name: "stockade-engine",
        workspace: &[
            "stockade-agent",
            "stockade-agent-image",
            // Its messages; never its loop.
            "stockade-egress",
            "stockade-image",
            "stockade-launch",
            "stockade-policy",
            "stockade-sys",
            "stockade-vm",
            "stockade-walls",
            "stockade-workspace",
        ],
        outside: Outside::Not(&["clap", "hyper", "reqwest", "tokio"]),
    },
    Boundary {
        name: "stockade-attacks",
        workspace: &["stockade-policy", "stockade-sys"],
        outside: Outside::Not(RUNTIMES),
    },
    Boundary {
        name: "stockade",
        workspace: &[
            "stockade-agent-image",
            "stockade-attacks",
            "stockade-egress",
            "stockade-engine",
            "stockade-image",
            "stockade-policy",
            "stockade-sys",
            "stockade-vm",
            "stockade-workspace",
        ],
        outside: Outside::Any,
    },
    Boundary {
        name: "stockade-testkit",
        workspace: &[
            "stockade-agent",
            "stockade-attacks",
            "stockade-policy",
            "stockade-sys",
        ],
        outside: Outside::Any,
    },
    Boundary {
        name: "xtask",
        workspace: &[],
        outside: Outside::Any,
    },
];

/// One finding for each dependency that crosses a boundary and each crate without a row.
pub fn check(metadata: &Value) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for package in list(metadata, "packages")? {
        if !package["source"].is_null() {
            continue;
        }
        let (name, manifest) = (text(package, "name")?, text(package, "manifest_path")?);
        let Some(boundary) = BOUNDARIES.iter().find(|one| one.name == name) else {
            findings.push(format!(
                "{manifest}:1: {name} has no row in the table of xtask's tidy"
            ));
            continue;
        };
        for dependency in list(package, "dependencies")? {
            // Tests may use what they like.
            if dependency["kind"] == "dev" {
                continue;
            }
            let used = text(dependency, "name")?;
            if !boundary.allows(used, dependency["path"].is_string()) {
                findings.push(format!("{manifest}:1: {name} must not depend on {used}"));
            }
        }
    }
    Ok(findings)
}

impl Boundary {
    fn allows(&self, dependency: &str, in_workspace: bool) -> bool {
        match &self.outside {
            _ if in_workspace => self.workspace.contains(&dependency),
            Outside::Any => true,
            Outside::Only(names) => names.contains(&dependency),
            Outside::Not(names) => !names.contains(&dependency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn depends(name: &str, dependency: Value) -> Vec<String> {
        let package = json!({
            "name": name,
            "manifest_path": "Cargo.toml",
            "source": null,
            "dependencies": [dependency],
        });
        check(&json!({ "packages": [package] })).unwrap()
    }

    #[test]
    fn the_policy_stays_away_from_the_operating_system() {
        assert_eq!(
            depends("stockade-policy", json!({"name": "rustix"})).len(),
            1
        );
        assert_eq!(
            depends("stockade-policy", json!({"name": "serde"})).len(),
            0
        );
        assert_eq!(
            depends("stockade-policy", json!({"name": "libc", "kind": "dev"})).len(),
            0
        );
    }

    #[test]
    fn crates_of_the_workspace_follow_the_table() {
        let on = |name: &str| json!({"name": name, "path": "somewhere"});
        assert_eq!(depends("stockade-launch", on("stockade-sys")).len(), 0);
        assert_eq!(depends("stockade-launch", on("stockade-policy")).len(), 1);
        assert_eq!(depends("stockade-new", on("stockade-sys")).len(), 1);
    }
}
