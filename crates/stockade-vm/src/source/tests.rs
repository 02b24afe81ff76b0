//! Packages and directories as they are, and as somebody hostile makes them.

use std::fs;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

use super::*;

/// The least that counts as a kernel of a release.
fn image(release: &str) -> Vec<u8> {
    let mut image = vec![0; 0x400];
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
    let text = format!("{release} (builder) #1 SMP\0");
    image[0x300..0x300 + text.len()].copy_from_slice(text.as_bytes());
    image
}

fn module(release: &str) -> Vec<u8> {
    format!("\x7fELF\0depends=\0vermagic={release} SMP \0").into_bytes()
}

const NEEDED: [&str; 5] = [
    "drivers/virtio/virtio_mmio",
    "drivers/char/virtio_console",
    "net/9p/9pnet_virtio",
    "fs/9p/9p",
    "drivers/net/virtio_net",
];

type Files = Vec<(String, Vec<u8>)>;

/// What a kernel package of a release holds.
fn content_of(release: &str) -> Files {
    let modules = format!("./usr/lib/modules/{release}");
    let mut files = vec![
        (format!("./boot/vmlinuz-{release}"), image(release)),
        (
            format!("{modules}/modules.builtin"),
            b"kernel/fs/x.ko\n".to_vec(),
        ),
        (format!("{modules}/kernel/fs/ext4/ext4.ko"), b"no".to_vec()),
    ];
    let path = |name| format!("{modules}/kernel/{name}.ko");
    files.extend(NEEDED.map(|name| (path(name), module(release))));
    files
}

fn tar(files: &Files) -> Vec<u8> {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, content) in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // As they are, also with `..` and `/` in front.
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, &content[..]).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

fn deb(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in parts {
        let size = content.len();
        bytes.extend(
            format!(
                "{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
                0, 0, 0, 100_644
            )
            .bytes(),
        );
        bytes.extend_from_slice(content);
        bytes.extend(vec![b'\n'; size % 2]);
    }
    bytes
}

/// A kernel package of a release, with all that a machine needs.
pub(crate) fn package_of(release: &str) -> Vec<u8> {
    deb(&[("data.tar.gz", &tar(&content_of(release)))])
}

fn read_deb(bytes: &[u8]) -> Result<(Kernel, Vec<Module>), VmError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    read(&Source::Package(file.path().to_owned()))
}

fn reason(bytes: &[u8]) -> String {
    read_deb(bytes).unwrap_err().to_string()
}

#[test]
fn a_package_gives_kernel_and_modules() {
    let data = tar(&content_of("6.1-x"));
    let control = [b"control".as_slice()].concat();
    let parts = [
        ("debian-binary", &b"2.0\n"[..]),
        ("control.tar.gz", &control),
        ("data.tar.gz", &data),
    ];
    let (kernel, modules) = read_deb(&deb(&parts)).unwrap();
    assert_eq!((&*kernel.release, modules.len()), ("6.1-x", 5));
    assert_eq!(kernel.image, image("6.1-x"));
}

#[test]
fn a_hostile_package_is_refused_with_its_reason() {
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = content_of("6.1-x");
        change(&mut files);
        deb(&[("data.tar.gz", &tar(&files))])
    };
    for (bytes, expected) in [
        (b"MZ".to_vec(), "no usable package"),
        (b"!<arch>\nshort".to_vec(), "no usable package"),
        (deb(&[("control.tar.gz", b"x")]), "no usable package"),
        (
            deb(&[("data.tar.gz", b"no archive at all")]),
            "no usable package",
        ),
        (with(&|files| files.truncate(0)), "it holds no kernel"),
        (
            with(&|files| files.push(("boot/vmlinuz-2".into(), image("2")))),
            "two kernels",
        ),
        (with(&|files| files.push(files[5].clone())), "twice"),
        (with(&|files| files[0].1.truncate(0x300)), "is no kernel"),
        (with(&|files| files[0].1[0x300] = b'/'), "is no kernel"),
        (
            with(&|files| files[0].0 = "../boot/vmlinuz-1".into()),
            "it holds no kernel",
        ),
        (
            with(&|files| files[4].1 = module("6.2")),
            "is for another kernel",
        ),
        (
            with(&|files| files[4].1 = b"text".to_vec()),
            "is no ELF file",
        ),
        (
            with(&|files| files[4].1 = vec![0x1f, 0x8b, 1]),
            "cannot be unpacked",
        ),
        (with(&|files| files.truncate(7)), "no module virtio_net"),
    ] {
        let reason = reason(&bytes);
        assert!(reason.contains(expected), "{reason}, not {expected}");
    }
    let whole = with(&|_| {});
    for length in [70, 100, whole.len() / 2] {
        assert!(read_deb(&whole[..length]).is_err(), "{length}");
    }
}

#[test]
fn the_newest_installed_kernel_that_has_everything_is_taken() {
    let place = tempfile::tempdir().unwrap();
    let (boot, modules) = (place.path().join("boot"), place.path().join("modules"));
    fs::create_dir(&boot).unwrap();
    let error = installed(&boot, &modules).unwrap_err().to_string();
    assert!(
        error.contains("holds none") && error.contains("--kernel-package"),
        "{error}"
    );
    for release in ["6.9.1-x", "6.12.1-x", "6.13.0-cloud"] {
        fs::write(boot.join(format!("vmlinuz-{release}")), image(release)).unwrap();
        for (path, content) in content_of(release).into_iter().skip(1) {
            let path = modules.join(path.strip_prefix("./usr/lib/modules/").unwrap());
            if release.ends_with("cloud") && path.ends_with("9p.ko") {
                continue;
            }
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }
    let (kernel, _) = installed(&boot, &modules).unwrap();
    assert_eq!(kernel.release, "6.12.1-x");
    fs::remove_dir_all(modules.join("6.12.1-x")).unwrap();
    fs::remove_dir_all(modules.join("6.9.1-x")).unwrap();
    let error = installed(&boot, &modules).unwrap_err().to_string();
    assert!(error.contains("no module 9p,"), "{error}");
}
