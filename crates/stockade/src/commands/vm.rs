//! `stockade vm`: machine images for the microVM wall.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use stockade_engine::state::{Places, StateDirectory};
use stockade_vm::saved::Kept;
use stockade_vm::source::Source;
use stockade_vm::store::{Image, Store};

use crate::exit::ExitCode;

/// Build, list and remove machine images for the microVM wall
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Build, list and remove machine images for the microVM wall.\n\n\
        An image is a kernel and what it boots into: the modules that it needs and stockade's \
        agent. The kernel is the newest installed one that can be a machine's, or one from a \
        package file of Debian or one of its relatives; nothing is downloaded. It is verified by \
        its digest at each start, and must be built again when stockade was updated.",
    after_long_help = "Examples:\n  \
        stockade vm build                              from the installed kernel\n  \
        stockade vm build --kernel-package FILE.deb    from a package (`apt-get download linux-image-…`)\n  \
        stockade run --wall microvm -- uname -a\n  \
        stockade vm list\n  \
        stockade vm remove --saved default             machines boot anew"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Build an image, in place of one of the same name
    Build {
        /// Take the kernel from this package
        #[arg(long, value_name = "FILE.deb", conflicts_with_all = ["kernel", "modules"])]
        kernel_package: Option<PathBuf>,
        /// Take this kernel (`vmlinuz`)
        #[arg(long, value_name = "FILE", requires = "modules")]
        kernel: Option<PathBuf>,
        /// The directory of its modules (`/lib/modules/RELEASE`)
        #[arg(long, value_name = "DIR", requires = "kernel")]
        modules: Option<PathBuf>,
        /// What to call it; `run` uses `default`
        #[arg(long, default_value = "default")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the images that there are, and the machines that were saved of them
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images that no sandbox uses
    Remove {
        #[arg(required = true)]
        names: Vec<String>,
        /// Only the machines that were saved of them: the next run boots again
        #[arg(long)]
        saved: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let store = Store::open(state.as_fd())?;
    match &arguments.command {
        Command::Build {
            kernel_package,
            kernel,
            modules,
            name,
            json,
        } => {
            let source = match (kernel_package, kernel, modules) {
                (Some(package), ..) => Source::Package(package.clone()),
                (None, Some(kernel), Some(modules)) => Source::Files {
                    kernel: kernel.clone(),
                    modules: modules.clone(),
                },
                _ => Source::Installed,
            };
            let image = store.build(&source, name, stockade_agent_image::IMAGE)?;
            match json {
                true => println!("{}", json!({"version": 1, "image": value(&image)})),
                false => println!("{name} is Linux {} from {}", image.release, image.from),
            }
        }
        Command::List { json } => {
            let images = store.list()?;
            if *json {
                let mut values = Vec::new();
                for image in &images {
                    let mut value = value(image);
                    let saved = store.saved_of(&image.name)?;
                    value["saved"] = saved.iter().map(saved_value).collect();
                    values.push(value);
                }
                let images = values;
                println!("{}", json!({"version": 1, "images": images}));
            } else if images.is_empty() {
                println!("There are no machine images; `stockade vm build` makes one.");
            } else {
                for image in &images {
                    println!(
                        "{}  Linux {}  from {}",
                        image.name, image.release, image.from
                    );
                    for kept in store.saved_of(&image.name)? {
                        println!("  saved: {}", described(&kept));
                    }
                }
            }
        }
        Command::Remove { names, saved, json } => {
            for name in names {
                match saved {
                    true => store.remove_saved(&store.saved_of(name)?)?,
                    false => store.remove(name)?,
                }
                if !json {
                    println!("removed: {name}");
                }
            }
            if *json {
                println!("{}", json!({"version": 1, "removed": names}));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn value(image: &Image) -> Value {
    json!({
        "name": image.name, "release": image.release, "from": image.from,
        "modules": image.modules, "built_ms": image.built_ms,
        "kernel_sha256": image.kernel, "initramfs_sha256": image.initramfs,
        "agent_sha256": image.agent,
    })
}

fn saved_value(kept: &Kept) -> Value {
    let saved = kept.saved.as_ref();
    json!({
        "memory_mib": saved.map(|saved| saved.memory),
        "network": saved.map(|saved| saved.network),
        "bytes": saved.map(|saved| saved.bytes),
        "qemu": saved.map(|saved| &saved.qemu),
        "saved_ms": kept.saved_ms,
    })
}

/// `300 MiB without a network, 79 MB on the disk, 5 minutes ago`.
fn described(kept: &Kept) -> String {
    let since = UNIX_EPOCH + Duration::from_millis(kept.saved_ms);
    let seconds = SystemTime::now()
        .duration_since(since)
        .map_or(0, |age| age.as_secs());
    let age = match seconds {
        0..120 => format!("{seconds} seconds"),
        120..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    };
    match &kept.saved {
        Some(saved) => {
            let network = match saved.network {
                true => "with a network",
                false => "without a network",
            };
            let size = saved.bytes.div_ceil(1_000_000);
            format!(
                "{} MiB {network}, {size} MB on the disk, {age} ago",
                saved.memory
            )
        }
        None => format!("unreadable, {age} ago; `stockade gc` removes it"),
    }
}
