//! `stockade image`: root file systems for the container wall.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;

use serde_json::{Value, json};
use stockade_engine::state::{Places, StateDirectory};
use stockade_image::{Image, Limits, Store};

use crate::exit::ExitCode;
use crate::show;

/// Import, list and remove images for the container wall
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Import, list and remove images for the container wall.\n\n\
        An image is imported from an OCI layout on disk or an archive of one, as `skopeo copy`, \
        `podman save --format oci-archive`, `docker save` (25 and newer) and `docker buildx build \
        --output type=oci` write them; nothing is downloaded. Each part is verified by its digest. \
        A run on an image sees its directories, read-only, in place of the host's.",
    after_long_help = "Examples:\n  \
        stockade image import alpine.tar alpine    bring one, and call it alpine\n  \
        stockade run --wall container --image alpine -- cat /etc/alpine-release\n  \
        stockade image list\n  \
        stockade image remove alpine"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Bring an image from an OCI layout or an archive of one
    Import {
        /// The directory or archive
        source: PathBuf,
        /// What to call it
        name: String,
        /// Which of several images in it, by the name it was exported under
        #[arg(long, value_name = "NAME")]
        reference: Option<String>,
        /// Most bytes once unpacked
        #[arg(long, value_name = "BYTES", default_value_t = Limits::default().bytes)]
        max_bytes: u64,
        /// Most files once unpacked
        #[arg(long, value_name = "N", default_value_t = Limits::default().entries)]
        max_files: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the images that there are
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a name away, and the image with its last name
    Remove {
        /// A name, or an id (`sha256:…`) for all its names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let state = StateDirectory::open(&Places::of_caller()?)?;
    let store = Store::open(state.as_fd())?;
    match &arguments.command {
        Command::Import {
            source,
            name,
            reference,
            max_bytes,
            max_files,
            json,
        } => {
            let limits = Limits {
                bytes: *max_bytes,
                entries: *max_files,
            };
            let imported = store.import(source, name, reference.as_deref(), limits, &progress)?;
            let image = &imported.image;
            if *json {
                println!(
                    "{}",
                    json!({"version": 1, "was_there": imported.was_there, "image": value(image)})
                );
            } else if imported.was_there {
                println!("{name} is {}, which was there already", image.id);
            } else {
                println!(
                    "{name} is {}: {} files, {} bytes",
                    image.id, image.entries, image.bytes
                );
            }
        }
        Command::List { json } => {
            let images = store.list()?;
            if *json {
                let images: Vec<_> = images.iter().map(value).collect();
                println!("{}", json!({"version": 1, "images": images}));
            } else if images.is_empty() {
                println!("There are no images; `stockade image import` brings one.");
            } else {
                images.iter().for_each(line);
            }
        }
        Command::Remove { names } => {
            for name in names {
                store.remove(name)?;
                println!("removed: {name}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn line(image: &Image) {
    let names = match image.names.is_empty() {
        true => "(no name)".to_owned(),
        false => image.names.join(", "),
    };
    println!(
        "{names}  {}  {} files, {} bytes, {}",
        image.id, image.entries, image.bytes, image.architecture
    );
}

fn value(image: &Image) -> Value {
    json!({
        "id": image.id, "names": image.names, "imported_ms": image.imported_ms,
        "bytes": image.bytes, "files": image.entries, "architecture": image.architecture,
    })
}

/// Says to a person who waits which layer is unpacked.
fn progress(number: usize, of: usize) {
    if std::io::stderr().is_terminal() {
        show::line(&format!("stockade: unpacking layer {} of {of}", number + 1));
    }
}
