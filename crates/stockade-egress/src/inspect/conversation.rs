//! A conversation of the sandbox, as the inspector sees it.

use std::rc::Rc;

use stockade_policy::network::Destination;
use stockade_policy::network::judge::{
    Denial, GitOperation, GitPermit, RequestHead, RequestPermit,
};
use tokio::net::TcpStream;

use super::authority::Authority;
use super::environment::{Environment, Meter};
use super::tls::Origins;
use crate::context::Conversation;
use crate::credential::Vault;
use crate::git::needles::Needles;
use crate::git::spool::Room;

impl Environment for Conversation {
    fn destination(&self) -> &Destination {
        &self.destination
    }

    fn number(&self) -> u64 {
        self.id
    }

    fn dial(&self) -> impl Future<Output = Result<TcpStream, Denial>> {
        Self::dial(self)
    }

    fn revoked(&self) -> impl Future<Output = ()> {
        Self::revoked(self)
    }

    fn judge_request(&self, head: &RequestHead<'_>, line: &str) -> Result<RequestPermit, Denial> {
        Self::judge_request(self, head, line)
    }

    fn judge_git(&self, operation: &GitOperation<'_>, line: &str) -> Result<GitPermit, Denial> {
        Self::judge_git(self, operation, line)
    }

    fn credential_used(&self, name: &str) {
        Self::credential_used(self, name);
    }

    fn origins(&self) -> &Origins {
        &self.context.inspection.origins
    }

    fn authority(&self) -> Option<&Authority> {
        self.context.inspection.authority.as_ref()
    }

    fn vault(&self) -> Rc<Vault> {
        self.context.inspection.vault()
    }

    fn needles(&self) -> Result<Needles, Denial> {
        self.context.inspection.needles()
    }

    fn room(&self) -> Room {
        self.context.inspection.room.clone()
    }

    fn meter(self: &Rc<Self>) -> Rc<dyn Meter> {
        Rc::clone(self) as Rc<dyn Meter>
    }
}

impl Meter for Conversation {
    fn uploaded(&self, bytes: u64) -> Result<(), Denial> {
        Self::uploaded(self, bytes)
    }

    fn downloaded(&self, bytes: u64) -> Result<(), Denial> {
        Self::downloaded(self, bytes)
    }

    fn scrubbed(&self, count: u64) {
        let scrubbed = &self.counters.scrubbed;
        scrubbed.set(scrubbed.get() + count);
    }

    fn denied(&self, line: Option<&str>, denial: &Denial) {
        Self::denied(self, line, denial);
    }

    fn alert(&self, code: &str, detail: &str) {
        Self::alert(self, code, detail);
    }
}
