//! The command line that a git client sends over SSH.
//!
//! The server gives it to a shell, so only what git itself writes is read, and
//! it is written anew before it is sent on.

use crate::git::repository;
use crate::git::smart_http::Service;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub service: Service,
    /// Canonical.
    pub repository: String,
    /// As the client wrote it.
    path: String,
}

impl Command {
    /// `None` when it is anything but one of git's services for one
    /// repository.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = str::from_utf8(line).ok()?;
        let (service, path) = match line.strip_prefix("git ") {
            Some(rest) => {
                let (name, path) = rest.split_once(' ')?;
                (Service::from_name(&format!("git-{name}"))?, path)
            }
            None => {
                let (name, path) = line.split_once(' ')?;
                (Service::from_name(name)?, path)
            }
        };
        let path = match path.strip_prefix('\'') {
            Some(rest) => rest.strip_suffix('\'')?,
            None => path,
        };
        let repository = repository::canonical(path)?.to_owned();
        Some(Self {
            service,
            repository,
            path: path.to_owned(),
        })
    }

    /// As the server's shell shall see it.
    pub fn line(&self) -> String {
        // No name of a repository has a quote.
        format!("{} '{}'", self.service.name(), self.path)
    }
}

/// Whether a value of `GIT_PROTOCOL` is one that git sends.
pub fn is_protocol(value: &str) -> bool {
    matches!(value, "version=0" | "version=1" | "version=2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_sends_is_read_and_written_anew() {
        for (line, repository, written) in [
            (
                "git-upload-pack 'o/n.git'",
                "o/n",
                "git-upload-pack 'o/n.git'",
            ),
            ("git upload-pack '/o/n'", "o/n", "git-upload-pack '/o/n'"),
            ("git-receive-pack o/n", "o/n", "git-receive-pack 'o/n'"),
            (
                "git-upload-archive '/o/n'",
                "o/n",
                "git-upload-archive '/o/n'",
            ),
        ] {
            let command = Command::parse(line.as_bytes()).unwrap();
            assert_eq!(command.repository, repository);
            assert_eq!(command.line(), written);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for line in [
            "",
            "sh",
            "git-upload-pack",
            "git-upload-pack ",
            "git-upload-pack ''",
            "git-upload-pack 'o/n' 'x'",
            "git-upload-pack 'o/n'; sh",
            "git-upload-pack 'o/n",
            "git-upload-pack o/n'",
            "git-upload-pack 'o/'n",
            "git-upload-pack $(id)",
            "git-upload-pack 'o/n'\n",
            "git-upload-pack --strict 'o/n'",
            "git-upload-pack '--x'",
            "git-upload-pack '~u/n'",
            "git-upload-pack '../n'",
            "git-shell 'o/n'",
            "git -c x upload-pack 'o/n'",
            "GIT_TRACE=1 git-upload-pack 'o/n'",
        ] {
            assert_eq!(Command::parse(line.as_bytes()), None, "{line}");
        }
    }
}
