//! Opens the way out of a run: from a plan with a network part to an egress
//! process that was tested. Everything that fails here is a refusal.

use stockade_egress::wire::SetUp;
use stockade_policy::network::rules::{Mode, NetworkPlan, NetworkRule};
use stockade_policy::plan::{Action, Plan};
use stockade_walls::process::{AtGate, Evidence};

use super::{Planned, Refusal, Request, plan};
use crate::events::RunId;
use crate::load::LoadError;
use crate::log::Log;
use crate::secrets;
use crate::state::Places;
use crate::way_out::{Caller, Extras, Reload, Starting, Terms, WayOut, WayOutError, set_up};

/// An egress process on its way to the gate.
pub(crate) struct Opening<'a> {
    plan: &'a Plan,
    network: &'a NetworkPlan,
    starting: Starting,
    extras: Option<Extras>,
    /// Ports inside whose port outside the kernel chose.
    published: Vec<(u16, u16)>,
    fail_at: Option<usize>,
}

impl<'a> Opening<'a> {
    /// Hands the set-up to an egress process, which is started unless it was
    /// early; `None` for a plan without a network.
    pub(crate) fn begin(
        request: &Request,
        planned: &'a Planned,
        early: Option<Starting>,
        run: &RunId,
        fail_at: Option<usize>,
    ) -> Result<Option<Self>, Refusal> {
        let plan = &planned.plan;
        let Some(network) = &plan.network else {
            return Ok(None);
        };
        let refused = |error| refused(plan, &Action::StartEgress, error);
        if fails(plan, fail_at, &Action::StartEgress) {
            return Err(refused(made_to_fail()));
        }
        let starting = match early {
            Some(starting) => starting,
            None => Starting::spawn(request.egress_program.as_deref()).map_err(refused)?,
        };
        starting
            .set_up(&set_up_of(planned, network, run)?)
            .map_err(refused)?;
        let mut opening = Self {
            plan,
            network,
            starting,
            extras: None,
            published: Vec::new(),
            fail_at,
        };
        if needs_extras(network) {
            opening.await_ready()?;
        }
        Ok(Some(opening))
    }

    /// Waits until the set-up is understood, if nobody did yet.
    pub(crate) fn await_ready(&mut self) -> Result<(), Refusal> {
        if self.extras.is_none() {
            let ready = self.starting.ready(self.network);
            let refused = |error| refused(self.plan, &Action::StartEgress, error);
            self.extras = Some(ready.map_err(refused)?);
        }
        Ok(())
    }

    /// What goes into the sandbox beside the plan.
    pub(crate) fn extras(&self) -> Extras {
        self.extras.clone().unwrap_or_default()
    }

    /// Passes the listeners on, and adds what the self-test saw to the
    /// evidence.
    pub(crate) fn test(&mut self, gate: &mut AtGate) -> Result<(), Refusal> {
        let refused = |error| refused(self.plan, &Action::TestEgress, error);
        if fails(self.plan, self.fail_at, &Action::TestEgress) {
            return Err(refused(made_to_fail()));
        }
        let listeners = std::mem::take(&mut gate.listeners);
        let tested = self
            .starting
            .listen(self.network, listeners)
            .map_err(refused)?;
        for (inside, outside) in &tested.published {
            if self
                .network
                .publish
                .iter()
                .any(|one| one.port == *inside && one.host_port == 0)
            {
                self.published.push((*inside, *outside));
            }
        }
        let process = self.starting.process();
        let mut show = |action, detail| {
            gate.evidence
                .extend(position(self.plan, action).map(|step| Evidence { step, detail }));
        };
        show(
            &Action::StartEgress,
            format!("process {process} took the plan's rules and nothing else of the caller's"),
        );
        show(&Action::TestEgress, tested.evidence);
        Ok(())
    }

    /// The way out of a sandbox whose command is about to run.
    pub(crate) fn open(
        self,
        request: &Request,
        planned: &Planned,
        run: &RunId,
        log: &Log,
        init: u32,
        on_terminal: bool,
    ) -> Result<WayOut, Refusal> {
        for (inside, outside) in &self.published {
            request.notices.say(&format!(
                "stockade: port {inside} inside is 127.0.0.1:{outside} outside"
            ));
        }
        let loaded = &planned.loaded;
        let places = Places::of_caller().map_err(LoadError::from)?;
        let terms = Terms {
            run: run.clone(),
            log: log.clone(),
            state: loaded.state.clone(),
            places,
            init,
            on_terminal,
            notices: request.notices,
            reload: Box::new(Again {
                request: request.clone(),
                run: run.clone(),
                plan: planned.plan.clone(),
            }),
        };
        WayOut::open(self.starting, terms).map_err(|error| Refusal::Load(LoadError::from(error)))
    }
}

