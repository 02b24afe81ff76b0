//! Compiles a policy, the facts of this machine and one command into a plan,
//! or says everything that cannot be enforced here and what to do about it.
//!
//! Pure: the same values always give the same plan. The parts are apart:
//! `questions` says what must be known, `machine` and `places` refuse,
//! `view` lays out the file system, `network` opens the way out,
//! `limits` and `environment` fill in the numbers and variables, `steps` puts the actions in order, and
//! `guarantees` says what each promise rests on.

mod environment;
mod findings;
mod guarantees;
mod guarded;
mod guest;
mod image;
mod limits;
mod machine;
pub(crate) mod network;
pub(crate) mod places;
mod questions;
mod seatbelt;
pub(crate) mod secrets;
mod sockets;
mod steps;
mod view;

use crate::facts::Facts;
use crate::path::AbsolutePath;
use crate::plan::{Command, Plan, Unenforceable};
use crate::policy::Policy;

pub use image::{HostPlaces, left_to_image};
pub(crate) use limits::bytes_text;
pub use questions::{
    CredentialQuestions, credential_questions, granted_roots, hide_roots, questions,
};
pub use steps::prelude;

/// What the caller wants to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRequest {
    /// At least one element; bytes, passed on as they are.
    pub argv: Vec<Vec<u8>>,
    /// Must lie in the workspace once its links are resolved.
    pub directory: AbsolutePath,
}

/// Compiles, or returns every reason why not.
///
/// `facts.paths` must answer [`questions`] and [`credential_questions`]; a path that is not answered counts
/// as missing, which is refused where the policy names the path and skipped
/// where a named set only suggests it.
pub fn compile(
    policy: &Policy,
    facts: &Facts,
    command: CommandRequest,
) -> Result<Plan, Vec<Unenforceable>> {
    let mut findings = findings::Findings::new(policy);
    machine::check(policy, facts, &mut findings);
    seatbelt::check(policy, &mut findings);
    let directory = places::check(policy, facts, &command, &mut findings);
    guarded::say_what_is_weakened(policy, &mut findings);
    let limits = limits::resolve(policy, facts, &mut findings);
    let view = view::lay_out(policy, facts, &limits, &mut findings);
    let opened = network::open(policy, facts, &view, &mut findings);
    let environment = environment::inside(policy, facts, &view, opened.as_ref());
    let parts = steps::Parts {
        policy,
        facts,
        view: &view,
        limits: &limits,
        directory: &directory,
        network: opened.as_ref(),
        profile: seatbelt::profile(policy, &view, opened.as_ref(), &mut findings),
    };
    let steps = steps::in_order(&parts);
    let network = opened.map(|opened| opened.plan);
    let guarantees = guarantees::judge(
        policy,
        facts,
        &limits,
        network.as_ref(),
        view.caches.as_ref(),
        &steps,
        &mut findings,
    );
    let notes = findings.into_notes()?;
    let image = image::in_plan(policy, facts);
    Ok(Plan {
        wall: policy.wall.0,
        image,
        form: policy.form,
        command: Command {
            argv: command.argv,
            directory,
            environment,
        },
        workspace: policy.workspace.clone(),
        workspace_mode: policy.workspace_mode.clone(),
        uid: facts.uid,
        gid: facts.gid,
        umask: facts.umask,
        grants: view.grants,
        masks: view.masks,
        guard: policy.guard.clone(),
        guest: guest::in_plan(policy, facts, &limits),
        limits,
        caches: view.caches,
        nested_sandbox: policy.nested_sandbox.is_some(),
        network,
        steps,
        guarantees,
        notes,
    })
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
