//! From what each layer says to one policy.
//!
//! Who speaks decides what a statement can do. The user, a project's file that
//! the user trusts, and the command line *grant*: their lists are united. Where
//! a file or a preset says a list, the built-in default falls away; an option
//! of the command line adds to what applies without it. The
//! organisation and an untrusted project *take away*: their lists are ceilings.
//! An untrusted project that grants or loosens anything fails the merge: were
//! it narrowed in silence, the file would promise what does not hold.
//!
//! Limits take the minimum of all layers. For switches the strict word wins,
//! whoever says it. The result does not depend on the order of the layers.

mod guarded;
mod network;
mod worktree;

use crate::caches::Cache;
use crate::containment::{Contained, Scope};
use crate::defaults;
use crate::plan::{Accelerator, Form, Rule, RuntimeKind, Wall, WallDemand, WorkspaceMode};
use crate::policy::{
    Amount, GrantTarget, HidePattern, LimitDemands, NetworkPolicy, PathGrant, Policy,
    limit_defaults,
};
use crate::problem::{Fault, LayerKind, Place, Problem, Trust};
use crate::validate::{Context, Item, LayerPolicy, Said};

pub use worktree::{Worktree, grant_worktree, is_of_worktree};

/// Merges layers into one policy; without layers, the built-in default.
///
/// On failure every problem is in the list. Two layers of one kind must have
/// different names.
pub fn merge(layers: &[LayerPolicy], context: &Context) -> Result<Policy, Vec<Problem>> {
    let mut layers: Vec<&LayerPolicy> = layers.iter().collect();
    layers.sort_by_key(|policy| &policy.layer);
    if let Some(twins) = layers
        .windows(2)
        .find(|pair| pair[0].layer == pair[1].layer)
    {
        let fault = Fault::new("layer-twice", "this layer is given twice");
        return Err(vec![fault.at(&twins[0].layer, None)]);
    }
    let grants = |policy: &&LayerPolicy| !takes_away(policy);
    let merger = Merger {
        scope: Scope::new(&context.home),
        granting: layers.iter().copied().filter(grants).collect(),
        narrowing: layers
            .iter()
            .copied()
            .filter(|policy| takes_away(policy))
            .collect(),
        all: layers,
    };
    let granted = merger.granted(context);
    let mut problems = merger.widenings(&granted);
    problems.extend(network::contradictions(&merger.granting));
    if problems.is_empty() {
        Ok(merger.narrowed(granted, context))
    } else {
        Err(problems)
    }
}

fn takes_away(policy: &LayerPolicy) -> bool {
    matches!(
        policy.layer.kind,
        LayerKind::Organisation | LayerKind::Project(Trust::Untrusted)
    )
}

/// An option such as `--read` says "also"; a file or a preset says "instead".
fn replaces_default(policy: &LayerPolicy) -> bool {
    policy.layer.kind != LayerKind::CommandLine || policy.names_preset
}

/// What the granting layers allow, before anything is taken away.
struct Granted {
    write: Vec<Item<GrantTarget>>,
    read: Vec<Item<GrantTarget>>,
    network: NetworkPolicy,
    environment_pass: Vec<Item<String>>,
    environment_set: Vec<Item<(String, String)>>,
    weaken: Vec<Item<crate::guarantee::Guarantee>>,
    caches: Vec<Item<Cache>>,
    nested_sandbox: Option<Rule>,
    image: Option<(String, Rule)>,
    runtime: Option<(RuntimeKind, Rule)>,
    accelerator: Option<(Accelerator, Rule)>,
    accepted_runtime: Option<(String, Rule)>,
    form: Form,
    limits: LimitDemands,
}

struct Merger<'a> {
    scope: Scope<'a>,
    granting: Vec<&'a LayerPolicy>,
    narrowing: Vec<&'a LayerPolicy>,
    all: Vec<&'a LayerPolicy>,
}

