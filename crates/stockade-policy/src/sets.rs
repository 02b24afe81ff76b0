//! The named sets of readable paths, as candidates: which of them exist is
//! found out later, by whoever may look.
//!
//! What a set finds by environment comes on top of the usual places, so that a
//! set without an environment is always the smaller one; merging rests on it.

use std::collections::BTreeMap;

use crate::path::AbsolutePath;
use crate::policy::NamedSet;

/// One path of a set and why it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub path: AbsolutePath,
    pub reason: &'static str,
}

/// The paths that a set stands for, without duplicates; sorted by path.
///
/// A place that the environment names is left out when it is the root, the
/// home or a directory above the home: a variable must not open all of it.
pub fn candidates(
    set: NamedSet,
    home: &AbsolutePath,
    environment: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Vec<Candidate> {
    let mut found = BTreeMap::new();
    let mut add = |path: AbsolutePath, reason: &'static str| {
        if !home.is_within(&path) {
            found.entry(path).or_insert(reason);
        }
    };
    match set {
        NamedSet::System => {
            for (place, reason) in SYSTEM {
                add(expected(AbsolutePath::parse(place)), reason);
            }
        }
        NamedSet::Toolchains => {
            for (place, reason) in HOME_TOOLCHAINS {
                // Only a home near the longest possible path makes this fail.
                home.join(place)
                    .into_iter()
                    .for_each(|path| add(path, reason));
            }
            for (variable, below, reason) in VARIABLES {
                if let Some(value) = environment.get(variable.as_bytes()) {
                    named_by_variable(value, below, home).for_each(|path| add(path, reason));
                }
            }
        }
    }
    found
        .into_iter()
        .map(|(path, reason)| Candidate { path, reason })
        .collect()
}

/// A variable's value may be a list (GOPATH); what is not absolute, and what
/// holds the home, is dropped before anything is appended to it.
fn named_by_variable<'a>(
    value: &'a [u8],
    below: &'a str,
    home: &'a AbsolutePath,
) -> impl Iterator<Item = AbsolutePath> {
    value
        .split(|&byte| byte == b':')
        .filter_map(|place| AbsolutePath::parse(place).ok())
        .filter(move |place| !home.is_within(place))
        .filter(move |place| crate::credentials::covers(place, home).is_none())
        .filter_map(move |place| place.join(below).ok())
}

fn expected(path: Result<AbsolutePath, crate::path::PathError>) -> AbsolutePath {
    path.expect("the places in the tables are absolute and normal, which a test checks")
}

/// Place, reason.
const SYSTEM: &[(&str, &str)] = &[
    ("/usr", "programs, libraries and their data"),
    ("/bin", "programs"),
    ("/sbin", "programs of the system"),
    ("/lib", "libraries and the dynamic loader"),
    ("/lib32", "libraries of 32-bit programs"),
    ("/lib64", "the dynamic loader"),
    ("/libx32", "libraries of x32 programs"),
    ("/etc", "settings that libraries and programs read"),
    ("/opt", "programs installed outside the package manager"),
    ("/nix/store", "programs and libraries of Nix"),
    (
        "/nix/var/nix/profiles",
        "links to the current programs of Nix",
    ),
    ("/run/current-system", "link to the current system of NixOS"),
    ("/gnu/store", "programs and libraries of Guix"),
    (
        "/var/guix/profiles",
        "links to the current programs of Guix",
    ),
    ("/snap", "programs of snap"),
    (
        "/var/lib/dpkg",
        "which packages are installed, for dpkg-query",
    ),
    ("/var/lib/rpm", "which packages are installed, for rpm"),
    (
        "/var/lib/pacman",
        "which packages are installed, for pacman",
    ),
    ("/var/lib/flatpak", "programs of flatpak"),
    ("/var/cache/fontconfig", "index of fonts"),
    ("/home/linuxbrew/.linuxbrew", "programs of Homebrew"),
];

