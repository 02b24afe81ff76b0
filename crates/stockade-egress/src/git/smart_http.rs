//! What an HTTP request is to git (gitprotocol-http(5)) and to Git LFS.
//!
//! A request whose path ends as one of git's own is either exactly what git
//! sends or refused, so that no spelling of such a path passes as something
//! else. Whether it is permitted is left to the policy, and the body of a
//! push to [`super::push`].

use serde::Deserialize;

use super::packet;
use super::repository;

/// Largest body of an LFS batch request that is read, in bytes.
pub const LFS_BODY_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpOperation<'a> {
    /// Something that git does; the name of the repository is canonical.
    Git { repository: &'a str, kind: Kind },
    /// It looks like git and is not what git sends; the text says why.
    Refused(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `GET …/info/refs?service=…`: references, and what the server can do.
    Advertisement(Service),
    /// `POST …/git-upload-pack` and the like; the body of a push has to pass
    /// [`super::push::PushFilter`].
    Call(Service),
    /// Files of a repository, one by one: a way to read.
    Dumb,
    /// `POST …/info/lfs/objects/batch`: [`lfs_batch`] of the body says
    /// whether it reads or pushes.
    LfsBatch,
    /// Locks of files that LFS keeps: looking at them is reading, all else
    /// is part of pushing.
    LfsLocks(Access),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    UploadPack,
    ReceivePack,
    UploadArchive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Push,
}

impl Service {
    pub fn name(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
            Self::UploadArchive => "git-upload-archive",
        }
    }

    pub fn access(self) -> Access {
        match self {
            Self::UploadPack | Self::UploadArchive => Access::Read,
            Self::ReceivePack => Access::Push,
        }
    }

    /// By its name with the dash.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::UploadPack, Self::ReceivePack, Self::UploadArchive]
            .into_iter()
            .find(|service| service.name() == name)
    }
}

impl Kind {
    /// What has to be permitted; `None` where the body says it.
    pub fn access(self) -> Option<Access> {
        match self {
            Self::Advertisement(service) | Self::Call(service) => Some(service.access()),
            Self::Dumb => Some(Access::Read),
            Self::LfsBatch => None,
            Self::LfsLocks(access) => Some(access),
        }
    }
}

/// `None` when the request is none of git's. `path` is canonical, `query` is
/// decoded.
pub fn recognise<'a>(
    method: &str,
    path: &'a str,
    query: &[(String, String)],
    content_type: Option<&str>,
) -> Option<HttpOperation<'a>> {
    let (prefix, place) = find(path)?;
    let kind = match place {
        Place::Exact(place) => place.kind(method, query, content_type),
        Place::Spelling => Err("a path of git's is spelled in a way that git does not use"),
    };
    let operation = match (kind, repository::canonical(prefix)) {
        (Err(reason), _) => HttpOperation::Refused(reason),
        (Ok(_), None) => HttpOperation::Refused("the repository has a name that is not supported"),
        (Ok(kind), Some(repository)) => HttpOperation::Git { repository, kind },
    };
    Some(operation)
}

/// Whether the body of an LFS batch request reads or pushes; `None` when it
/// says neither.
pub fn lfs_batch(body: &[u8]) -> Option<Access> {
    #[derive(Deserialize)]
    struct Batch {
        // A member that is there twice is an error to serde.
        operation: String,
    }
    if body.len() > LFS_BODY_BYTES_MAX {
        return None;
    }
    let batch: Batch = serde_json::from_slice(body).ok()?;
    match &*batch.operation {
        "download" => Some(Access::Read),
        "upload" => Some(Access::Push),
        _ => None,
    }
}

/// Type and body of an answer with status 200 from which git prints
/// `message`, to a request for an advertisement.
pub fn advertisement_refusal(service: Service, message: &str) -> (String, Vec<u8>) {
    let name = service.name();
    let mut body = Vec::new();
    packet::write_data(&mut body, format!("# service={name}\n").as_bytes());
    packet::write_flush(&mut body);
    packet::write_error(&mut body, message);
    (format!("application/x-{name}-advertisement"), body)
}

/// One of the paths below a repository that mean something to git.
#[derive(Clone, Copy)]
enum Ending {
    InfoRefs,
    Call(Service),
    Dumb,
    LfsBatch,
    LfsLocks,
    LfsLocksChange,
}

