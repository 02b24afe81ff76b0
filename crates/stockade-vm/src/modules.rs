//! Which modules a machine needs, and in which order they are loaded.

use std::collections::BTreeSet;

use crate::source::Kernel;
use crate::unpack::whole;
use crate::{VmError, refused};

/// What the agent needs of a kernel, as modules or built in: the bus, the
/// channel to the host, the exported view, the network card.
const NEEDED: [&str; 5] = [
    "virtio_mmio",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "virtio_net",
];

/// What those need in one kernel or another.
const HELPERS: [&str; 7] = [
    "9pnet",
    "failover",
    "fscache",
    "net_failover",
    "netfs",
    "virtio",
    "virtio_ring",
];

/// Most bytes of a module once unpacked.
const MODULE_BYTES_MAX: u64 = 32 << 20;

/// A module that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// The ELF file.
    pub content: Vec<u8>,
}

/// The name of a module by that of its file: what is before `.ko` and a
/// suffix for how it is packed, with `_` for `-` as the kernel has it. `None`
/// for any other file, and for modules that no machine needs.
pub fn wanted(file_name: &str) -> Option<String> {
    let (name, packed) = file_name.split_once(".ko")?;
    let name = name.replace('-', "_");
    let known = NEEDED.iter().chain(&HELPERS).any(|one| *one == name);
    let suffix = ["", ".gz", ".xz", ".zst"].contains(&packed);
    (known && suffix).then_some(name)
}

/// The modules that a machine with this kernel loads, in order. What a module
/// needs is read from itself, so no index has to be believed.
pub fn in_order(kernel: &Kernel) -> Result<Vec<Module>, VmError> {
    let mut order = Order {
        kernel,
        built_in: built_in(&kernel.built_in),
        done: BTreeSet::new(),
        modules: Vec::new(),
    };
    for name in NEEDED {
        order.add(name)?;
    }
    Ok(order.modules)
}

/// Names in a `modules.builtin`: paths, one a line.
fn built_in(text: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let file = line.rsplit('/').next()?;
        Some(file.strip_suffix(".ko")?.replace('-', "_"))
    };
    text.lines().filter_map(name).collect()
}

struct Order<'a> {
    kernel: &'a Kernel,
    built_in: BTreeSet<String>,
    /// Those that are being added or were.
    done: BTreeSet<String>,
    modules: Vec<Module>,
}

impl Order<'_> {
    /// Adds a module behind all that it needs. A circle ends where it began:
    /// the kernel then refuses to load it.
    fn add(&mut self, name: &str) -> Result<(), VmError> {
        if self.built_in.contains(name) || !self.done.insert(name.to_owned()) {
            return Ok(());
        }
        let release = &self.kernel.release;
        let place = || format!("kernel {release}");
        let Some(packed) = self.kernel.modules.get(name) else {
            let reason =
                format!("has no module {name}, which a machine needs; use a generic kernel");
            return Err(refused(place(), reason));
        };
        let content = whole(packed, MODULE_BYTES_MAX).map_err(|error| {
            refused(
                place(),
                format!("module {name} cannot be unpacked: {error}"),
            )
        })?;
        if !content.starts_with(b"\x7fELF") {
            return Err(refused(place(), format!("module {name} is no ELF file")));
        }
        let built_for = information(&content, b"vermagic=").unwrap_or_default();
        if built_for.split(' ').next() != Some(release) {
            let reason = format!("module {name} is for another kernel: {built_for:?}");
            return Err(refused(place(), reason));
        }
        let needs = information(&content, b"depends=").unwrap_or_default();
        for needed in needs.split(',').filter(|needed| !needed.is_empty()) {
            self.add(&needed.replace('-', "_"))?;
        }
        let name = name.to_owned();
        self.modules.push(Module { name, content });
        Ok(())
    }
}

/// A value of a module's information: strings `KEY=VALUE` with a NUL behind
/// each (Linux, include/linux/moduleparam.h).
fn information(module: &[u8], key: &[u8]) -> Option<String> {
    let is_key = |at: &usize| {
        module[*at..].starts_with(key) && at.checked_sub(1).is_none_or(|before| module[before] == 0)
    };
    let first = key[0];
    let starts = module
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == first);
    let start = starts.map(|(at, _)| at).find(is_key)? + key.len();
    let length = module[start..].iter().position(|&byte| byte == 0)?;
    let value = str::from_utf8(&module[start..start + length]).ok()?;
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module that says what it needs, for release 6.1-x.
    fn module(needs: &str) -> Vec<u8> {
        let text = format!("\x7fELF\0undepends=no\0depends={needs}\0vermagic=6.1-x SMP \0rest");
        text.into_bytes()
    }

    fn kernel(modules: &[(&str, &str)]) -> Kernel {
        let one = |(name, needs): &(&str, &str)| ((*name).to_owned(), module(needs));
        Kernel {
            image: Vec::new(),
            release: "6.1-x".to_owned(),
            modules: modules.iter().map(one).collect(),
            built_in: "kernel/drivers/char/virtio-console.ko\nkernel/x/virtio.ko\n".to_owned(),
            from: String::new(),
        }
    }

    const ALL: [(&str, &str); 5] = [
        ("virtio_mmio", "virtio"),
        ("9pnet_virtio", "9pnet"),
        ("9p", "9pnet,netfs"),
        ("9pnet", ""),
        ("netfs", ""),
    ];

    fn names(kernel: &Kernel) -> Vec<String> {
        let modules = in_order(kernel).unwrap();
        modules.into_iter().map(|module| module.name).collect()
    }

    #[test]
    fn what_is_needed_comes_first_and_what_is_built_in_not_at_all() {
        let mut all = ALL.to_vec();
        all.push(("virtio_net", "net-failover"));
        all.push(("net_failover", ""));
        let order = [
            "virtio_mmio",
            "9pnet",
            "9pnet_virtio",
            "netfs",
            "9p",
            "net_failover",
            "virtio_net",
        ];
        assert_eq!(names(&kernel(&all)), order);
    }

    #[test]
    fn a_missing_or_foreign_module_is_named() {
        let error = in_order(&kernel(&ALL)).unwrap_err().to_string();
        assert!(error.contains("no module virtio_net"), "{error}");
        let mut other = kernel(&ALL);
        other.release = "6.1-y".to_owned();
        let error = in_order(&other).unwrap_err().to_string();
        assert!(error.contains("another kernel"), "{error}");
        let mut circle = ALL.to_vec();
        circle.extend([("virtio_net", "failover"), ("failover", "virtio_net")]);
        assert_eq!(names(&kernel(&circle)).len(), 7);
    }

    #[test]
    fn files_are_known_by_name() {
        assert_eq!(wanted("virtio-net.ko.zst").as_deref(), Some("virtio_net"));
        assert_eq!(wanted("9p.ko").as_deref(), Some("9p"));
        assert_eq!(wanted("9p.ko.exe"), None);
        assert_eq!(wanted("ext4.ko"), None);
    }
}
