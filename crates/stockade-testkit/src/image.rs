//! A small image for the container wall, made of one static program.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::{Finished, World};

/// A static program that is a whole system (Debian's busybox-static).
const BUSYBOX: &str = "/usr/bin/busybox";
const DIRECTORIES: [&str; 12] = [
    "dev", "etc", "home", "opt", "proc", "root", "run", "sys", "tmp", "usr", "usr/bin", "var",
];
const PROGRAMS: [&str; 20] = [
    "cat", "echo", "env", "find", "grep", "head", "id", "ls", "mkdir", "mv", "nslookup", "ps",
    "rm", "sh", "sleep", "stat", "touch", "true", "wget", "wc",
];

/// Whether the program is there that images are made of.
pub fn can_be_made() -> bool {
    Path::new(BUSYBOX).exists()
}

/// Writes the layout of an image to `layout` in the world's home, with more
/// files in it: path and content, or path and `-> target`.
pub fn layout(world: &World, more: &[(&str, &str)]) -> PathBuf {
    let place = world.home.join("layout");
    fs::create_dir_all(place.join("blobs/sha256")).expect("a layout can be made");
    let layer = layer(more);
    let config = json!({
        "architecture": match std::env::consts::ARCH { "x86_64" => "amd64", _ => "arm64" },
        "os": "linux",
        "config": { "Env": ["PATH=/usr/bin", "TINY=yes"] },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    });
    let put = |kind: &str, bytes: &[u8]| {
        let digest = digest(bytes);
        let file = place.join("blobs").join(digest.replace(':', "/"));
        fs::write(file, bytes).expect("a blob can be written");
        json!({ "mediaType": kind, "digest": digest, "size": bytes.len() })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "config": put("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes()),
        "layers": [put("application/vnd.oci.image.layer.v1.tar", &layer)],
    });
    let manifest = put(
        "application/vnd.oci.image.manifest.v1+json",
        manifest.to_string().as_bytes(),
    );
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(place.join("index.json"), index.to_string()).expect("an index can be written");
    fs::write(
        place.join("oci-layout"),
        r#"{"imageLayoutVersion":"1.0.0"}"#,
    )
    .expect("a layout can be written");
    place
}

/// Imports such an image under the name `tiny`.
pub fn import(world: &World, more: &[(&str, &str)]) {
    let layout = layout(world, more);
    let mut import = world.stockade();
    import.args(["image", "import"]).arg(layout).arg("tiny");
    Finished::of(import.output().expect("stockade starts")).expect_code(0);
}

fn layer(more: &[(&str, &str)]) -> Vec<u8> {
    let mut layer = Builder::new(Vec::new());
    let mut add = |path: &str, kind: EntryType, target: &str, content: &[u8], mode: u32| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        let added = match kind {
            EntryType::Symlink => layer.append_link(&mut header, path, target),
            _ => layer.append_data(&mut header, path, content),
        };
        added.expect("an entry can be added");
    };
    for directory in DIRECTORIES {
        add(directory, EntryType::Directory, "", b"", 0o755);
    }
    let program = fs::read(BUSYBOX).expect("busybox-static is installed");
    add("usr/bin/busybox", EntryType::Regular, "", &program, 0o755);
    add("bin", EntryType::Symlink, "usr/bin", b"", 0o777);
    for name in PROGRAMS {
        let path = format!("usr/bin/{name}");
        add(&path, EntryType::Symlink, "busybox", b"", 0o777);
    }
    add(
        "etc/os-release",
        EntryType::Regular,
        "",
        b"NAME=tiny\n",
        0o644,
    );
    add(
        "etc/passwd",
        EntryType::Regular,
        "",
        b"root:x:0:0::/root:/bin/sh\n",
        0o644,
    );
    for (path, text) in more {
        match text.strip_prefix("-> ") {
            Some(target) => add(path, EntryType::Symlink, target, b"", 0o777),
            None => add(path, EntryType::Regular, "", text.as_bytes(), 0o644),
        }
    }
    layer.into_inner().expect("an archive can be finished")
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