enum Place {
    Exact(Ending),
    /// As one of them, but for case or slashes.
    Spelling,
}

const ENDINGS: &[(&str, Ending)] = &[
    ("/info/refs", Ending::InfoRefs),
    ("/git-upload-pack", Ending::Call(Service::UploadPack)),
    ("/git-receive-pack", Ending::Call(Service::ReceivePack)),
    ("/git-upload-archive", Ending::Call(Service::UploadArchive)),
    ("/info/lfs/objects/batch", Ending::LfsBatch),
    ("/info/lfs/locks/verify", Ending::LfsLocksChange),
    ("/info/lfs/locks", Ending::LfsLocks),
    ("/HEAD", Ending::Dumb),
    ("/objects/info/packs", Ending::Dumb),
    ("/objects/info/alternates", Ending::Dumb),
    ("/objects/info/http-alternates", Ending::Dumb),
];

/// The path of the repository, and what is asked below it.
fn find(path: &str) -> Option<(&str, Place)> {
    for (ending, place) in ENDINGS {
        if let Some(prefix) = path.strip_suffix(ending) {
            return Some((prefix, Place::Exact(*place)));
        }
    }
    if let Some((prefix, rest)) = path.split_once("/info/lfs/locks/")
        && rest.ends_with("/unlock")
    {
        return Some((prefix, Place::Exact(Ending::LfsLocksChange)));
    }
    if let Some((prefix, rest)) = path.split_once("/objects/")
        && is_object_file(rest)
    {
        return Some((prefix, Place::Exact(Ending::Dumb)));
    }
    let squeezed: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let plain = format!("/{}", squeezed.join("/")).to_ascii_lowercase();
    // `HEAD` is the name of a file on many sites; git's own is matched above.
    let named = |(ending, place): &(&str, Ending)| {
        !matches!(place, Ending::Dumb) && plain.ends_with(ending)
    };
    ENDINGS.iter().any(named).then_some((path, Place::Spelling))
}

/// `ab/cdef…` or `pack/pack-….pack` and `.idx`.
fn is_object_file(rest: &str) -> bool {
    let is_hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match rest.split_once('/') {
        Some(("pack", file)) => {
            file.starts_with("pack-") && (file.ends_with(".pack") || file.ends_with(".idx"))
        }
        Some((directory, file)) => {
            directory.len() == 2
                && matches!(file.len(), 38 | 62)
                && is_hexadecimal(directory)
                && is_hexadecimal(file)
        }
        None => false,
    }
}

impl Ending {
    fn kind(
        self,
        method: &str,
        query: &[(String, String)],
        content_type: Option<&str>,
    ) -> Result<Kind, &'static str> {
        match (self, method) {
            (Self::InfoRefs, "GET" | "HEAD") => advertisement(query),
            (Self::Dumb, "GET" | "HEAD") => Ok(Kind::Dumb),
            (Self::Call(service), "POST") => {
                let expected = format!("application/x-{}-request", service.name());
                match content_type {
                    Some(actual) if actual.eq_ignore_ascii_case(&expected) => {
                        Ok(Kind::Call(service))
                    }
                    _ => Err("the content type is not the one of the git service"),
                }
            }
            (Self::LfsBatch, "POST") => Ok(Kind::LfsBatch),
            (Self::LfsLocks, "GET") => Ok(Kind::LfsLocks(Access::Read)),
            (Self::LfsLocks | Self::LfsLocksChange, "POST") => Ok(Kind::LfsLocks(Access::Push)),
            _ => Err("git does not use this method here"),
        }
    }
}

