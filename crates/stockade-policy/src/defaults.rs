//! What applies where no layer says anything.

use crate::caches::Cache;
use crate::path::AbsolutePath;
use crate::plan::{Rule, Wall, WallDemand, WorkspaceMode};
use crate::policy::{GrantTarget, NamedSet};
use crate::validate::Item;

/// The wall when nobody says it.
pub(crate) fn wall() -> (WallDemand, Rule) {
    let rule = Rule {
        id: "wall".to_owned(),
        origin: "built-in".to_owned(),
        reason: "the cheapest wall".to_owned(),
    };
    let demand = WallDemand {
        least: Wall::Process,
        exactly: true,
    };
    (demand, rule)
}

/// How writes reach the workspace when nobody says it.
pub(crate) fn workspace_mode() -> (WorkspaceMode, Rule) {
    let rule = Rule {
        id: "filesystem.workspace".to_owned(),
        origin: "built-in".to_owned(),
        reason: "writes reach the project directly".to_owned(),
    };
    (WorkspaceMode::Live, rule)
}

/// Variables that enter when nobody lists any, and why. None of them is known
/// to carry a secret.
pub(crate) const ENVIRONMENT_PASS: &[(&str, &str)] = &[
    ("PATH", "where programs are found"),
    ("HOME", "where programs look for their files"),
    ("USER", "the user's name"),
    ("LOGNAME", "the user's name"),
    ("SHELL", "the user's shell"),
    ("LANG", "language of messages"),
    ("LANGUAGE", "language of messages"),
    ("LC_*", "language of messages"),
    ("TZ", "time zone"),
    ("TERM", "what the terminal can do"),
    ("COLORTERM", "what the terminal can do"),
    ("COLUMNS", "size of the terminal"),
    ("LINES", "size of the terminal"),
    ("NO_COLOR", "no colours wanted"),
    ("CLICOLOR", "colours wanted"),
    ("CLICOLOR_FORCE", "colours wanted"),
    ("FORCE_COLOR", "colours wanted"),
    ("EDITOR", "the user's editor"),
    ("VISUAL", "the user's editor"),
    ("PAGER", "the user's pager"),
    ("CI", "programs ask no questions under CI"),
    ("SOURCE_DATE_EPOCH", "time that reproducible builds write"),
    ("RUSTUP_HOME", "where Rust toolchains are"),
    ("RUSTUP_TOOLCHAIN", "which Rust toolchain is wanted"),
    ("CARGO_HOME", "where Rust programs are"),
    ("CARGO_TARGET_DIR", "where Rust builds go"),
    ("RUSTFLAGS", "options of the Rust compiler"),
    (
        "RUST_BACKTRACE",
        "whether Rust programs show where they failed",
    ),
    ("NVM_DIR", "where Node versions are"),
    ("NVM_BIN", "which Node version is wanted"),
    ("FNM_DIR", "where Node versions are"),
    ("FNM_MULTISHELL_PATH", "which Node version is wanted"),
    ("VOLTA_HOME", "where Node versions are"),
    ("N_PREFIX", "where Node versions are"),
    ("PNPM_HOME", "where pnpm is"),
    ("NODE_ENV", "whether Node programs run for production"),
    ("PYENV_ROOT", "where Python versions are"),
    ("PYENV_VERSION", "which Python version is wanted"),
    ("VIRTUAL_ENV", "the active Python environment"),
    ("CONDA_PREFIX", "the active conda environment"),
    ("CONDA_DEFAULT_ENV", "the active conda environment"),
    ("UV_PYTHON_INSTALL_DIR", "where Python versions are"),
    ("GOROOT", "where Go is"),
    ("GOPATH", "where Go modules are"),
    ("GOMODCACHE", "where Go modules are"),
    ("JAVA_HOME", "where Java is"),
    ("MAVEN_HOME", "where Maven is"),
    ("GRADLE_HOME", "where Gradle is"),
    ("SDKMAN_DIR", "where Java versions are"),
    ("ASDF_DIR", "where asdf is"),
    ("ASDF_DATA_DIR", "where versions of asdf are"),
    ("MISE_DATA_DIR", "where versions of mise are"),
    ("CC", "the C compiler"),
    ("CXX", "the C++ compiler"),
    ("CFLAGS", "options of the C compiler"),
    ("CXXFLAGS", "options of the C++ compiler"),
    ("LDFLAGS", "options of the linker"),
    ("MAKEFLAGS", "options of make"),
];

/// `filesystem.write`: the project.
pub(crate) fn write(workspace: &AbsolutePath) -> Vec<Item<GrantTarget>> {
    vec![item(
        GrantTarget::Path(workspace.clone()),
        "filesystem.write[0]",
        "the project",
    )]
}

/// `filesystem.read`: the set `system`.
pub(crate) fn read() -> Vec<Item<GrantTarget>> {
    vec![item(
        GrantTarget::Set(NamedSet::System),
        "filesystem.read[0]",
        "what programs need to start",
    )]
}

/// `filesystem.caches`: all of them.
pub(crate) fn caches() -> Vec<Item<Cache>> {
    let items = Cache::KNOWN.iter().enumerate();
    items
        .map(|(index, cache)| {
            let id = format!("filesystem.caches[{index}]");
            item(cache.clone(), &id, "kept between the runs of this project")
        })
        .collect()
}

/// `environment.pass`.
pub(crate) fn environment_pass() -> Vec<Item<String>> {
    ENVIRONMENT_PASS
        .iter()
        .enumerate()
        .map(|(index, (name, reason))| {
            item(
                (*name).to_owned(),
                &format!("environment.pass[{index}]"),
                reason,
            )
        })
        .collect()
}

fn item<T>(value: T, id: &str, reason: &str) -> Item<T> {
    let rule = Rule {
        id: id.to_owned(),
        origin: "built-in".to_owned(),
        reason: reason.to_owned(),
    };
    Item {
        value,
        rule,
        place: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    #[test]
    fn the_default_preset_says_what_the_built_in_default_is() {
        let settings = presets::all()[0].settings;
        assert_eq!(
            settings,
            [
                ("filesystem.write", &["."][..]),
                ("filesystem.read", &["system"][..])
            ]
        );
        assert_eq!(write(&AbsolutePath::root()).len(), 1);
        assert_eq!(read()[0].value, GrantTarget::Set(NamedSet::System));
    }

    #[test]
    fn variables_are_well_formed() {
        for (name, _) in ENVIRONMENT_PASS {
            assert!(crate::value::variable_pattern(name).is_ok(), "{name}");
        }
    }
}
