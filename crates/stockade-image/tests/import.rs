//! Images as they are exported, and as somebody hostile would make them.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest as _, Sha256};
use stockade_image::{ImageError, Limits, Store};
use tar::{Builder, EntryType, Header};

/// A directory with a store and layouts.
struct World {
    scratch: tempfile::TempDir,
}

/// One entry of a layer: path, kind, content or link target, mode.
type Entry<'a> = (&'a str, EntryType, &'a str, u32);

const FILE: EntryType = EntryType::Regular;
const DIRECTORY: EntryType = EntryType::Directory;
const SYMLINK: EntryType = EntryType::Symlink;
const LINK: EntryType = EntryType::Link;

impl World {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("state");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        Self { scratch }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn store(&self) -> Store {
        let state: OwnedFd = fs::File::open(self.at("state")).unwrap().into();
        Store::open(state.as_fd()).unwrap()
    }

    fn import(&self, layout: &Path) -> Result<PathBuf, ImageError> {
        self.import_with(layout, Limits::default())
    }

    fn import_with(&self, layout: &Path, limits: Limits) -> Result<PathBuf, ImageError> {
        let store = self.store();
        store.import(layout, "test", None, limits, &|_, _| {})?;
        Ok(store.use_image("test").unwrap().root)
    }

    /// Why the import of these layers is refused. Nothing of it may be left.
    fn refusal(&self, layers: &[Vec<u8>]) -> String {
        self.refusal_of(&self.layout(layers))
    }

    fn refusal_of(&self, layout: &Path) -> String {
        let error = self.import(layout).unwrap_err().to_string();
        self.assert_nothing_left();
        fs::remove_dir_all(layout).unwrap();
        error
    }

    fn assert_nothing_left(&self) {
        for part in ["names", "trees", "partial"] {
            let place = self.at("state/images").join(part);
            let left: Vec<_> = fs::read_dir(place)
                .unwrap()
                .map(|one| one.unwrap())
                .collect();
            assert!(left.is_empty(), "{part}: {left:?}");
        }
    }

    /// Writes a layout of these layers, packed with gzip.
    fn layout(&self, layers: &[Vec<u8>]) -> PathBuf {
        let packed: Vec<_> = layers.iter().map(|layer| gzip(layer)).collect();
        let ids: Vec<_> = layers.iter().map(|layer| digest(layer)).collect();
        self.layout_of(&packed, &ids, "linux")
    }

    fn layout_of(&self, packed: &[Vec<u8>], ids: &[String], os: &str) -> PathBuf {
        let place = self.at("layout");
        fs::create_dir_all(place.join("blobs/sha256")).unwrap();
        fs::write(
            place.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )
        .unwrap();
        let config = json!({
            "architecture": machine(), "os": os,
            "config": { "Env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8"], "Cmd": ["sh"] },
            "rootfs": { "type": "layers", "diff_ids": ids },
        });
        let config = put(
            &place,
            "application/vnd.oci.image.config.v1+json",
            config.to_string().as_bytes(),
        );
        let layers: Vec<_> = packed
            .iter()
            .map(|layer| put(&place, "application/vnd.oci.image.layer.v1.tar+gzip", layer))
            .collect();
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
        let manifest = put(
            &place,
            "application/vnd.oci.image.manifest.v1+json",
            manifest.to_string().as_bytes(),
        );
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(place.join("index.json"), index.to_string()).unwrap();
        place
    }
}

