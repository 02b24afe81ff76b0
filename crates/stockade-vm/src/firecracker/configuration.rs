//! What a machine has: exactly this. No network card, no device to and from the
//! host but vsock and the serial port, of which we read and write nothing.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// One machine.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// An ELF file that begins as Linux does.
    pub kernel: PathBuf,
    /// What the kernel is told.
    pub arguments: String,
    /// MiB.
    pub memory: u32,
    pub processors: u8,
    pub drives: Vec<Drive>,
}

/// A disk of the machine's that it can only read.
#[derive(Clone, Debug)]
pub struct Drive {
    /// Letters, digits and `_`; at most 32.
    pub name: String,
    /// What is on it.
    pub file: PathBuf,
    /// Whether the kernel finds its root here.
    pub is_root: bool,
    pub limit: Option<RateLimiter>,
}

/// How much may pass: two token buckets, which count apart.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RateLimiter {
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<TokenBucket>,
    /// In operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<TokenBucket>,
}

/// A full bucket is `size` tokens; an empty one is full after `refill_time`
/// milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TokenBucket {
    pub size: u64,
    pub refill_time: u64,
    /// Tokens that are there in the beginning and are not refilled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_time_burst: Option<u64>,
}

/// Names in the directory that is Firecracker's root.
pub(crate) const KERNEL: &str = "kernel";
pub(crate) const CONFIGURATION: &str = "configuration";
pub(crate) const API: &str = "api";
pub(crate) const VSOCK: &str = "vsock";
/// The machine's address; it can reach nobody but the host, so all have the same.
const ADDRESS: u32 = 3;

impl Drive {
    /// Its name in that directory, and in a snapshot.
    pub(crate) fn place(&self) -> String {
        format!("drive-{}", self.name)
    }

    pub(crate) fn has_good_name(&self) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !self.name.is_empty() && self.name.len() <= 32 && self.name.bytes().all(plain)
    }
}

impl Configuration {
    /// Files that Firecracker opens, by their names there.
    pub(crate) fn files(&self) -> impl Iterator<Item = (String, &Path)> {
        let drives = self.drives.iter().map(|one| (one.place(), &*one.file));
        [(KERNEL.to_owned(), &*self.kernel)]
            .into_iter()
            .chain(drives)
    }

    /// Firecracker's file of configuration.
    pub(crate) fn document(&self) -> impl Serialize + use<> {
        Document {
            boot_source: BootSource {
                kernel_image_path: KERNEL,
                boot_args: self.arguments.clone(),
            },
            drives: self.drives.iter().map(DriveDocument::of).collect(),
            machine_config: MachineConfig {
                vcpu_count: self.processors,
                mem_size_mib: self.memory,
                smt: false,
                track_dirty_pages: true,
            },
            vsock: Vsock {
                guest_cid: ADDRESS,
                uds_path: VSOCK,
            },
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    boot_source: BootSource,
    drives: Vec<DriveDocument>,
    machine_config: MachineConfig,
    vsock: Vsock,
}

#[derive(Serialize)]
struct BootSource {
    kernel_image_path: &'static str,
    boot_args: String,
}

#[derive(Serialize)]
struct DriveDocument {
    drive_id: String,
    path_on_host: String,
    is_root_device: bool,
    is_read_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_limiter: Option<RateLimiter>,
}

impl DriveDocument {
    fn of(drive: &Drive) -> Self {
        Self {
            drive_id: drive.name.clone(),
            path_on_host: drive.place(),
            is_root_device: drive.is_root,
            is_read_only: true,
            rate_limiter: drive.limit,
        }
    }
}

#[derive(Serialize)]
struct MachineConfig {
    vcpu_count: u8,
    mem_size_mib: u32,
    smt: bool,
    /// What a snapshot of the difference is made from.
    track_dirty_pages: bool,
}

#[derive(Serialize)]
struct Vsock {
    guest_cid: u32,
    uds_path: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_machine_has_what_is_named_and_nothing_else() {
        let machine = Configuration {
            kernel: "/a/kernel".into(),
            arguments: "quiet".into(),
            memory: 64,
            processors: 2,
            drives: vec![Drive {
                name: "root".into(),
                file: "/b/image".into(),
                is_root: true,
                limit: Some(RateLimiter {
                    bandwidth: Some(TokenBucket {
                        size: 1000,
                        refill_time: 100,
                        one_time_burst: None,
                    }),
                    ops: None,
                }),
            }],
        };
        let document = serde_json::to_value(machine.document()).unwrap();
        let expected = json!({
            "boot-source": { "kernel_image_path": "kernel", "boot_args": "quiet" },
            "drives": [{
                "drive_id": "root", "path_on_host": "drive-root", "is_root_device": true,
                "is_read_only": true,
                "rate_limiter": { "bandwidth": { "size": 1000, "refill_time": 100 } },
            }],
            "machine-config": {
                "vcpu_count": 2, "mem_size_mib": 64, "smt": false, "track_dirty_pages": true,
            },
            "vsock": { "guest_cid": 3, "uds_path": "vsock" },
        });
        assert_eq!(document, expected);
        let files: Vec<_> = machine.files().map(|(name, _)| name).collect();
        assert_eq!(files, ["kernel", "drive-root"]);
    }

    #[test]
    fn a_name_never_leads_elsewhere() {
        let named = |name: &str| Drive {
            name: name.into(),
            file: PathBuf::new(),
            is_root: false,
            limit: None,
        };
        assert!(named("a_1").has_good_name());
        for name in ["", "../a", "a/b", "a-b", &"a".repeat(33)] {
            assert!(!named(name).has_good_name(), "{name}");
        }
    }
}
