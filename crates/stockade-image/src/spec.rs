//! The documents of an image, as far as they are read (image-spec v1.1).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Kinds of documents that an index may point to.
const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
const INDICES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
/// What annotates a manifest with the name that it was exported under.
pub(crate) const REFERENCE: &str = "org.opencontainers.image.ref.name";
const IMAGE_NAME: &str = "io.containerd.image.name";

#[derive(Debug, Deserialize)]
pub(crate) struct Layout {
    #[serde(rename = "imageLayoutVersion")]
    pub version: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Descriptor {
    #[serde(rename = "mediaType", default)]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(default)]
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    pub manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Config {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub config: Option<RuntimeConfig>,
    pub rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RootFs {
    pub diff_ids: Vec<String>,
}

/// What an image says of the commands that run in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeConfig {
    /// `NAME=value`, in the image's order.
    #[serde(rename = "Env", default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    #[serde(rename = "Cmd", default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    #[serde(
        rename = "Entrypoint",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub entrypoint: Option<Vec<String>>,
    #[serde(
        rename = "WorkingDir",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub working_dir: Option<String>,
    #[serde(rename = "User", default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl Descriptor {
    pub(crate) fn is_manifest(&self) -> bool {
        MANIFESTS.contains(&self.media_type.as_str())
    }

    pub(crate) fn is_index(&self) -> bool {
        INDICES.contains(&self.media_type.as_str())
    }

    /// The names that it was exported under.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [REFERENCE, IMAGE_NAME]
            .into_iter()
            .filter_map(|key| self.annotations.get(key).map(String::as_str))
    }
}

/// The architecture of this machine in the words of Go (GOARCH).
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