/// Place below the home, reason.
const HOME_TOOLCHAINS: &[(&str, &str)] = &[
    (".rustup", "Rust toolchains"),
    (
        ".cargo/bin",
        "Rust programs; the rest of ~/.cargo holds tokens",
    ),
    (".cargo/env", "shell set-up of Rust"),
    (".nvm", "Node versions of nvm"),
    (".fnm", "Node versions of fnm"),
    (".local/share/fnm", "Node versions of fnm"),
    (
        ".local/state/fnm_multishells",
        "the Node version that fnm chose",
    ),
    (".volta", "Node versions of Volta"),
    (".n", "Node versions of n"),
    ("n", "Node versions of n"),
    (".nodenv", "Node versions of nodenv"),
    (".npm-global", "Node programs installed for this user"),
    (".npm-packages", "Node programs installed for this user"),
    (".local/share/pnpm", "pnpm, its programs and its store"),
    ("Library/pnpm", "pnpm, its programs and its store (macOS)"),
    (".yarn/bin", "yarn"),
    (".config/yarn/global", "Node programs installed by yarn"),
    (".bun/bin", "Bun"),
    (".deno/bin", "Deno and its programs"),
    (".cache/node/corepack", "package managers of corepack"),
    (".pyenv", "Python versions of pyenv"),
    (".local/bin", "programs installed for this user"),
    (".local/lib", "Python packages installed for this user"),
    (".local/pipx", "Python programs of pipx"),
    (".local/share/pipx", "Python programs of pipx"),
    (".local/share/uv/python", "Python versions of uv"),
    (".local/share/uv/tools", "Python programs of uv"),
    (".local/share/hatch/env", "Python environments of Hatch"),
    (".local/share/virtualenvs", "Python environments of pipenv"),
    (".virtualenvs", "Python environments"),
    (
        ".cache/pypoetry/virtualenvs",
        "Python environments of Poetry",
    ),
    (".local/share/pypoetry", "Poetry"),
    (".rye", "Python versions of Rye"),
    (".pixi/bin", "programs of pixi"),
    (".pixi/envs", "environments of pixi"),
    ("miniconda3", "conda and its environments"),
    ("anaconda3", "conda and its environments"),
    ("miniforge3", "conda and its environments"),
    ("mambaforge", "conda and its environments"),
    ("micromamba", "conda environments of micromamba"),
    (".conda/envs", "conda environments"),
    (".local/share/mamba", "conda environments of mamba"),
    ("go/bin", "Go programs"),
    ("go/pkg", "Go modules and toolchains"),
    ("sdk", "Go versions installed by `go install golang.org/dl`"),
    (".goenv", "Go versions of goenv"),
    (".gvm", "Go versions of gvm"),
    (".sdkman/candidates", "Java and its tools, of SDKMAN"),
    (".sdkman/bin", "SDKMAN"),
    (".jenv", "Java versions of jEnv"),
    (".jdks", "Java versions installed by an editor"),
    (".gradle/jdks", "Java versions installed by Gradle"),
    (".m2/wrapper", "Maven versions of the wrapper"),
    (".gradle/wrapper", "Gradle versions of the wrapper"),
    (".asdf", "versions of asdf"),
    (".local/share/asdf", "versions of asdf"),
    (".local/share/mise", "versions of mise"),
    (".proto", "versions of proto"),
    (".rbenv", "Ruby versions of rbenv"),
    (".rvm", "Ruby versions of rvm"),
    (".linuxbrew", "programs of Homebrew"),
    (".nix-profile", "link to this user's programs of Nix"),
    (
        ".local/state/nix/profiles",
        "links to this user's programs of Nix",
    ),
];

