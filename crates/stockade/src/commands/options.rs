//! Options that say under which policy and where to run; shared by every
//! command that makes a plan.

use std::path::PathBuf;

use stockade_engine::load::{CliSetting, Selection};

/// Policy and place
#[derive(Clone, Debug, Default, clap::Args)]
#[command(
    next_help_heading = "Policy (adds to the policy files; `stockade explain` shows the sum)"
)]
pub struct PolicyOptions {
    /// Project directory; otherwise the nearest one upwards with a
    /// stockade.toml, else with a .git, else the current directory
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
    /// The wall: `process`, `container` with limits that the kernel counts
    /// exactly, `gvisor` or `microvm` with a kernel of its own besides; after
    /// `at-least:` the cheapest from there on that holds everything. The
    /// strongest of all files and options wins
    #[arg(long, value_name = "WALL")]
    wall: Option<String>,
    /// Run on an imported image instead of the host's system directories
    /// (`stockade image`; needs the wall `container`)
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Have an installed OCI runtime make the container: `runc` or `crun`
    /// (needs the wall `container`)
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
    /// Use exactly this version of it, whatever is known against its number
    #[arg(long, value_name = "VERSION")]
    accept_runtime: Option<String>,
    /// What executes a machine: `kvm` or `tcg` (needs the wall `microvm`);
    /// without it KVM, where a trial shows that it works
    #[arg(long, value_name = "NAME")]
    accelerator: Option<String>,
    /// Start from a named preset
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Also let it read PATH, or the set `toolchains`
    #[arg(long, value_name = "PATH")]
    read: Vec<String>,
    /// Also let it write PATH
    #[arg(long, value_name = "PATH")]
    write: Vec<String>,
    /// How writes reach the project: `live` (directly), `review` (into a layer
    /// that you apply afterwards) or `discard`; the strictest of all files and
    /// options wins
    #[arg(long, value_name = "MODE")]
    workspace: Option<String>,
    /// Hide what matches GLOB below the granted directories
    #[arg(long, value_name = "GLOB")]
    hide: Vec<String>,
    /// Also let it reach HOST: `host`, `*.host`, `**.host`, with `:port` where
    /// it is not 443 or 80
    #[arg(long, value_name = "HOST")]
    allow: Vec<String>,
    /// Make a port of a server inside reachable on this machine's loopback
    #[arg(long, value_name = "[HOST_PORT:]PORT")]
    publish: Vec<String>,
    /// Let it reach a port of this machine's loopback
    #[arg(long, value_name = "PORT")]
    host_port: Vec<String>,
    /// Let the variable NAME (or PREFIX_*) in; NAME=VALUE sets it
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Most memory, for example 2GiB or 50%
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Most processes and threads
    #[arg(long, value_name = "N")]
    processes: Option<String>,
    /// Most processors, for example 1.5
    #[arg(long, value_name = "N")]
    cpus: Option<String>,
    /// Most open files of each process
    #[arg(long, value_name = "N")]
    open_files: Option<String>,
    /// End the run after this long, for example 10m (exit code 124)
    #[arg(long, value_name = "TIME")]
    wall_time: Option<String>,
    /// Most bytes in the private directories (/tmp, home, …)
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// Let tools inside make their own sandbox (Chromium, bubblewrap)
    #[arg(long)]
    nested_sandbox: bool,
}

impl PolicyOptions {
    /// The options as a layer of policy.
    pub fn selection(&self) -> Selection {
        let mut settings = Vec::new();
        let mut add = |key: &'static str, values: Vec<String>| {
            if !values.is_empty() {
                settings.push(CliSetting { key, values });
            }
        };
        add("preset", self.preset.iter().cloned().collect());
        add("wall", self.wall.iter().cloned().collect());
        add("container.image", self.image.iter().cloned().collect());
        add("container.runtime", self.runtime.iter().cloned().collect());
        add(
            "microvm.accelerator",
            self.accelerator.iter().cloned().collect(),
        );
        add(
            "container.accept_runtime",
            self.accept_runtime.iter().cloned().collect(),
        );
        add(
            "filesystem.workspace",
            self.workspace.iter().cloned().collect(),
        );
        add("filesystem.read", self.read.clone());
        add("filesystem.write", self.write.clone());
        add("filesystem.hide", self.hide.clone());
        add("network.allow", self.allow.clone());
        add("network.publish", self.publish.clone());
        add("network.host_ports", self.host_port.clone());
        let (set, pass): (Vec<String>, Vec<String>) = self
            .env
            .iter()
            .cloned()
            .partition(|item| item.contains('='));
        add("environment.pass", pass);
        add("environment.set", set);
        add("limits.memory", self.memory.iter().cloned().collect());
        add("limits.processes", self.processes.iter().cloned().collect());
        add("limits.cpus", self.cpus.iter().cloned().collect());
        add(
            "limits.open_files",
            self.open_files.iter().cloned().collect(),
        );
        add("limits.wall_time", self.wall_time.iter().cloned().collect());
        add("limits.disk", self.disk.iter().cloned().collect());
        if self.nested_sandbox {
            add("process.nested_sandbox", vec!["true".into()]);
        }
        Selection {
            project: self.project.clone(),
            settings,
        }
    }
}