impl<'a> Merger<'a> {
    fn granted(&self, context: &Context) -> Granted {
        Granted {
            write: self.united(
                |policy| &policy.write,
                || defaults::write(&context.workspace),
            ),
            read: self.united(|policy| &policy.read, defaults::read),
            network: network::merged(&self.granting, &[], &self.granting),
            environment_pass: self.united(
                |policy| &policy.environment_pass,
                defaults::environment_pass,
            ),
            environment_set: last_of_each_name(&self.granting),
            weaken: self.united(|policy| &policy.weaken, Vec::new),
            caches: self.united(|policy| &policy.caches, defaults::caches),
            nested_sandbox: nested_sandbox(&self.granting, &self.granting),
            image: last(&self.granting, |policy| &policy.image),
            runtime: last(&self.granting, |policy| &policy.runtime),
            accelerator: last(&self.granting, |policy| &policy.accelerator),
            accepted_runtime: last(&self.granting, |policy| &policy.accepted_runtime),
            form: form(&self.granting, &self.granting),
            limits: limits(&self.granting),
        }
    }

    /// The lists of all granting layers, with the default when none replaces
    /// it.
    fn united<T: Clone + 'a>(
        &self,
        list: impl Fn(&'a LayerPolicy) -> &'a Said<T>,
        default: impl FnOnce() -> Vec<Item<T>>,
    ) -> Vec<Item<T>> {
        let replaced = self
            .granting
            .iter()
            .any(|policy| replaces_default(policy) && list(policy).is_some());
        let mut items = if replaced { Vec::new() } else { default() };
        let said = self
            .granting
            .iter()
            .filter_map(|policy| list(policy).as_ref());
        items.extend(said.flatten().cloned());
        items
    }

    /// Everything in an untrusted layer that the rest does not grant.
    fn widenings(&self, granted: &Granted) -> Vec<Problem> {
        let mut problems = Vec::new();
        let untrusted =
            |policy: &&&LayerPolicy| policy.layer.kind == LayerKind::Project(Trust::Untrusted);
        for policy in self.narrowing.iter().filter(untrusted) {
            Widenings {
                policy,
                scope: &self.scope,
                problems: &mut problems,
            }
            .find(granted);
        }
        let start = |problem: &Problem| problem.span.as_ref().map(|span| span.start);
        problems
            .sort_by(|left, right| (&left.layer, start(left)).cmp(&(&right.layer, start(right))));
        problems
    }

    fn narrowed(&self, granted: Granted, context: &Context) -> Policy {
        let Granted {
            write,
            read,
            environment_pass,
            environment_set,
            weaken,
            caches,
            image,
            runtime,
            accelerator,
            accepted_runtime,
            ..
        } = granted;
        let (write, read) = self.narrowed_paths(write, read);
        let (wall_demand, wall_rule) = wall(&self.all);
        let path_grant = |item: Item<GrantTarget>| PathGrant {
            target: item.value,
            rule: item.rule,
        };
        let environment_pass = self.taken_away(environment_pass, |policy| &policy.environment_pass);
        let weaken = self.taken_away(weaken, |policy| &policy.weaken);
        let caches = self.taken_away(caches, |policy| &policy.caches);
        Policy {
            form: match wall_demand.least {
                Wall::Seatbelt => Form::Seatbelt,
                _ => form(&self.granting, &self.all),
            },
            wall: (wall_demand.least, wall_rule),
            wall_demand,
            image,
            runtime,
            accelerator,
            accepted_runtime,
            workspace: context.workspace.clone(),
            workspace_mode: workspace_mode(&self.all),
            write: write.into_iter().map(path_grant).collect(),
            read: read.into_iter().map(path_grant).collect(),
            hide: self.hidden(),
            guard: guarded::guard(&self.all),
            kept: Vec::new(),
            caches: caches
                .into_iter()
                .map(|item| (item.value, item.rule))
                .collect(),
            nested_sandbox: nested_sandbox(&self.granting, &self.all),
            environment_pass: environment_pass
                .into_iter()
                .map(|item| (item.value, item.rule))
                .collect(),
            environment_set: self.with_fixed_variables(environment_set),
            network: network::merged(&self.granting, &self.narrowing, &self.all),
            limits: lowered(granted.limits, limits(&self.narrowing)),
            weaken: weaken
                .into_iter()
                .map(|item| (item.value, item.rule))
                .collect(),
        }
    }

