//! Images come and go whole, and are used only as they were built.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::source::tests::package_of;

const AGENT: &[u8] = b"agent";

struct Place {
    directory: tempfile::TempDir,
    store: Store,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let opened = fs::File::open(directory.path()).unwrap();
    let store = Store::open(opened.as_fd()).unwrap();
    Place { directory, store }
}

impl Place {
    fn package(&self, bytes: &[u8]) -> Source {
        let path = self.directory.path().join("kernel.deb");
        fs::write(&path, bytes).unwrap();
        Source::Package(path)
    }

    fn build(&self, release: &str) -> Result<Image, VmError> {
        let package = self.package(&package_of(release));
        self.store.build(&package, "default", AGENT)
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let path = self.directory.path().join("machines").join(directory);
        let entries = fs::read_dir(path).unwrap().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }
}

#[test]
fn an_image_is_built_replaced_listed_and_removed() {
    let place = place();
    let first = place.build("6.1-a").unwrap();
    assert_eq!(
        first.modules,
        [
            "virtio_mmio",
            "virtio_console",
            "9pnet_virtio",
            "9p",
            "virtio_net"
        ]
    );
    let second = place.build("6.2-b").unwrap();
    assert_eq!(place.store.list().unwrap(), std::slice::from_ref(&second));
    let used = place.store.use_image("default", AGENT).unwrap();
    assert_eq!(used.image, second);
    assert!(Path::new(&used.kernel).is_file() && used.initramfs.is_file());
    assert!(matches!(
        place.store.remove("default"),
        Err(VmError::InUse { .. })
    ));
    assert!(matches!(place.build("6.3-c"), Err(VmError::InUse { .. })));
    drop(used);
    place.store.remove("default").unwrap();
    assert!(matches!(
        place.store.remove("default"),
        Err(VmError::Unknown { .. })
    ));
    assert!(place.names("images").is_empty() && place.names("partial").is_empty());
}

#[test]
fn a_refused_package_and_an_interrupted_build_leave_nothing() {
    let place = place();
    for bytes in [&b"MZ"[..], &package_of("6.1-a")[..400]] {
        let source = place.package(bytes);
        assert!(place.store.build(&source, "default", AGENT).is_err());
    }
    for name in ["", "../x", "a/b", ".x", &"x".repeat(65)] {
        let source = place.package(&package_of("6.1-a"));
        let refused = place.store.build(&source, name, AGENT);
        assert!(matches!(refused, Err(VmError::Name { .. })), "{name}");
    }
    assert!(place.names("images").is_empty() && place.names("partial").is_empty());
    let left = place.directory.path().join("machines/partial/left");
    fs::create_dir(&left).unwrap();
    fs::set_permissions(&left, PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(left.join("kernel"), "half").unwrap();
    assert_eq!(place.store.litter().unwrap().len(), 1);
    place.store.clear().unwrap();
    assert!(place.names("partial").is_empty());
}

#[test]
fn what_is_not_as_it_was_built_is_not_used() {
    let place = place();
    place.build("6.1-a").unwrap();
    let refusal = |agent| place.store.use_image("default", agent).unwrap_err();
    assert!(matches!(refusal(b"other"), VmError::OtherVersion { .. }));
    let image = place.directory.path().join("machines/images/default");
    for file in [KERNEL, INITRAMFS] {
        let path = image.join(file);
        let content = fs::read(&path).unwrap();
        fs::write(&path, [&content[..], b"x"].concat()).unwrap();
        let error = refusal(AGENT);
        assert!(matches!(error, VmError::Altered { file: altered, .. } if altered == file));
        fs::write(&path, content).unwrap();
    }
    assert!(place.store.use_image("default", AGENT).is_ok());
    fs::remove_file(image.join(KERNEL)).unwrap();
    assert!(matches!(
        refusal(AGENT),
        VmError::Altered { file: KERNEL, .. }
    ));
}