/// What the egress process of this run is given.
fn set_up_of(planned: &Planned, network: &NetworkPlan, run: &RunId) -> Result<SetUp, Refusal> {
    let places = Places::of_caller().map_err(LoadError::from)?;
    let secrets = secrets::read(&network.credentials, &planned.plan.workspace, &places)?;
    let caller = Caller {
        run,
        home: &planned.loaded.home,
        state: &planned.loaded.state,
        secrets,
    };
    set_up(network, caller).map_err(|error| refused(&planned.plan, &Action::StartEgress, error))
}

/// Reads the policy again for a reload.
struct Again {
    request: Request,
    run: RunId,
    /// What the run was started with.
    plan: Plan,
}

impl Reload for Again {
    fn network(&self, granted: &[NetworkRule]) -> Result<SetUp, String> {
        let planned = plan(&self.request).map_err(|refusal| refusal.to_string())?;
        let mut network = planned
            .plan
            .network
            .clone()
            .ok_or("the policy has no network any more: end the run instead")?;
        is_same_but_rules(&self.plan, &planned.plan)?;
        if let Some(first) = network.sets.first_mut() {
            first.rules.extend_from_slice(granted);
        }
        set_up_of(&planned, &network, &self.run).map_err(|refusal| refusal.to_string())
    }
}

/// A running sandbox cannot be changed: only what the egress process alone
/// holds may differ.
fn is_same_but_rules(old: &Plan, new: &Plan) -> Result<(), String> {
    let (Some(before), Some(after)) = (&old.network, &new.network) else {
        return Err("the run was started without a network".to_owned());
    };
    let offers = [
        ("network.publish", before.publish == after.publish),
        ("network.host_ports", before.host_ports == after.host_ports),
        ("socket", before.sockets == after.sockets),
        ("network.metrics", before.metrics == after.metrics),
        (
            "the variables of credentials",
            variables(before) == variables(after),
        ),
        (
            "inspection, which needs the sandbox's authority inside",
            before.inspects() || !after.inspects(),
        ),
    ];
    if let Some((what, _)) = offers.iter().find(|(_, same)| !same) {
        return Err(format!("{what} cannot change while the command runs"));
    }
    // Without the origins: a line more in a file moves those below it.
    let grants = |plan: &Plan| {
        let grants = plan.grants.iter();
        grants
            .map(|grant| (grant.path.clone(), grant.access, grant.private))
            .collect::<Vec<_>>()
    };
    let is_same = old.workspace == new.workspace
        && old.command == new.command
        && old.limits == new.limits
        && old.nested_sandbox == new.nested_sandbox
        && old.workspace_mode.0 == new.workspace_mode.0
        && grants(old) == grants(new);
    match is_same {
        true => Ok(()),
        false => Err("more than the network changed; the rest needs a new run".to_owned()),
    }
}

fn variables(network: &NetworkPlan) -> Vec<&String> {
    network
        .credentials
        .iter()
        .filter_map(|binding| binding.variable.as_ref())
        .collect()
}

/// Whether the launcher needs to know something of the egress process.
fn needs_extras(network: &NetworkPlan) -> bool {
    network.inspects()
        || network
            .credentials
            .iter()
            .any(|binding| binding.mode == Mode::Replace)
}

fn position(plan: &Plan, action: &Action) -> Option<usize> {
    plan.steps.iter().position(|step| step.action == *action)
}

fn fails(plan: &Plan, fail_at: Option<usize>, action: &Action) -> bool {
    fail_at.is_some() && fail_at == position(plan, action)
}

fn made_to_fail() -> WayOutError {
    WayOutError::Failed {
        what: "the test".to_owned(),
        reason: "made to fail by --fail-step".to_owned(),
    }
}

fn refused(plan: &Plan, action: &Action, error: WayOutError) -> Refusal {
    let step = position(plan, action).and_then(|index| plan.steps.get(index));
    Refusal::WayOut {
        step: step.map_or_else(|| "egress".to_owned(), |step| step.name.clone()),
        error,
    }
}
