//! Git over SSH: what all such connections of one sandbox share, and serving
//! one of them.
//!
//! The protocol is in `git::ssh`. Programs inside trust a key that was made
//! for this sandbox, which git learns by a variable: the view has no file
//! that says who the world's servers are.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use stockade_policy::network::judge::{GitAction, GitOperation};
use stockade_policy::network::rules::NetworkPlan;
use tokio::net::TcpStream;

use crate::context::{Conversation, denial, revoked};
use crate::git::known_hosts::KnownHosts;
use crate::git::ssh::{self, HostKey, Session, Upstream};
use crate::replay::Replay;
use crate::secret::SecretText;
use crate::wire::{GIT_SSH_VARIABLE, SetUp};

/// The sandbox's side and the host's side of git over SSH.
pub struct GitOverSsh {
    host_key: HostKey,
    known_hosts: Arc<KnownHosts>,
    agent: Option<PathBuf>,
    keys: Vec<SecretText>,
}

impl GitOverSsh {
    /// `None` where no rule speaks of SSH. Takes the keys out of the set-up.
    pub fn new(set_up: &mut SetUp) -> io::Result<Option<Self>> {
        if ports(&set_up.network).is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            host_key: HostKey::generate()?,
            known_hosts: Arc::new(KnownHosts::parse(&set_up.known_hosts)),
            agent: set_up
                .ssh_agent
                .as_deref()
                .map(|path| OsStr::from_bytes(path).into()),
            keys: std::mem::take(&mut set_up.ssh_keys),
        }))
    }

    /// The variable to set inside: git's ssh gets the key of this sandbox, for
    /// every host.
    pub fn variable(&self, plan: &NetworkPlan) -> io::Result<(String, String)> {
        let ports = ports(plan);
        let hosts: Vec<(&str, u16)> = ports.iter().map(|&port| ("*", port)).collect();
        let line = self.host_key.known_hosts_line(&hosts)?;
        Ok((GIT_SSH_VARIABLE.to_owned(), ssh_command(line.trim_end())))
    }
}

/// What git's shell runs, with ssh's arguments after it. A file of its own for
/// each call, because root's ssh changes groups before it runs a
/// KnownHostsCommand (ssh_config(5)), and root inside may not.
fn ssh_command(known_hosts_line: &str) -> String {
    format!(
        "stockade_ssh() {{ known=$(mktemp) && echo '{known_hosts_line}' >\"$known\" && \
         ssh -o StrictHostKeyChecking=yes -o UserKnownHostsFile=\"$known\" \
         -o GlobalKnownHostsFile=/dev/null -o UpdateHostKeys=no \"$@\"; \
         code=$?; rm -f \"$known\"; return $code; }}; stockade_ssh"
    )
}

/// Ports on which some rule speaks SSH.
fn ports(plan: &NetworkPlan) -> Vec<u16> {
    let rules = plan.sets.iter().flat_map(|set| &set.rules);
    let mut ports: Vec<u16> = rules
        .filter_map(|rule| rule.git.as_ref()?.ssh_port)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Serves one connection to its end.
pub async fn serve(conversation: Rc<Conversation>, client: TcpStream, early: Vec<u8>) {
    let Some(shared) = &conversation.context.git_over_ssh else {
        let reason = "the rules for git over SSH came after this run began; start a new one";
        return conversation.denied(None, &denial("not-allowed", reason));
    };
    let destination = &conversation.destination;
    let upstream = Upstream {
        host: destination.host().to_string(),
        port: destination.port(),
        known_hosts: shared.known_hosts.clone(),
        agent: shared.agent.clone(),
        keys: shared.keys.clone(),
    };
    let recorded = Cell::new(false);
    let judge = |operation: &GitOperation<'_>| {
        let judged = conversation.judge_git(operation, &line(operation));
        recorded.set(judged.is_err());
        judged
    };
    let needles = match conversation.context.inspection.needles() {
        Ok(needles) => needles,
        Err(denial) => return conversation.denied(None, &denial),
    };
    let session = Session {
        host_key: &shared.host_key,
        upstream: &upstream,
        needles,
        room: conversation.context.inspection.room.clone(),
        judge: &judge,
    };
    let client = Replay::new(early, client);
    let served = tokio::select! {
        served = ssh::serve(client, || conversation.dial(), &session) => served,
        () = conversation.revoked() => return conversation.denied(None, &revoked()),
    };
    let Ok(summary) = served else {
        return;
    };
    if let Some(denial) = summary.denial.filter(|_| !recorded.get()) {
        conversation.denied(summary.repository.as_deref(), &denial);
    }
    // It is over: budgets that are used up now refuse the next one.
    for moved in [
        conversation.uploaded(summary.uploaded_bytes),
        conversation.downloaded(summary.downloaded_bytes),
    ] {
        if let Err(denial) = moved {
            conversation.denied(None, &denial);
        }
    }
}

fn line(operation: &GitOperation<'_>) -> String {
    let action = match operation.action {
        GitAction::Read => "read",
        GitAction::Push { .. } | GitAction::PushAny => "push",
    };
    format!("git {action} {}", operation.repository)
}