    /// What may be written may be read; a layer that takes only writing away
    /// leaves reading, unless it also lists what may be read.
    fn narrowed_paths(
        &self,
        mut write: Vec<Item<GrantTarget>>,
        read: Vec<Item<GrantTarget>>,
    ) -> (Vec<Item<GrantTarget>>, Vec<Item<GrantTarget>>) {
        let mut readable: Vec<_> = write.iter().cloned().chain(read).collect();
        for policy in &self.narrowing {
            if let Some(ceiling) = &policy.write {
                write = self.within(write, ceiling);
            }
            if let Some(ceiling) = &policy.read {
                let both: Vec<_> = ceiling
                    .iter()
                    .chain(policy.write.iter().flatten())
                    .cloned()
                    .collect();
                readable = self.within(readable, &both);
            }
        }
        // A path below another one stays: compiling looks at each that a person
        // named, and refuses the missing ones and the links of a run.
        let write = distinct(write, |kept, item| kept == item);
        readable.retain(|item| !write.iter().any(|kept| kept.value == item.value));
        (write, distinct(readable, |kept, item| kept == item))
    }

    fn taken_away<T: Contained + 'a>(
        &self,
        mut items: Vec<Item<T>>,
        list: impl Fn(&'a LayerPolicy) -> &'a Said<T>,
    ) -> Vec<Item<T>> {
        for ceiling in self
            .narrowing
            .iter()
            .filter_map(|policy| list(policy).as_ref())
        {
            items = self.within(items, ceiling);
        }
        distinct(items, |kept, item| kept.covers(item, &self.scope))
    }

    /// The part of each item that a ceiling leaves.
    fn within<T: Contained>(&self, items: Vec<Item<T>>, ceiling: &[Item<T>]) -> Vec<Item<T>> {
        let mut left = Vec::new();
        for item in items {
            if ceiling
                .iter()
                .any(|limit| limit.value.covers(&item.value, &self.scope))
            {
                left.push(item);
                continue;
            }
            for limit in ceiling {
                if let Some(value) = item.value.meet(&limit.value, &self.scope) {
                    let origin = format!("{}, narrowed by {}", item.rule.origin, limit.rule.origin);
                    let rule = Rule {
                        origin,
                        ..item.rule.clone()
                    };
                    left.push(Item {
                        value,
                        rule,
                        place: item.place.clone(),
                    });
                }
            }
        }
        left
    }

    fn hidden(&self) -> Vec<HidePattern> {
        let said = self.all.iter().filter_map(|policy| policy.hide.as_ref());
        let patterns = distinct(said.flatten().cloned().collect(), |kept, pattern| {
            kept == pattern
        });
        patterns
            .into_iter()
            .map(|item| HidePattern {
                pattern: item.value,
                rule: item.rule,
            })
            .collect()
    }

    /// The organisation's values stand above everyone's.
    fn with_fixed_variables(
        &self,
        granted: Vec<Item<(String, String)>>,
    ) -> Vec<(String, String, Rule)> {
        let organisation = |policy: &&LayerPolicy| policy.layer.kind == LayerKind::Organisation;
        let fixed: Vec<&LayerPolicy> = self
            .narrowing
            .iter()
            .copied()
            .filter(organisation)
            .collect();
        let mut variables = last_of_each_name(&fixed);
        let free = |item: &Item<(String, String)>| {
            variables.iter().all(|fixed| fixed.value.0 != item.value.0)
        };
        let free: Vec<_> = granted.into_iter().filter(free).collect();
        variables.extend(free);
        variables.sort_by(|left, right| left.value.0.cmp(&right.value.0));
        variables
            .into_iter()
            .map(|item| (item.value.0, item.value.1, item.rule))
            .collect()
    }
}

