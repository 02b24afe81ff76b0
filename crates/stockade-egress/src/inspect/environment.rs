//! What the inspector needs of the connection that it serves, and nothing
//! more: the rest of the process stays unknown here.

use std::future::Future;
use std::rc::Rc;

use stockade_policy::network::Destination;
use stockade_policy::network::judge::{
    Denial, GitOperation, GitPermit, RequestHead, RequestPermit,
};
use tokio::net::TcpStream;

use super::authority::Authority;
use super::tls::Origins;
use crate::credential::Vault;
use crate::git::needles::Needles;
use crate::git::spool::Room;

/// One permitted connection of the sandbox to one destination.
///
/// A `line` is the method and the canonical path of a request, for the log.
pub trait Environment: Meter + 'static {
    fn destination(&self) -> &Destination;

    /// Number of the connection; a part of the identifiers of its requests.
    fn number(&self) -> u64;

    /// Opens a connection to the destination. Records its own failures.
    fn dial(&self) -> impl Future<Output = Result<TcpStream, Denial>>;

    /// Ends once the rules no longer permit the connection.
    fn revoked(&self) -> impl Future<Output = ()>;

    /// Judges, counts and records a request.
    fn judge_request(&self, head: &RequestHead<'_>, line: &str) -> Result<RequestPermit, Denial>;

    /// Judges and records a git operation.
    fn judge_git(&self, operation: &GitOperation<'_>, line: &str) -> Result<GitPermit, Denial>;

    /// Records that a credential was attached.
    fn credential_used(&self, name: &str);

    /// Origins and whom to believe about them.
    fn origins(&self) -> &Origins;

    /// Who vouches for hosts to programs inside; `None` where nothing is
    /// inspected.
    fn authority(&self) -> Option<&Authority>;

    /// The secrets as they are now; a reload replaces them.
    fn vault(&self) -> Rc<Vault>;

    /// What must be in no pack that is pushed.
    fn needles(&self) -> Result<Needles, Denial>;

    /// Where packs wait until they are judged.
    fn room(&self) -> Room;

    /// Itself as a meter, for bodies that outlive a call.
    fn meter(self: &Rc<Self>) -> Rc<dyn Meter>;
}

/// Counts what moves. Kept apart because bodies have no other use for their
/// connection.
pub trait Meter {
    /// Bytes of bodies and frames that go out. After an error nothing more may.
    fn uploaded(&self, bytes: u64) -> Result<(), Denial>;

    /// Bytes of bodies and frames that come in. After an error nothing more
    /// may.
    fn downloaded(&self, bytes: u64) -> Result<(), Denial>;

    /// Secrets that were taken out of what came in.
    fn scrubbed(&self, count: u64);

    /// Records a denial that was found here.
    fn denied(&self, line: Option<&str>, denial: &Denial);

    /// Records what no honest program does.
    fn alert(&self, code: &str, detail: &str);
}
