//! The wall that a policy gets: of those that will do the cheapest that holds
//! everything it demands on this machine, for this command.

use std::path::Path;

use stockade_policy::compile::{self, CommandRequest};
use stockade_policy::facts::{Ability, Facts};
use stockade_policy::guarantee::Guarantee;
use stockade_policy::plan::{Plan, Unenforceable, Wall, WallDemand};
use stockade_vm::store::InUse;

use super::{Refusal, Request, compiled};
use crate::load::{LoadError, Loaded, load};
use crate::notice::Notices;
use crate::probe;

/// The plan behind that wall, which is noted in the policy, and what keeps its
/// machine image in its place. `program` is stockade's own, that of this process
/// when `None`. Where no wall will do the refusal says why for each.
pub(super) fn cheapest(
    loaded: &mut Loaded,
    facts: &mut Facts,
    command: &CommandRequest,
    (program, notices): (Option<&Path>, Notices),
) -> Result<(Plan, Option<InUse>), Refusal> {
    let demand = loaded.policy.wall_demand;
    let mut passed_over = Vec::new();
    for wall in demand.candidates() {
        loaded.policy.wall.0 = wall;
        let machine = look_for_kernel(wall, loaded, facts, (program, notices));
        match compile::compile(&loaded.policy, facts, command.clone()) {
            Err(refused) => passed_over.extend(refused),
            Ok(mut plan) => {
                if !demand.exactly
                    && let Some(refused) = does_not_start(loaded, &plan, program)?
                {
                    passed_over.push(refused);
                    continue;
                }
                plan.notes.extend(notes(&plan, &passed_over));
                return Ok((plan, machine));
            }
        }
    }
    Err(Refusal::Unenforceable(passed_over))
}

/// Finds out whether there is a kernel for the command, where the wall has one,
/// and the runtime, where the policy names one.
fn look_for_kernel(
    wall: Wall,
    loaded: &Loaded,
    facts: &mut Facts,
    (program, notices): (Option<&Path>, Notices),
) -> Option<InUse> {
    if let Some(kind) = loaded.policy.oci_runtime() {
        facts.runtime = probe::runtime::found(kind, Some(&loaded.state));
    }
    match wall {
        Wall::Gvisor => {
            facts.gvisor = probe::gvisor::found(Some(&loaded.state));
            None
        }
        Wall::Microvm => {
            let kvm = |machine: &_| probe::kvm::works(loaded, machine, program, notices);
            let (machine, used) = probe::machine::found(&loaded.state, kvm);
            facts.machine = machine;
            used
        }
        Wall::Process | Wall::Container | Wall::Seatbelt => None,
    }
}

/// Why this one wall would not do for a request, without regard to what the
/// policy says of walls; empty when it would, which is really tried.
pub(crate) fn objections(request: &Request, wall: Wall) -> Result<Vec<Unenforceable>, Refusal> {
    let mut loaded = load(&request.selection)?;
    loaded.policy.wall_demand = WallDemand {
        least: wall,
        exactly: true,
    };
    let program = request.egress_program.as_deref();
    match compiled(request, loaded, Ability::Yes) {
        Ok(planned) => {
            let refused = does_not_start(&planned.loaded, &planned.plan, program)?;
            Ok(refused.into_iter().collect())
        }
        Err(Refusal::Unenforceable(items)) => Ok(items),
        Err(other) => Err(other),
    }
}

fn does_not_start(
    loaded: &Loaded,
    plan: &Plan,
    program: Option<&Path>,
) -> Result<Option<Unenforceable>, Refusal> {
    let starts = probe::start::starts(&loaded.state, plan, program).map_err(LoadError::from)?;
    Ok(match starts {
        Ability::Yes => None,
        Ability::No { reason, remedy } => Some(Unenforceable {
            guarantee: Guarantee::PR1,
            wall: plan.wall.word(),
            reason,
            remedy,
        }),
    })
}

/// One line for each wall that was passed over.
fn notes(plan: &Plan, passed_over: &[Unenforceable]) -> Vec<String> {
    let by_wall = passed_over.chunk_by(|one, other| one.wall == other.wall);
    let lines = by_wall.map(|refused| {
        let reasons: Vec<String> = refused
            .iter()
            .map(|item| format!("{}: {}", item.guarantee, item.reason))
            .collect();
        format!(
            "the wall is {}, because {} cannot keep what is demanded: {}",
            plan.wall.word(),
            refused[0].wall,
            reasons.join("; ")
        )
    });
    lines.collect()
}