/// Drops each item that another one covers; of equals the first stays.
fn distinct<T>(items: Vec<Item<T>>, covers: impl Fn(&T, &T) -> bool) -> Vec<Item<T>> {
    let mut kept: Vec<Item<T>> = Vec::with_capacity(items.len());
    for item in items {
        if !kept.iter().any(|other| covers(&other.value, &item.value)) {
            kept.retain(|other| !covers(&item.value, &other.value));
            kept.push(item);
        }
    }
    kept
}

/// Later layers win: the command line over the project over the user.
fn last_of_each_name(layers: &[&LayerPolicy]) -> Vec<Item<(String, String)>> {
    let mut variables: Vec<Item<(String, String)>> = Vec::new();
    for item in layers
        .iter()
        .filter_map(|policy| policy.environment_set.as_ref())
        .flatten()
    {
        variables.retain(|other| other.value.0 != item.value.0);
        variables.push(item.clone());
    }
    variables
}

/// Granted by any of `granting` and forbidden by none of `speaking`.
fn nested_sandbox(granting: &[&LayerPolicy], speaking: &[&LayerPolicy]) -> Option<Rule> {
    let said = |policy: &&LayerPolicy, value| {
        policy
            .nested_sandbox
            .as_ref()
            .is_some_and(|item| item.value == value)
    };
    if speaking.iter().any(|policy| said(policy, false)) {
        return None;
    }
    let granted = granting.iter().find(|policy| said(policy, true))?;
    granted
        .nested_sandbox
        .as_ref()
        .map(|item| item.rule.clone())
}

/// The weaker form, when any of `granting` takes it and none of `speaking`
/// insists on the stronger one.
fn form(granting: &[&LayerPolicy], speaking: &[&LayerPolicy]) -> Form {
    let said =
        |policy: &&LayerPolicy, form| policy.form.as_ref().is_some_and(|item| item.value == form);
    let weaker = granting
        .iter()
        .any(|policy| said(policy, Form::LandlockOnly));
    let forbidden = speaking.iter().any(|policy| said(policy, Form::Namespaces));
    if weaker && !forbidden {
        Form::LandlockOnly
    } else {
        Form::Namespaces
    }
}

/// The strongest that any layer states, whoever says it.
fn wall(layers: &[&LayerPolicy]) -> (WallDemand, Rule) {
    let said = layers.iter().filter_map(|policy| policy.wall.as_ref());
    let strongest = said.reduce(|kept, item| if item.value > kept.value { item } else { kept });
    strongest.map_or_else(defaults::wall, |item| (item.value, item.rule.clone()))
}

/// What the last granting layer names.
fn last<T: Clone>(
    layers: &[&LayerPolicy],
    key: impl Fn(&LayerPolicy) -> &Option<Item<T>>,
) -> Option<(T, Rule)> {
    let mut said = layers.iter().filter_map(|policy| key(policy).as_ref());
    let item = said.next_back()?;
    Some((item.value.clone(), item.rule.clone()))
}

/// The strictest that any layer states, whoever says it.
fn workspace_mode(layers: &[&LayerPolicy]) -> (WorkspaceMode, Rule) {
    let said = layers.iter().filter_map(|policy| policy.workspace.as_ref());
    // Of equals the first counts, as everywhere.
    let strictest = said.reduce(|kept, item| if item.value > kept.value { item } else { kept });
    strictest.map_or_else(defaults::workspace_mode, |item| {
        (item.value, item.rule.clone())
    })
}