fn advertisement(query: &[(String, String)]) -> Result<Kind, &'static str> {
    match query {
        [] => Ok(Kind::Dumb),
        [(name, service)] if name == "service" => match Service::from_name(service) {
            Some(service @ (Service::UploadPack | Service::ReceivePack)) => {
                Ok(Kind::Advertisement(service))
            }
            _ => Err("the git service is not known"),
        },
        _ => Err("git does not send this query"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, target: &str, content_type: Option<&str>, expected: &str) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query: Vec<_> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let seen = match recognise(method, path, &query, content_type) {
            None => "other".to_owned(),
            Some(HttpOperation::Refused(_)) => "refused".to_owned(),
            Some(HttpOperation::Git { repository, kind }) => format!("{repository} {kind:?}"),
        };
        assert_eq!(seen, expected, "{method} {target}");
    }

    #[test]
    fn what_git_asks_is_recognised() {
        let upload = Some("application/x-git-upload-pack-request");
        let receive = Some("application/x-git-receive-pack-request");
        for (method, target, content_type, expected) in [
            (
                "GET",
                "/o/n.git/info/refs?service=git-upload-pack",
                None,
                "o/n Advertisement(UploadPack)",
            ),
            (
                "GET",
                "/o/n/info/refs?service=git-receive-pack",
                None,
                "o/n Advertisement(ReceivePack)",
            ),
            (
                "POST",
                "/g/s/n.git/git-upload-pack",
                upload,
                "g/s/n Call(UploadPack)",
            ),
            (
                "POST",
                "/o/n.git/git-receive-pack",
                receive,
                "o/n Call(ReceivePack)",
            ),
            ("GET", "/o/n.git/info/refs", None, "o/n Dumb"),
            ("GET", "/o/n.git/HEAD", None, "o/n Dumb"),
            ("GET", "/o/n/objects/info/packs", None, "o/n Dumb"),
            (
                "GET",
                "/o/n/objects/ab/01234567890123456789012345678901234567",
                None,
                "o/n Dumb",
            ),
            ("GET", "/o/n/objects/pack/pack-1.idx", None, "o/n Dumb"),
            (
                "POST",
                "/o/n.git/info/lfs/objects/batch",
                None,
                "o/n LfsBatch",
            ),
            ("GET", "/o/n.git/info/lfs/locks", None, "o/n LfsLocks(Read)"),
            (
                "POST",
                "/o/n.git/info/lfs/locks/verify",
                None,
                "o/n LfsLocks(Push)",
            ),
            (
                "POST",
                "/o/n.git/info/lfs/locks/7/unlock",
                None,
                "o/n LfsLocks(Push)",
            ),
            ("GET", "/o/n/blob/main/README.md", None, "other"),
            ("GET", "/api/objects/1", None, "other"),
            ("GET", "/", None, "other"),
        ] {
            check(method, target, content_type, expected);
        }
    }

    #[test]
    fn what_only_looks_like_git_is_refused() {
        let upload = Some("application/x-git-upload-pack-request");
        for (method, target, content_type) in [
            (
                "GET",
                "/o/n/info/refs?service=git-receive-pack&service=git-upload-pack",
                None,
            ),
            ("GET", "/o/n/info/refs?service=git-shell", None),
            ("GET", "/o/n/info/refs?x=y", None),
            ("POST", "/o/n/info/refs?service=git-upload-pack", None),
            ("GET", "/o/n/git-receive-pack", None),
            ("PUT", "/o/n/git-receive-pack", None),
            ("POST", "/o/n/git-receive-pack", None),
            ("POST", "/o/n/git-receive-pack", upload),
            ("POST", "/o/n/git-receive-pack/", None),
            ("POST", "/o/n/Git-Receive-Pack", None),
            ("POST", "/o/n//git-receive-pack//", None),
            ("GET", "/o/n/info/refs/?service=git-receive-pack", None),
            ("POST", "/git-upload-pack", upload),
            ("POST", "/o/%6e/git-upload-pack", upload),
            ("POST", "/o/n.git.git/git-upload-pack", upload),
            (
                "PUT",
                "/o/n/objects/ab/01234567890123456789012345678901234567",
                None,
            ),
        ] {
            check(method, target, content_type, "refused");
        }
    }

    #[test]
    fn the_body_of_a_batch_says_what_it_does() {
        assert_eq!(
            lfs_batch(br#"{"operation":"download","objects":[]}"#),
            Some(Access::Read)
        );
        assert_eq!(lfs_batch(br#"{"operation":"upload"}"#), Some(Access::Push));
        for body in [
            &b"{}"[..],
            b"",
            br#"{"operation":"Upload"}"#,
            br#"{"operation":"download","operation":"upload"}"#,
            br#"{"operation":"download"} {"operation":"upload"}"#,
            br#"{"operation":["download"]}"#,
        ] {
            assert_eq!(lfs_batch(body), None);
        }
    }

    #[test]
    fn git_can_read_a_refusal() {
        let (kind, body) = advertisement_refusal(Service::ReceivePack, "no");
        assert_eq!(kind, "application/x-git-receive-pack-advertisement");
        assert_eq!(body, b"001f# service=git-receive-pack\n0000000bERR no\n");
    }
}
