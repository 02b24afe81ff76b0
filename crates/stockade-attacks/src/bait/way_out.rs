//! The policy of a sandbox with a way out, and the secret that is bound in it.
//!
//! All names are below example.com, where nobody has any (RFC 2606).

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// A host that may be reached.
pub const LISTED: &str = "stockade-listed.example.com";
/// One of which `GET` of paths below `/open/` is permitted, in the open.
pub const PLAIN: &str = "stockade-plain.example.com";
/// One with a credential.
pub const BOUND: &str = "stockade-bound.example.com";
/// The variable with what stands for the credential inside.
pub const PLACEHOLDER: &str = "STOCKADE_BAIT_PLACEHOLDER";

/// Writes the policy where a front looks below `XDG_CONFIG_HOME`, if it is not there.
pub(super) fn lay(place: &Path, token: &str) -> io::Result<()> {
    let directory = place.join("stockade");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)?;
    let secret = place.join("token");
    write(&secret, token)?;
    write(&directory.join("stockade.toml"), &policy(&secret))
}

fn policy(secret: &Path) -> String {
    let secret = secret.display().to_string();
    format!(
        "version = 1\n\
         [network]\n\
         allow = [\"{LISTED}\", \"{BOUND}\"]\n\
         [[network.rule]]\n\
         host = \"{PLAIN}\"\n\
         ports = [80]\n\
         methods = [\"GET\"]\n\
         paths = [\"/open/**\"]\n\
         [[credential]]\n\
         name = \"bait\"\n\
         host = \"{BOUND}\"\n\
         from = {{ file = {secret:?} }}\n\
         replace = {{ header = \"Authorization\", format = \"Bearer {{}}\" }}\n\
         variable = \"{PLACEHOLDER}\"\n"
    )
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}