/// The smallest of what the layers state.
fn limits(layers: &[&LayerPolicy]) -> LimitDemands {
    fn least<T: Ord + Copy>(
        layers: &[&LayerPolicy],
        limit: impl Fn(&LayerPolicy) -> &Option<Item<T>>,
    ) -> Option<(T, Rule)> {
        let said = layers.iter().filter_map(|policy| limit(policy).as_ref());
        said.min_by_key(|item| item.value)
            .map(|item| (item.value, item.rule.clone()))
    }
    let memory = layers.iter().filter_map(|policy| policy.memory.as_ref());
    let exact = layers
        .iter()
        .filter_map(|policy| policy.exact.as_ref())
        .find(|item| item.value);
    LimitDemands {
        memory: memory
            .map(|item| (item.value, item.rule.clone()))
            .reduce(least_memory),
        processes: least(layers, |policy| &policy.processes),
        cpu_percent: least(layers, |policy| &policy.cpu_percent),
        cpu_seconds: least(layers, |policy| &policy.cpu_seconds),
        wall_time_ms: least(layers, |policy| &policy.wall_time_ms),
        open_files: least(layers, |policy| &policy.open_files),
        file_bytes: least(layers, |policy| &policy.file_bytes),
        disk_bytes: least(layers, |policy| &policy.disk_bytes),
        cache_bytes: least(layers, |policy| &policy.cache_bytes),
        store_bytes: least(layers, |policy| &policy.store_bytes),
        exact: exact.map(|item| item.rule.clone()),
    }
}

/// Lowers what is granted, or the default of `compile` where nobody grants:
/// a layer that takes away must not raise that by stating a limit.
fn lowered(granted: LimitDemands, ceiling: LimitDemands) -> LimitDemands {
    fn least<T: Ord>(
        granted: Option<(T, Rule)>,
        ceiling: Option<(T, Rule)>,
        default: Option<T>,
    ) -> Option<(T, Rule)> {
        match (granted, ceiling) {
            (Some(granted), Some(ceiling)) => Some(if ceiling.0 < granted.0 {
                ceiling
            } else {
                granted
            }),
            (None, Some(ceiling)) if default.is_some_and(|default| ceiling.0 >= default) => None,
            (granted, ceiling) => granted.or(ceiling),
        }
    }
    use limit_defaults::{CACHE_BYTES, DISK_BYTES, OPEN_FILES, PROCESSES, STORE_BYTES};
    LimitDemands {
        memory: lowered_memory(granted.memory, ceiling.memory),
        processes: least(granted.processes, ceiling.processes, Some(PROCESSES)),
        cpu_percent: least(granted.cpu_percent, ceiling.cpu_percent, None),
        cpu_seconds: least(granted.cpu_seconds, ceiling.cpu_seconds, None),
        wall_time_ms: least(granted.wall_time_ms, ceiling.wall_time_ms, None),
        open_files: least(granted.open_files, ceiling.open_files, Some(OPEN_FILES)),
        file_bytes: least(granted.file_bytes, ceiling.file_bytes, None),
        disk_bytes: least(granted.disk_bytes, ceiling.disk_bytes, Some(DISK_BYTES)),
        cache_bytes: least(granted.cache_bytes, ceiling.cache_bytes, Some(CACHE_BYTES)),
        store_bytes: least(granted.store_bytes, ceiling.store_bytes, Some(STORE_BYTES)),
        exact: granted.exact.or(ceiling.exact),
    }
}

fn lowered_memory(
    granted: Option<(Amount, Rule)>,
    ceiling: Option<(Amount, Rule)>,
) -> Option<(Amount, Rule)> {
    let Some(ceiling) = ceiling else {
        return granted;
    };
    Some(match granted {
        Some(granted) => least_memory(granted, ceiling),
        None => {
            let default = Amount::PercentOfMachine(limit_defaults::MEMORY_PERCENT);
            (least_amount(ceiling.0, default), ceiling.1)
        }
    })
}

