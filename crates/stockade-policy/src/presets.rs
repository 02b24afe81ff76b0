//! Named starting points, as data: each is a list of settings, read exactly
//! like command-line options.

/// A named starting point.
#[derive(Debug, PartialEq, Eq)]
pub struct Preset {
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Dotted keys and their values.
    pub settings: &'static [(&'static str, &'static [&'static str])],
}

/// Every preset, the built-in default first.
pub fn all() -> &'static [Preset] {
    PRESETS
}

/// Looks a preset up by name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

static PRESETS: &[Preset] = &[
    Preset {
        name: "default",
        about: "write the project, read what programs need to start",
        settings: &[
            ("filesystem.write", &["."]),
            ("filesystem.read", &["system"]),
        ],
    },
    Preset {
        name: "build",
        about: "the default, and the toolchains installed for you",
        settings: &[
            ("filesystem.write", &["."]),
            ("filesystem.read", &["system", "toolchains"]),
        ],
    },
    Preset {
        name: "read-only",
        about: "read the project, write nothing but private directories",
        settings: &[
            ("filesystem.write", &[]),
            ("filesystem.read", &["system", "."]),
        ],
    },
    Preset {
        name: "ci",
        about: "a build without your personal variables and with an end",
        settings: &[
            ("filesystem.write", &["."]),
            ("filesystem.read", &["system", "toolchains"]),
            (
                "environment.pass",
                &["PATH", "HOME", "LANG", "LC_*", "TZ", "CI"],
            ),
            ("limits.wall_time", &["1h"]),
            ("limits.memory", &["80%"]),
        ],
    },
    Preset {
        name: "strict",
        about: "the default with few variables and tight limits, all held exactly",
        settings: &[
            ("filesystem.write", &["."]),
            ("filesystem.read", &["system"]),
            ("environment.pass", &["PATH", "HOME", "LANG", "TERM"]),
            ("limits.memory", &["1GiB"]),
            ("limits.processes", &["128"]),
            ("limits.wall_time", &["10m"]),
            ("limits.disk", &["1GiB"]),
            ("limits.exact", &["true"]),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Document, Setting, from_settings};
    use crate::problem::{Layer, LayerKind};

    #[test]
    fn every_preset_reads_without_a_problem() {
        let layer = Layer::new(LayerKind::User, "preset");
        for preset in all() {
            let settings: Vec<Setting<'_>> = preset
                .settings
                .iter()
                .map(|(key, values)| Setting { key, values })
                .collect();
            let document = from_settings(&settings, &layer).unwrap();
            assert_ne!(document, Document::empty(&layer), "{}", preset.name);
            assert!(document.preset.is_none(), "a preset that names a preset");
        }
    }
}