fn machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        _ => "arm64",
    }
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// Writes a blob and returns its descriptor.
fn put(layout: &Path, kind: &str, bytes: &[u8]) -> serde_json::Value {
    let digest = digest(bytes);
    fs::write(layout.join("blobs").join(digest.replace(':', "/")), bytes).unwrap();
    json!({ "mediaType": kind, "digest": digest, "size": bytes.len() })
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, kind, text, mode) in entries {
        let mut header = Header::new_gnu();
        // As somebody would write it who does not use a library that refuses.
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_mtime(1_000_000_000);
        header.set_uid(0);
        header.set_gid(0);
        let is_link = matches!(*kind, SYMLINK | LINK);
        if is_link {
            header.as_old_mut().linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        let content = if is_link { "" } else { text };
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn lower() -> Vec<u8> {
    tar(&[
        ("./", DIRECTORY, "", 0o755),
        ("etc/", DIRECTORY, "", 0o755),
        ("etc/one", FILE, "one", 0o644),
        ("etc/two", FILE, "two", 0o600),
        ("usr/bin/tool", FILE, "#!/bin/sh\n", 0o4755),
        ("bin", SYMLINK, "usr/bin", 0o777),
        ("bin/same", LINK, "usr/bin/tool", 0o755),
        ("closed/", DIRECTORY, "", 0o555),
        ("closed/inner", FILE, "x", 0o444),
        ("opaque/", DIRECTORY, "", 0o755),
        ("opaque/old", FILE, "x", 0o644),
        ("opaque/kept/old", FILE, "x", 0o644),
        ("tmp/", DIRECTORY, "", 0o1777),
    ])
}

#[test]
fn layers_are_put_over_each_other() {
    let world = World::new();
    let upper = tar(&[
        ("etc/.wh.one", FILE, "", 0o644),
        ("etc/two", FILE, "other", 0o640),
        ("opaque/kept/", DIRECTORY, "", 0o700),
        ("opaque/kept/new", FILE, "new", 0o644),
        ("opaque/.wh..wh..opq", FILE, "", 0o644),
        ("closed/", DIRECTORY, "", 0o500),
        ("lib", SYMLINK, "/usr/lib", 0o777),
        ("lib/found", FILE, "through a link", 0o644),
    ]);
    // The directory that the link leads to is in the image.
    let middle = tar(&[("usr/lib/", DIRECTORY, "", 0o755)]);
    let root = world
        .import(&world.layout(&[lower(), middle, upper]))
        .unwrap();
    let read = |name: &str| fs::read_to_string(root.join(name)).ok();
    assert_eq!(read("etc/one"), None);
    assert_eq!(read("etc/two").as_deref(), Some("other"));
    assert_eq!(read("opaque/old"), None);
    assert_eq!(read("opaque/kept/old"), None);
    assert_eq!(read("opaque/kept/new").as_deref(), Some("new"));
    assert_eq!(read("usr/lib/found").as_deref(), Some("through a link"));
    let mode = |name: &str| fs::symlink_metadata(root.join(name)).unwrap().mode() & 0o7777;
    // Nobody is given rights by who owns a file.
    assert_eq!(mode("usr/bin/tool"), 0o755);
    assert_eq!(
        (mode("closed"), mode("closed/inner"), mode("tmp")),
        (0o500, 0o444, 0o1777)
    );
    let inode = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
    assert_eq!(inode("usr/bin/same"), inode("usr/bin/tool"));
    assert_eq!(
        fs::metadata(root.join("etc/two")).unwrap().mtime(),
        1_000_000_000
    );
    assert_eq!(
        fs::read_link(root.join("lib")).unwrap(),
        Path::new("/usr/lib")
    );
}

#[test]
fn an_archive_is_as_good_as_a_directory_and_plain_or_zstd_layers_too() {
    let world = World::new();
    let layer = lower();
    let layout = world.layout_of(std::slice::from_ref(&layer), &[digest(&layer)], "linux");
    let mut archive = Builder::new(Vec::new());
    archive.append_dir_all(".", &layout).unwrap();
    // Exports have files for other tools beside it.
    let mut header = Header::new_gnu();
    header.set_size(2);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    archive
        .append_data(&mut header, "manifest.json", &b"[]"[..])
        .unwrap();
    let archive = archive.into_inner().unwrap();
    for (name, bytes) in [
        ("plain.tar", archive.clone()),
        ("packed.tar.gz", gzip(&archive)),
    ] {
        fs::write(world.at(name), bytes).unwrap();
        let root = world.import(&world.at(name)).unwrap();
        assert_eq!(fs::read_to_string(root.join("etc/one")).unwrap(), "one");
        world.store().remove("test").unwrap();
        world.assert_nothing_left();
    }
    fs::remove_dir_all(&layout).unwrap();
    let packed =
        ruzstd::encoding::compress_to_vec(&layer[..], ruzstd::encoding::CompressionLevel::Fastest);
    let layout = world.layout_of(&[packed], &[digest(&layer)], "linux");
    assert!(world.import(&layout).unwrap().join("etc/two").exists());
}

#[test]
fn names_come_and_go_and_what_is_used_stays() {
    let world = World::new();
    let layout = world.layout(&[lower()]);
    let store = world.store();
    let import = |name: &str| store.import(&layout, name, None, Limits::default(), &|_, _| {});
    assert!(!import("one").unwrap().was_there);
    assert!(import("team/two:1.0").unwrap().was_there);
    let [image] = &store.list().unwrap()[..] else {
        panic!("one image with two names");
    };
    assert_eq!(image.names, ["one", "team/two:1.0"]);
    assert_eq!(
        image.config.env.as_deref().unwrap()[0],
        "PATH=/usr/bin:/bin"
    );
    store.remove("one").unwrap();
    let used = store.use_image("team/two:1.0").unwrap();
    assert!(used.root.join("etc/one").exists());
    assert!(matches!(
        store.remove("team/two:1.0"),
        Err(ImageError::InUse { .. })
    ));
    assert!(matches!(
        store.remove(&image.id),
        Err(ImageError::InUse { .. })
    ));
    drop(used);
    store.remove(&image.id).unwrap();
    world.assert_nothing_left();
    assert!(matches!(
        store.use_image("one"),
        Err(ImageError::Unknown { .. })
    ));
    for name in ["", ".x", "a b", "../x", "x\n", &"x".repeat(129)] {
        assert!(
            matches!(import(name), Err(ImageError::Name { .. })),
            "{name:?}"
        );
    }
}

#[test]
fn names_that_lead_out_are_refused() {
    let world = World::new();
    for (entries, says) in [
        (vec![("/etc/passwd", FILE, "x", 0o644)], "absolute"),
        (vec![("a/../../x", FILE, "x", 0o644)], "leads out"),
        (vec![("..", DIRECTORY, "", 0o755)], "leads out"),
        (vec![("link", SYMLINK, "../../outside", 0o777)], "links out"),
        (
            vec![("a/link", SYMLINK, "x/../../../etc", 0o777)],
            "links out",
        ),
        (vec![("link", LINK, "../outside", 0o644)], "leads out"),
        (vec![("link", LINK, "/etc/passwd", 0o644)], "absolute"),
        (vec![("link", LINK, "missing", 0o644)], "links to no file"),
        (
            vec![("d/", DIRECTORY, "", 0o755), ("link", LINK, "d", 0o644)],
            "links to no file",
        ),
        (vec![(".wh...", FILE, "", 0o644)], "takes nothing away"),
        (vec![(".wh.", FILE, "", 0o644)], "takes nothing away"),
    ] {
        let error = world.refusal(&[tar(&entries)]);
        assert!(error.contains(says), "{entries:?}: {error}");
    }
    assert!(!world.at("outside").exists());
}

/// Links in an image are followed within it, also while it is unpacked.
#[test]
fn a_link_of_the_image_leads_to_nothing_of_the_host() {
    let world = World::new();
    let victim = world.at("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("file"), "mine").unwrap();
    let target = victim.to_str().unwrap();
    let layers = [
        tar(&[("link", SYMLINK, target, 0o777)]),
        tar(&[("link/file", FILE, "attacked", 0o644)]),
    ];
    let error = world.refusal(&layers);
    assert!(error.contains("cannot be made"), "{error}");
    let layers = [
        tar(&[("link", SYMLINK, target, 0o777)]),
        tar(&[("link/.wh.file", FILE, "", 0o644)]),
    ];
    world.refusal(&layers);
    let name = format!("{}/file", target.trim_start_matches('/'));
    world.refusal(&[tar(&[("x", LINK, &name[..name.len().min(100)], 0o644)])]);
    assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "mine");
}

#[test]
fn what_is_no_file_and_what_is_there_twice_is_refused() {
    let world = World::new();
    for (entries, says) in [
        (vec![("dev", EntryType::Char, "", 0o666)], "device node"),
        (vec![("dev", EntryType::Block, "", 0o666)], "device node"),
        (vec![("pipe", EntryType::Fifo, "", 0o666)], "pipe"),
        (vec![("holes", EntryType::GNUSparse, "", 0o666)], "sparse"),
        (
            vec![("odd", EntryType::new(b'Z'), "", 0o666)],
            "unknown kind",
        ),
        (
            vec![("a", FILE, "x", 0o644), ("a", FILE, "y", 0o644)],
            "twice",
        ),
        (
            vec![("a", FILE, "x", 0o644), ("./a", SYMLINK, "b", 0o644)],
            "twice",
        ),
        (
            vec![("a/b", FILE, "x", 0o644), ("a", FILE, "y", 0o644)],
            "twice",
        ),
        (
            vec![("a", FILE, "x", 0o644), (".wh.a", FILE, "", 0o644)],
            "same layer",
        ),
    ] {
        let error = world.refusal(&[tar(&entries)]);
        assert!(error.contains(says), "{entries:?}: {error}");
    }
}

#[test]
fn a_digest_that_is_not_what_it_says_is_refused() {
    let world = World::new();
    let layer = lower();
    // The packed blob.
    let layout = world.layout(std::slice::from_ref(&layer));
    let blob = digest(&gzip(&layer)).replace(':', "/");
    let mut bytes = fs::read(layout.join("blobs").join(&blob)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(layout.join("blobs").join(&blob), &bytes).unwrap();
    let error = world.refusal_of(&layout);
    assert!(error.contains("sha256:"), "{error}");
    // Its length.
    let layout = world.layout(std::slice::from_ref(&layer));
    fs::write(layout.join("blobs").join(&blob), b"short").unwrap();
    assert!(world.refusal_of(&layout).contains("has 5 bytes"));
    // What it unpacks to.
    let layout = world.layout_of(&[gzip(&layer)], &[digest(b"other")], "linux");
    assert!(world.refusal_of(&layout).contains("unpacks to"));
    // Something behind the archive.
    let longer = [&gzip(&layer)[..], b"more"].concat();
    let layout = world.layout_of(&[longer], &[digest(&layer)], "linux");
    world.refusal_of(&layout);
    // A digest that would be a path.
    let layout = world.layout(&[layer]);
    let index = fs::read_to_string(layout.join("index.json")).unwrap();
    let index = index.replace("\"sha256:", "\"sha256:../../../");
    fs::write(layout.join("index.json"), index).unwrap();
    assert!(world.refusal_of(&layout).contains("no SHA-256"));
}

#[test]
fn bombs_are_refused_before_they_fill_anything() {
    let world = World::new();
    let limits = Limits {
        bytes: 1 << 20,
        entries: 100,
    };
    let refused = |layout: &Path| {
        let error = world.import_with(layout, limits).unwrap_err();
        world.assert_nothing_left();
        fs::remove_dir_all(layout).unwrap();
        assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
    };
    let zeros = "\0".repeat(2 << 20);
    refused(&world.layout(&[tar(&[("zeros", FILE, &zeros, 0o644)])]));
    // After the end of the archive.
    let mut long = tar(&[("small", FILE, "x", 0o644)]);
    long.extend_from_slice(zeros.as_bytes());
    refused(&world.layout(&[long]));
    // Many small ones, over several layers.
    let names: Vec<String> = (0..60).map(|number| format!("f{number}")).collect();
    let many: Vec<Entry<'_>> = names
        .iter()
        .map(|name| (&name[..], FILE, "", 0o644))
        .collect();
    refused(&world.layout(&[tar(&many), tar(&many)]));
    // A size that is only said.
    let mut header = Header::new_gnu();
    header.set_path("huge").unwrap();
    header.set_size(1 << 40);
    header.set_cksum();
    refused(&world.layout(&[header.as_bytes().to_vec()]));
    // A name before an entry that would be held in memory.
    let mut header = Header::new_gnu();
    header.set_path("././@LongLink").unwrap();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(3 << 20);
    header.set_cksum();
    let mut name = header.as_bytes().to_vec();
    name.extend_from_slice(&[b'x'; 3 << 20]);
    refused(&world.layout(&[name.clone()]));
    let error = world.refusal(&[name]);
    assert!(error.contains("over a megabyte"), "{error}");
}

#[test]
fn what_is_no_image_for_this_machine_is_refused() {
    let world = World::new();
    let layer = lower();
    let layout = world.layout_of(&[gzip(&layer)], &[digest(&layer)], "windows");
    let error = world.refusal_of(&layout);
    assert!(error.contains("windows/"), "{error}");
    let layout = world.layout(std::slice::from_ref(&layer));
    fs::remove_file(layout.join("oci-layout")).unwrap();
    assert!(world.refusal_of(&layout).contains("no whole OCI layout"));
    let layout = world.layout(std::slice::from_ref(&layer));
    fs::write(layout.join("index.json"), "{").unwrap();
    assert!(world.refusal_of(&layout).contains("cannot be read"));
    // A blob that is a link to a file of the host.
    let layout = world.layout(std::slice::from_ref(&layer));
    let blob = layout
        .join("blobs")
        .join(digest(&gzip(&layer)).replace(':', "/"));
    fs::rename(&blob, world.at("elsewhere")).unwrap();
    std::os::unix::fs::symlink(world.at("elsewhere"), &blob).unwrap();
    assert!(world.refusal_of(&layout).contains("through a link"));
    let mut truncated = gzip(&layer);
    truncated.truncate(truncated.len() / 2);
    let layout = world.layout_of(&[truncated], &[digest(&layer)], "linux");
    world.refusal_of(&layout);
}

#[test]
fn an_interrupted_import_is_cleared_away() {
    let world = World::new();
    let layout = world.layout(&[lower()]);
    drop(world.store());
    let left = world.at("state/images/partial/0123456789abcdef/root/deep");
    fs::create_dir_all(&left).unwrap();
    for place in [
        &left,
        left.parent().unwrap(),
        left.ancestors().nth(2).unwrap(),
    ] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o700)).unwrap();
    }
    world.import(&layout).unwrap();
    assert!(!left.exists());
    let mut text = String::new();
    fs::File::open(world.at("state/images/names/test"))
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.starts_with("sha256:"));
}