/// Keeps the rule of the smaller amount, or both rules' origins.
fn least_memory(left: (Amount, Rule), right: (Amount, Rule)) -> (Amount, Rule) {
    let least = least_amount(left.0, right.0);
    if least == left.0 {
        return left;
    }
    if least == right.0 {
        return right;
    }
    let origin = format!("{} and {}", left.1.origin, right.1.origin);
    (least, Rule { origin, ..left.1 })
}

fn least_amount(left: Amount, right: Amount) -> Amount {
    let parts = |amount| match amount {
        Amount::Bytes(bytes) => (Some(bytes), None),
        Amount::PercentOfMachine(percent) => (None, Some(percent)),
        Amount::Least { bytes, percent } => (Some(bytes), Some(percent)),
    };
    let ((left_bytes, left_percent), (right_bytes, right_percent)) = (parts(left), parts(right));
    let bytes = left_bytes.into_iter().chain(right_bytes).min();
    let percent = left_percent.into_iter().chain(right_percent).min();
    match (bytes, percent) {
        (Some(bytes), Some(percent)) => Amount::Least { bytes, percent },
        (Some(bytes), None) => Amount::Bytes(bytes),
        (None, Some(percent)) => Amount::PercentOfMachine(percent),
        (None, None) => left,
    }
}

/// Looks in one untrusted layer for what the rest does not grant.
struct Widenings<'a> {
    policy: &'a LayerPolicy,
    scope: &'a Scope<'a>,
    problems: &'a mut Vec<Problem>,
}

