//! The keys of a policy document, in one table.
//!
//! The table drives the parser, its suggestions, the JSON schema and the file
//! that `stockade init` writes, so they cannot drift apart.

mod credential;
mod network;

use crate::document::{Document, Input, Reader, Value};
use crate::value;

/// One key of version 1: of the document, or of a table in it.
pub(crate) struct Key<T: 'static = Document> {
    /// Dotted, with its table.
    pub path: &'static str,
    pub grammar: Grammar,
    /// What it is for, in whole sentences.
    pub about: &'static str,
    /// A line of TOML that shows it.
    pub example: &'static str,
    pub read: fn(&mut T, &mut Reader<'_>, Input<'_>),
}

/// A key without the type that it is read into.
pub(crate) struct Shown {
    pub name: &'static str,
    pub grammar: &'static Grammar,
    pub about: &'static str,
}

/// The keys of a table, for whoever only shows them.
pub(crate) trait Fields: Sync {
    fn shown(&self) -> Vec<Shown>;
}

/// The form of a value, as the JSON schema says it. The patterns there are an
/// aid for editors; what is accepted is decided by `value`.
pub(crate) enum Grammar {
    /// The number 1.
    Version,
    Boolean,
    /// A whole number from 1 up.
    Count,
    /// A number above 0.
    Number,
    Text(Text),
    List(Text),
    /// A table from names to strings.
    Variables,
    /// A list of numbers and strings.
    Numbers(&'static str),
    /// A string or a date.
    Moment,
    Table(&'static dyn Fields),
    Tables(&'static dyn Fields),
}

pub(crate) enum Text {
    Words(&'static [&'static str]),
    /// The name of a preset.
    Preset,
    /// The id of a guarantee.
    Guarantee,
    /// A regular expression (ECMA 262, as JSON schema demands).
    Pattern(&'static str),
}

/// The tables, in the order in which they are documented.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    (
        "filesystem",
        "Files. What is not granted here is absent inside.",
    ),
    (
        "network",
        "Network. Nothing is reachable but what is listed, by host name.",
    ),
    (
        "approval",
        "People in the loop: what happens with a request that no rule names.",
    ),
    ("environment", "Environment. Only listed variables enter."),
    ("process", "How the process wall is set up."),
    ("container", "What the container wall stands on."),
    ("microvm", "How virtual machines are run."),
    (
        "limits",
        "Limits. Across files the smallest wins; a limit that was hit is named in the result.",
    ),
];

const SIZE: &str = r"^[0-9]+(\.[0-9]{1,6})? *(B|[kK]B|MB|GB|TB|KiB|MiB|GiB|TiB)$";
const SIZE_OR_SHARE: &str =
    r"^([0-9]+(\.[0-9]{1,6})? *(B|[kK]B|MB|GB|TB|KiB|MiB|GiB|TiB)|[0-9]{1,3}%)$";
const DURATION: &str = r"^[0-9]+ *[a-zA-Z]+( *[0-9]+ *[a-zA-Z]+)*$";
const IMAGE: &str = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$";
const RUNTIME_VERSION: &str = r"^[A-Za-z0-9][A-Za-z0-9.+~:_-]{0,127}$";
const CACHE: &str = r"^(cargo|npm|pip|go|ccache|[a-z0-9][a-z0-9-]{0,31}=[A-Z_][A-Z0-9_]{0,63})$";
const NOT_EMPTY: &str = r"^.+$";
const HOST: &str = r"^(\*\*?\.)?[^\s/:*.]+(\.[^\s/:*.]+)*(:[0-9]{1,5})?$";
const VARIABLE: &str = r"^[A-Za-z_][A-Za-z0-9_]*\*?$";

static KEYS: &[Key] = &[
    Key {
        path: "version",
        grammar: Grammar::Version,
        about: "The version of this format.",
        example: "version = 1",
        read: |_, _, _| {},
    },
    Key {
        path: "preset",
        grammar: Grammar::Text(Text::Preset),
        about: "A named starting point. Keys that this file says itself replace the preset's.",
        example: r#"preset = "build""#,
        read: |document, reader, input| document.preset = reader.text(input, value::preset),
    },
    Key {
        path: "wall",
        grammar: Grammar::Text(Text::Words(&[
            "process",
            "container",
            "gvisor",
            "microvm",
            "seatbelt",
            "at-least:process",
            "at-least:container",
            "at-least:gvisor",
            "at-least:microvm",
        ])),
        about: "The wall that holds the command; of several files the strongest. \"container\" \
                demands limits that the kernel counts exactly; \"gvisor\" and \"microvm\" have a \
                kernel of their own besides. After \"at-least:\" it is the cheapest of that \
                wall and the stronger ones that holds everything the policy demands here.",
        example: r#"wall = "process""#,
        read: |document, reader, input| document.wall = reader.text(input, value::wall),
    },
    Key {
        path: "weaken",
        grammar: Grammar::List(Text::Guarantee),
        about: "Guarantees of which less than all is accepted, by name. Printed at each run.",
        example: r#"weaken = ["PR7"]"#,
        read: |document, reader, input| document.weaken = reader.list(input, value::guarantee),
    },
    Key {
        path: "filesystem.workspace",
        grammar: Grammar::Text(Text::Words(&["live", "review", "discard"])),
        about: "How writes reach the project: directly (\"live\"), into a layer that you look at and \
                apply afterwards (\"review\"), or not at all (\"discard\"). Across files and options \
                the strictest wins: \"discard\" over \"review\" over \"live\".",
        example: r#"workspace = "live""#,
        read: |document, reader, input| document.workspace = reader.text(input, value::workspace),
    },
    Key {
        path: "filesystem.write",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Paths that may be read and written: relative to the project, \"~/…\", or absolute. \
                A list replaces the built-in one, which is [\".\"].",
        example: r#"write = [".", "~/.cache/example"]"#,
        read: |document, reader, input| document.write = reader.list(input, value::writable),
    },
    Key {
        path: "filesystem.read",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Paths that may be read, and the sets \"system\" (what programs need to start) and \
                \"toolchains\" (Rust, Node, Python, Go and Java as installed for you; it includes \
                \"system\"). A list replaces the built-in one, which is [\"system\"].",
        example: r#"read = ["system", "toolchains", "~/data"]"#,
        read: |document, reader, input| document.read = reader.list(input, value::readable),
    },
    Key {
        path: "filesystem.hide",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Globs, relative to the project, of what is taken away again.",
        example: r#"hide = ["**/.env", "secrets/**"]"#,
        read: |document, reader, input| document.hide = reader.list(input, value::glob),
    },
    Key {
        path: "filesystem.guard",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Globs of names that run or steer something outside, such as hooks and workflows: what \
                a command writes there is held until you approve it. The built-in list, \"defaults\", \
                always counts; \"!pattern\" takes paths out of it and \"!defaults\" all of it, which is \
                printed at each run. A project can only add.",
        example: r#"guard = ["defaults", "deploy/**"]"#,
        read: |document, reader, input| document.guard = reader.list(input, value::guarded),
    },
    Key {
        path: "filesystem.guard_report",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Globs of names that are written as they are and named in the report at the end of a \
                run; \"!pattern\" leaves names out of it.",
        example: r#"guard_report = ["docs/build.md"]"#,
        read: |document, reader, input| {
            document.guard_report = reader.list(input, value::guard_pattern)
        },
    },
    Key {
        path: "filesystem.caches",
        grammar: Grammar::List(Text::Pattern(CACHE)),
        about: "Caches that are kept between the runs of this project, and of no other. A list \
                replaces the built-in one, which has all of them; an empty one keeps nothing.",
        example: r#"caches = ["cargo", "npm", "uv=UV_CACHE_DIR"]"#,
        read: |document, reader, input| document.caches = reader.list(input, value::cache),
    },
    Key {
        path: "filesystem.cache_bytes_max",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Size of the caches of one project together. What was not used for longest goes when \
                a run has ended.",
        example: r#"cache_bytes_max = "2GiB""#,
        read: |document, reader, input| document.cache_bytes = reader.text(input, value::size),
    },
    Key {
        path: "filesystem.store_bytes_max",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "What runs that wait for review, and snapshots, may take up before a run in review \
                mode is refused.",
        example: r#"store_bytes_max = "20GiB""#,
        read: |document, reader, input| document.store_bytes = reader.text(input, value::size),
    },
    Key {
        path: "environment.pass",
        grammar: Grammar::List(Text::Pattern(VARIABLE)),
        about: "Variables that enter with your value, by name or by prefix and star. A list replaces \
                the built-in one, which `stockade explain` shows.",
        example: r#"pass = ["PATH", "HOME", "TERM", "LANG", "LC_*"]"#,
        read: |document, reader, input| {
            document.environment_pass = reader.list(input, value::variable_pattern)
        },
    },
    Key {
        path: "environment.set",
        grammar: Grammar::Variables,
        about: "Variables with values of their own. Never write a secret here.",
        example: r#"set = { CI = "1" }"#,
        read: |document, reader, input| document.environment_set = reader.variables(input),
    },
    Key {
        path: "process.nested_sandbox",
        grammar: Grammar::Boolean,
        about: "Let programs that bring their own sandbox (Chromium, bubblewrap) make namespaces. \
                `false` in any file forbids it.",
        example: "nested_sandbox = true",
        read: |document, reader, input| document.nested_sandbox = reader.boolean(input),
    },
    Key {
        path: "process.form",
        grammar: Grammar::Text(Text::Words(&["namespaces", "landlock-only"])),
        about: "The form of the wall. \"landlock-only\" is for machines without user namespaces and \
                holds less; `stockade explain` says what. \"namespaces\" in any file forbids it.",
        example: r#"form = "namespaces""#,
        read: |document, reader, input| document.form = reader.text(input, value::form),
    },
    Key {
        path: "container.image",
        grammar: Grammar::Text(Text::Pattern(IMAGE)),
        about: "An image that `stockade image import` brought, whose directories are the system \
                inside instead of the host's.",
        example: r#"image = "debian:13""#,
        read: |document, reader, input| document.image = reader.text(input, value::image),
    },
    Key {
        path: "container.runtime",
        grammar: Grammar::Text(Text::Words(&["runc", "crun"])),
        about: "An installed OCI runtime that makes the container, for those whose platform asks \
                for it; without this key Stockade makes it itself, and holds more.",
        example: r#"runtime = "runc""#,
        read: |document, reader, input| document.runtime = reader.text(input, value::runtime),
    },
    Key {
        path: "container.accept_runtime",
        grammar: Grammar::Text(Text::Pattern(RUNTIME_VERSION)),
        about: "Exactly this version of the runtime is used although one with its number is known \
                to let containers out: for a version that your distribution repaired.",
        example: r#"accept_runtime = "1.1.12+ds1-5.1+deb12u2""#,
        read: |document, reader, input| {
            document.accepted_runtime = reader.text(input, value::runtime_version);
        },
    },
    Key {
        path: "microvm.accelerator",
        grammar: Grammar::Text(Text::Words(&["kvm", "tcg"])),
        about: "What executes the instructions of a machine: \"kvm\" the processor, \"tcg\" QEMU, \
                which translates them, slowly, and keeps the host's KVM away from the machine. \
                Without this key it is KVM where a trial shows that it works.",
        example: r#"accelerator = "kvm""#,
        read: |document, reader, input| {
            document.accelerator = reader.text(input, value::accelerator);
        },
    },
    Key {
        path: "limits.memory",
        grammar: Grammar::Text(Text::Pattern(SIZE_OR_SHARE)),
        about: "Memory of all processes together, in bytes or as a share of the machine's.",
        example: r#"memory = "2GiB""#,
        read: |document, reader, input| document.memory = reader.text(input, value::amount),
    },
    Key {
        path: "limits.processes",
        grammar: Grammar::Count,
        about: "Processes and threads at one time.",
        example: "processes = 512",
        read: |document, reader, input| document.processes = reader.count(input),
    },
    Key {
        path: "limits.cpus",
        grammar: Grammar::Number,
        about: "Processors; a fraction is a share of one.",
        example: "cpus = 1.5",
        read: |document, reader, input| document.cpu_percent = reader.hundredths(input),
    },
    Key {
        path: "limits.cpu_time",
        grammar: Grammar::Text(Text::Pattern(DURATION)),
        about: "Processor time of each process.",
        example: r#"cpu_time = "30s""#,
        read: |document, reader, input| {
            document.cpu_seconds = reader.text(input, value::duration_seconds)
        },
    },
    Key {
        path: "limits.wall_time",
        grammar: Grammar::Text(Text::Pattern(DURATION)),
        about: "Time from start to end of the run.",
        example: r#"wall_time = "10m""#,
        read: |document, reader, input| {
            document.wall_time_ms = reader.text(input, value::duration_ms)
        },
    },
    Key {
        path: "limits.open_files",
        grammar: Grammar::Count,
        about: "Open files of each process.",
        example: "open_files = 1024",
        read: |document, reader, input| document.open_files = reader.count(input),
    },
    Key {
        path: "limits.file_size",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Size of each file that is written.",
        example: r#"file_size = "1GiB""#,
        read: |document, reader, input| document.file_bytes = reader.text(input, value::size),
    },
    Key {
        path: "limits.disk",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Size of the private directories together, /tmp among them.",
        example: r#"disk = "5GiB""#,
        read: |document, reader, input| document.disk_bytes = reader.text(input, value::size),
    },
    Key {
        path: "limits.exact",
        grammar: Grammar::Boolean,
        about: "Refuse to run where a limit could only be held by sampling.",
        example: "exact = true",
        read: |document, reader, input| document.exact = reader.boolean(input),
    },
];

impl<T> Key<T> {
    /// A value of this key, on its way in.
    pub(crate) fn input<'a>(&self, value: Value<'a>) -> Input<'a> {
        Input {
            path: self.path,
            example: self.example,
            value,
        }
    }

    /// The name without its table.
    pub(crate) fn name(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or(self.path, |(_, name)| name)
    }

    /// The table, or nothing for a key at the top.
    pub(crate) fn section(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or("", |(section, _)| section)
    }
}

impl<T> Fields for &'static [Key<T>] {
    fn shown(&self) -> Vec<Shown> {
        let shown = |key: &'static Key<T>| Shown {
            name: key.name(),
            grammar: &key.grammar,
            about: key.about,
        };
        self.iter().map(shown).collect()
    }
}

impl Grammar {
    /// A table or a list of tables, which TOML writes behind everything else.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self, Self::Table(_) | Self::Tables(_))
    }
}

pub(crate) fn all() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().chain(network::KEYS).chain(credential::KEYS)
}

pub(crate) fn find(path: &str) -> Option<&'static Key> {
    all().find(|key| key.path == path)
}

pub(crate) fn is_section(name: &str) -> bool {
    SECTIONS.iter().any(|(section, _)| *section == name)
}

/// Names that may stand in a table; at the top also the tables themselves.
pub(crate) fn names_in(section: &str) -> impl Iterator<Item = &'static str> {
    let tables = SECTIONS
        .iter()
        .map(|(name, _)| *name)
        .filter(move |_| section.is_empty());
    let keys = all()
        .filter(move |key| key.section() == section)
        .map(Key::name);
    keys.chain(tables)
}