/// Variable, place below its value, reason.
const VARIABLES: &[(&str, &str, &str)] = &[
    ("RUSTUP_HOME", "", "Rust toolchains, by RUSTUP_HOME"),
    ("CARGO_HOME", "bin", "Rust programs, by CARGO_HOME"),
    ("CARGO_HOME", "env", "shell set-up of Rust, by CARGO_HOME"),
    ("NVM_DIR", "", "Node versions, by NVM_DIR"),
    ("FNM_DIR", "", "Node versions, by FNM_DIR"),
    (
        "FNM_MULTISHELL_PATH",
        "",
        "the Node version that fnm chose, by FNM_MULTISHELL_PATH",
    ),
    ("VOLTA_HOME", "", "Node versions, by VOLTA_HOME"),
    ("N_PREFIX", "", "Node versions, by N_PREFIX"),
    ("NODENV_ROOT", "", "Node versions, by NODENV_ROOT"),
    ("PNPM_HOME", "", "pnpm, by PNPM_HOME"),
    ("BUN_INSTALL", "bin", "Bun, by BUN_INSTALL"),
    ("DENO_INSTALL", "bin", "Deno, by DENO_INSTALL"),
    ("COREPACK_HOME", "", "package managers, by COREPACK_HOME"),
    ("PYENV_ROOT", "", "Python versions, by PYENV_ROOT"),
    (
        "VIRTUAL_ENV",
        "",
        "the active Python environment, by VIRTUAL_ENV",
    ),
    (
        "CONDA_PREFIX",
        "",
        "the active conda environment, by CONDA_PREFIX",
    ),
    ("CONDA_ROOT", "", "conda, by CONDA_ROOT"),
    (
        "MAMBA_ROOT_PREFIX",
        "",
        "conda environments, by MAMBA_ROOT_PREFIX",
    ),
    (
        "UV_PYTHON_INSTALL_DIR",
        "",
        "Python versions, by UV_PYTHON_INSTALL_DIR",
    ),
    ("UV_TOOL_DIR", "", "Python programs, by UV_TOOL_DIR"),
    ("PIPX_HOME", "", "Python programs, by PIPX_HOME"),
    ("RYE_HOME", "", "Python versions, by RYE_HOME"),
    ("GOROOT", "", "Go, by GOROOT"),
    ("GOPATH", "bin", "Go programs, by GOPATH"),
    ("GOPATH", "pkg", "Go modules, by GOPATH"),
    ("GOMODCACHE", "", "Go modules, by GOMODCACHE"),
    ("GOENV_ROOT", "", "Go versions, by GOENV_ROOT"),
    ("JAVA_HOME", "", "Java, by JAVA_HOME"),
    (
        "SDKMAN_DIR",
        "candidates",
        "Java and its tools, by SDKMAN_DIR",
    ),
    ("SDKMAN_DIR", "bin", "SDKMAN, by SDKMAN_DIR"),
    ("MAVEN_HOME", "", "Maven, by MAVEN_HOME"),
    ("M2_HOME", "", "Maven, by M2_HOME"),
    ("GRADLE_HOME", "", "Gradle, by GRADLE_HOME"),
    ("ASDF_DIR", "", "asdf, by ASDF_DIR"),
    ("ASDF_DATA_DIR", "", "versions of asdf, by ASDF_DATA_DIR"),
    ("MISE_DATA_DIR", "", "versions of mise, by MISE_DATA_DIR"),
    ("PROTO_HOME", "", "versions of proto, by PROTO_HOME"),
    ("HOMEBREW_PREFIX", "", "programs, by HOMEBREW_PREFIX"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> AbsolutePath {
        AbsolutePath::parse(text).unwrap()
    }

    fn shown(set: NamedSet, home: &str, environment: &[(&str, &str)]) -> Vec<String> {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let environment = environment
            .iter()
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect();
        candidates(set, &path(home), &environment)
            .iter()
            .map(|candidate| candidate.path.to_string())
            .collect()
    }

    #[test]
    fn the_system_set_holds_no_private_directory() {
        let system = shown(NamedSet::System, "/home/u", &[]);
        assert!(system.contains(&"/usr".to_owned()) && system.contains(&"/etc".to_owned()));
        for private in [
            "/", "/var", "/run", "/root", "/home", "/home/u", "/tmp", "/proc", "/sys", "/dev",
            "/var/lib",
        ] {
            assert!(!system.contains(&private.to_owned()), "{private}");
        }
    }

    #[test]
    fn no_candidate_is_a_credential_place() {
        let home = path("/home/u");
        for set in [NamedSet::System, NamedSet::Toolchains] {
            for candidate in candidates(set, &home, &BTreeMap::new()) {
                let covering = crate::credentials::covers(&candidate.path, &home);
                assert_eq!(covering, None, "{}", candidate.path);
            }
        }
    }

    #[test]
    fn cargo_home_gives_its_programs_and_never_its_tokens() {
        let toolchains = shown(
            NamedSet::Toolchains,
            "/home/u",
            &[("CARGO_HOME", "/data/cargo")],
        );
        assert!(toolchains.contains(&"/data/cargo/bin".to_owned()));
        assert!(toolchains.contains(&"/home/u/.cargo/bin".to_owned()));
        assert!(!toolchains.contains(&"/data/cargo".to_owned()));
        assert!(!toolchains.contains(&"/home/u/.cargo".to_owned()));
    }

    #[test]
    fn a_variable_opens_neither_the_root_nor_the_home_nor_what_is_above_it() {
        let plain = shown(NamedSet::Toolchains, "/home/u", &[]);
        for value in [
            "/",
            "/home",
            "/home/u",
            "/home/u/",
            "relative",
            "",
            "/home/u/../x",
            "/home/u/.ssh",
            "/etc/ssl/private/x",
        ] {
            for variable in ["RUSTUP_HOME", "JAVA_HOME", "GOPATH", "CARGO_HOME"] {
                assert_eq!(
                    shown(NamedSet::Toolchains, "/home/u", &[(variable, value)]),
                    plain,
                    "{variable}={value}"
                );
            }
        }
    }

    #[test]
    fn a_variable_may_be_a_list() {
        let toolchains = shown(
            NamedSet::Toolchains,
            "/home/u",
            &[("GOPATH", "/a/go:/home/u:/b/go")],
        );
        for place in ["/a/go/bin", "/a/go/pkg", "/b/go/bin"] {
            assert!(toolchains.contains(&place.to_owned()), "{place}");
        }
        assert!(!toolchains.contains(&"/home/u/bin".to_owned()));
    }
}