impl Widenings<'_> {
    fn find(&mut self, granted: &Granted) {
        let policy = self.policy;
        let readable: Vec<_> = granted.write.iter().chain(&granted.read).cloned().collect();
        self.list(&policy.write, &granted.write, "write", show_target);
        self.list(&policy.read, &readable, "read", show_target);
        self.network(granted);
        self.list(
            &policy.environment_pass,
            &granted.environment_pass,
            "pass the variable",
            Clone::clone,
        );
        self.list(
            &policy.weaken,
            &granted.weaken,
            "weaken the guarantee",
            ToString::to_string,
        );
        for item in policy.environment_set.iter().flatten() {
            if !granted
                .environment_set
                .iter()
                .any(|other| other.value == item.value)
            {
                self.report(
                    item.place.as_ref(),
                    &format!("set the variable {}", item.value.0),
                );
            }
        }
        self.list(&policy.caches, &granted.caches, "keep the cache", |cache| {
            cache.name().to_owned()
        });
        if let Some(item) = policy
            .nested_sandbox
            .as_ref()
            .filter(|item| item.value && granted.nested_sandbox.is_none())
        {
            self.report(item.place.as_ref(), "nest sandboxes");
        }
        self.choice(&policy.image, &granted.image, "choose the image");
        self.choice(&policy.runtime, &granted.runtime, "choose the OCI runtime");
        self.choice(
            &policy.accelerator,
            &granted.accelerator,
            "choose what executes a machine",
        );
        self.choice(
            &policy.accepted_runtime,
            &granted.accepted_runtime,
            "accept a version of the OCI runtime",
        );
        if let Some(item) = policy
            .form
            .as_ref()
            .filter(|item| item.value == Form::LandlockOnly && granted.form != item.value)
        {
            self.report(item.place.as_ref(), "take the weaker form of the wall");
        }
        self.limits(&granted.limits);
    }

    /// Reports a choice that the rest does not make as well.
    fn choice<T: PartialEq>(
        &mut self,
        said: &Option<Item<T>>,
        granted: &Option<(T, Rule)>,
        what: &str,
    ) {
        let granted = granted.as_ref().map(|(value, _)| value);
        if let Some(item) = said.as_ref().filter(|item| granted != Some(&item.value)) {
            self.report(item.place.as_ref(), what);
        }
    }

    fn network(&mut self, granted: &Granted) {
        let (policy, scope) = (self.policy, self.scope);
        network::widenings(
            &policy.network,
            &granted.network,
            scope,
            &mut |place, what| {
                self.report(place, what);
            },
        );
    }

    fn list<T: Contained>(
        &mut self,
        said: &Said<T>,
        granted: &[Item<T>],
        verb: &str,
        show: impl Fn(&T) -> String,
    ) {
        for item in said.iter().flatten() {
            if !granted
                .iter()
                .any(|other| other.value.covers(&item.value, self.scope))
            {
                self.report(
                    item.place.as_ref(),
                    &format!("{verb} {}", show(&item.value)),
                );
            }
        }
    }

    fn limits(&mut self, granted: &LimitDemands) {
        use limit_defaults::{CACHE_BYTES, DISK_BYTES, OPEN_FILES, PROCESSES, STORE_BYTES};
        let policy = self.policy;
        self.memory(granted);
        self.limit(
            "processes",
            &policy.processes,
            &granted.processes,
            Some(PROCESSES),
        );
        self.limit("cpus", &policy.cpu_percent, &granted.cpu_percent, None);
        self.limit("cpu_time", &policy.cpu_seconds, &granted.cpu_seconds, None);
        self.limit(
            "wall_time",
            &policy.wall_time_ms,
            &granted.wall_time_ms,
            None,
        );
        self.limit(
            "open_files",
            &policy.open_files,
            &granted.open_files,
            Some(OPEN_FILES),
        );
        self.limit("file_size", &policy.file_bytes, &granted.file_bytes, None);
        self.limit(
            "disk",
            &policy.disk_bytes,
            &granted.disk_bytes,
            Some(DISK_BYTES),
        );
        self.limit(
            "cache_bytes_max",
            &policy.cache_bytes,
            &granted.cache_bytes,
            Some(CACHE_BYTES),
        );
        self.limit(
            "store_bytes_max",
            &policy.store_bytes,
            &granted.store_bytes,
            Some(STORE_BYTES),
        );
    }

    fn limit<T: Ord + Copy>(
        &mut self,
        name: &str,
        said: &Option<Item<T>>,
        granted: &Option<(T, Rule)>,
        default: Option<T>,
    ) {
        let limit = granted.as_ref().map(|(limit, _)| *limit).or(default);
        if let (Some(item), Some(limit)) = (said, limit)
            && item.value > limit
        {
            self.report(item.place.as_ref(), &format!("raise the limit `{name}`"));
        }
    }

    /// Bytes and shares are not compared; the smaller one wins at any rate.
    fn memory(&mut self, granted: &LimitDemands) {
        let default = Amount::PercentOfMachine(limit_defaults::MEMORY_PERCENT);
        let limit = granted
            .memory
            .as_ref()
            .map_or(default, |(amount, _)| *amount);
        if let Some(item) = &self.policy.memory {
            let raises = match (item.value, limit) {
                (
                    Amount::Bytes(said),
                    Amount::Bytes(limit) | Amount::Least { bytes: limit, .. },
                ) => said > limit,
                (
                    Amount::PercentOfMachine(said),
                    Amount::PercentOfMachine(limit) | Amount::Least { percent: limit, .. },
                ) => said > limit,
                _ => false,
            };
            if raises {
                self.report(item.place.as_ref(), "raise the limit `memory`");
            }
        }
    }

    fn report(&mut self, place: Option<&Place>, what: &str) {
        let layer = &self.policy.layer;
        let fault = Fault::new("untrusted-grant", format!("this file wants to {what}, but it is not trusted"))
            .help(format!(
                "a project's own file can only take away; read it, then run `stockade trust` to count {} as yours",
                layer.name
            ));
        self.problems.push(fault.at(layer, place));
    }
}

fn show_target(target: &GrantTarget) -> String {
    match target {
        GrantTarget::Path(path) => path.to_string(),
        GrantTarget::Set(crate::policy::NamedSet::System) => "the set \"system\"".to_owned(),
        GrantTarget::Set(crate::policy::NamedSet::Toolchains) => {
            "the set \"toolchains\"".to_owned()
        }
    }
}
