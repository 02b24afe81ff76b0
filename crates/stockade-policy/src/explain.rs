//! Shows a plan to people and, as versioned JSON, to programs.
//!
//! Both are views of the value that is enforced; nothing is computed twice.
//! Values of environment variables are never shown, because a secret may be
//! among them: only their names are.

mod guarded;
mod network;
mod wire;

use std::fmt::Write as _;

use crate::caches;
use crate::compile::bytes_text;
use crate::digest::digest;
use crate::path::printable;
use crate::plan::{
    Accelerator, Access, Action, Form, Grant, GuestKernel, Hold, Limits, Plan, Rule, Wall,
    WorkspaceMode,
};
use crate::seccomp::{self, Applies};

pub use guarded::{GuardV1, GuardedV1};
pub use network::{
    BudgetV1, CredentialV1, HostPortV1, NetworkV1, PublishV1, RuleSetV1, SocketV1, TargetV1,
};
pub use wire::{
    CachesV1, CommandV1, ExplainV1, GrantV1, GuaranteeV1, LimitsV1, MaskV1, RuleV1, StepV1,
    SystemCallV1, WorkspaceModeV1, json,
};

/// How text is marked up. Colours only repeat what the words say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    /// Colours and weights by escape sequences (ECMA-48).
    Ansi,
}

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    Summary,
    /// Also every step and every system call rule.
    Verbose,
}

/// The plan as text for people.
pub fn text(plan: &Plan, style: Style, detail: Detail) -> String {
    let mut page = Page {
        text: String::with_capacity(4096),
        style,
    };
    page.line(&format!("Plan {}", digest(plan)));
    page.line(&match (plan.wall, plan.form) {
        (Wall::Process, Form::LandlockOnly) => {
            "Wall process, with Landlock and seccomp alone".to_owned()
        }
        (Wall::Gvisor, _) => "Wall gvisor, with namespaces and seccomp around it".to_owned(),
        (Wall::Container, _) if plan.guest.is_some() => {
            "Wall container, with namespaces and seccomp around it".to_owned()
        }
        (Wall::Seatbelt, _) => "Wall seatbelt, with a profile for sandbox-exec (macOS)".to_owned(),
        (wall, _) => format!(
            "Wall {}, with namespaces, Landlock and seccomp",
            wall.word()
        ),
    });
    if let Some(guest) = &plan.guest {
        page.line(&match &guest.kernel {
            GuestKernel::Gvisor(runsc) => {
                format!(
                    "Kernel gVisor {} ({}), systrap",
                    runsc.version, runsc.program
                )
            }
            GuestKernel::Hosts(runtime) => format!(
                "Container by {} {} ({})",
                runtime.kind.word(),
                runtime.version,
                runtime.program
            ),
            GuestKernel::Machine(machine) => format!(
                "Kernel Linux {} of machine image {}, {} MiB, {}, {}, {}, in QEMU {} ({})",
                machine.release,
                machine.image,
                machine.memory,
                match machine.processors {
                    1 => "1 processor".to_owned(),
                    many => format!("{many} processors"),
                },
                match machine.accelerator {
                    Accelerator::Kvm => "executed by the processor (KVM)",
                    Accelerator::Tcg => "translated (TCG)",
                },
                match machine.saved {
                    Some(_) => "restored from a saved state",
                    None => "booted",
                },
                machine.version,
                machine.program
            ),
        });
    }
    if let Some(image) = &plan.image {
        let origin = page.toned(Tone::Faint, &source(&image.rule));
        page.line(&format!("Image {} ({})  {origin}", image.name, image.id));
    }
    command(&mut page, plan);
    files(&mut page, plan);
    guarded::text(&mut page, plan, detail);
    environment(&mut page, plan);
    network::text(&mut page, plan);
    system_calls(&mut page, plan, detail);
    limits(&mut page, &plan.limits);
    if detail == Detail::Verbose {
        steps(&mut page, plan);
    }
    guarantees(&mut page, plan);
    notes(&mut page, plan);
    page.text
}

struct Page {
    text: String,
    style: Style,
}

#[derive(Clone, Copy)]
enum Tone {
    Strong,
    Good,
    Careful,
    Faint,
}

impl Page {
    fn heading(&mut self, heading: &str) {
        let marked = self.toned(Tone::Strong, heading);
        self.line("");
        self.line(&marked);
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn item(&mut self, item: &str) {
        self.line(&format!("  {item}"));
    }

    fn toned(&self, tone: Tone, text: &str) -> String {
        let code = match (self.style, tone) {
            (Style::Plain, _) => return text.to_owned(),
            (Style::Ansi, Tone::Strong) => "1",
            (Style::Ansi, Tone::Good) => "32",
            (Style::Ansi, Tone::Careful) => "33",
            (Style::Ansi, Tone::Faint) => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

fn command(page: &mut Page, plan: &Plan) {
    page.heading("Command");
    let words: Vec<String> = plan.command.argv.iter().map(|word| quoted(word)).collect();
    page.item(&words.join(" "));
    page.item(&format!("in {}", plan.command.directory));
    page.item(&format!(
        "as uid {}, gid {}, umask {:03o}",
        plan.uid, plan.gid, plan.umask
    ));
}

fn files(page: &mut Page, plan: &Plan) {
    let part = |private, access| {
        plan.grants
            .iter()
            .filter(move |grant| grant.private == private && grant.access == access)
    };
    grants(page, "Readable", part(false, Access::Read));
    grants(page, "Writable", part(false, Access::Write));
    let private = part(true, Access::Write)
        .chain(part(true, Access::Read))
        .filter(|grant| grant.rule.id != caches::RULE);
    grants(
        page,
        "Private: this run's own, nothing of the machine's",
        private,
    );
    workspace(page, plan);
    kept(page, plan);
    if plan.masks.is_empty() {
        return;
    }
    page.heading("Hidden");
    let width = column(plan.masks.iter().map(|mask| mask.path.to_string()));
    for mask in &plan.masks {
        let origin = page.toned(Tone::Faint, &source(&mask.rule));
        let instead = match mask.committed {
            true => "; what git's index holds stands there, read-only",
            false => "",
        };
        page.item(&format!(
            "{:width$}  {}{instead}  {origin}",
            mask.path.to_string(),
            mask.rule.reason
        ));
    }
}

fn kept(page: &mut Page, plan: &Plan) {
    let Some(caches) = &plan.caches else {
        return;
    };
    page.heading("Caches: kept for the next runs in this project, and for nothing else");
    for (cache, rule) in &caches.list {
        let origin = page.toned(Tone::Faint, &source(rule));
        page.item(&format!("{:6}  {}  {origin}", cache.name(), rule.reason));
    }
    page.item(&format!(
        "at {}, from {}, at most {} after a run",
        caches.path,
        caches.source,
        bytes_text(caches.bytes_max)
    ));
}

fn workspace(page: &mut Page, plan: &Plan) {
    let (mode, rule) = &plan.workspace_mode;
    let how = match mode {
        _ if !plan.has_overlay() => "what is written here is written directly",
        WorkspaceMode::Live => "what is written here is written directly",
        WorkspaceMode::Review => {
            "what is written here waits in a layer of this run's own until you apply it"
        }
        WorkspaceMode::Discard => "what is written here goes with the run",
    };
    page.heading(&format!("Workspace: {}", mode.word()));
    let origin = page.toned(Tone::Faint, &source(rule));
    page.item(&format!("{}  {how}  {origin}", plan.workspace));
    for step in &plan.steps {
        if let Action::Overlay { layers, .. } = &step.action
            && !layers.is_empty()
        {
            page.item(&format!("on {} frozen layers of its store", layers.len()));
        }
    }
}

fn grants<'a>(page: &mut Page, heading: &str, grants: impl Iterator<Item = &'a Grant>) {
    let grants: Vec<&Grant> = grants.collect();
    page.heading(heading);
    if grants.is_empty() {
        page.item("nothing");
    }
    let width = column(grants.iter().map(|grant| grant.path.to_string()));
    for grant in grants {
        let origin = page.toned(Tone::Faint, &source(&grant.rule));
        page.item(&format!(
            "{:width$}  {}  {origin}",
            grant.path.to_string(),
            grant.rule.reason
        ));
    }
}

fn environment(page: &mut Page, plan: &Plan) {
    page.heading("Environment (names only)");
    let mut line = String::new();
    for (name, _) in &plan.command.environment {
        let name = printable(name);
        if !line.is_empty() && line.len() + name.len() > 90 {
            page.item(&std::mem::take(&mut line));
        }
        let separator = if line.is_empty() { "" } else { " " };
        line.push_str(separator);
        line.push_str(&name);
    }
    page.item(&line);
}

fn system_calls(page: &mut Page, plan: &Plan, detail: Detail) {
    page.heading("System calls");
    if plan.form == Form::Seatbelt {
        page.item("no filter: macOS lets no program load one");
        return;
    }
    let instructions = plan.steps.iter().find_map(|step| match &step.action {
        Action::Seccomp { program } => Some(program.len()),
        _ => None,
    });
    let rules: Vec<_> = rules_in_force(plan).collect();
    let allowed = rules
        .iter()
        .filter(|rule| matches!(rule.action, seccomp::Action::Allow))
        .count();
    page.item(&format!(
        "{allowed} rules allow, {} refuse, and what is not listed does not exist \
         ({} instructions)",
        rules.len() - allowed,
        instructions.unwrap_or(0)
    ));
    if plan.form == Form::LandlockOnly {
        page.item("no socket that leads out can be made");
    }
    if detail == Detail::Summary {
        return;
    }
    for rule in rules {
        let action = rule.action.to_string();
        page.item(&format!("{action:<14} {:<26} {}", rule.name, rule.reason));
        if !rule.condition.is_empty() {
            page.item(&format!("{:<14} when {}", "", rule.condition));
        }
    }
}

/// The rules from which this plan's filter was made.
fn rules_in_force(plan: &Plan) -> impl Iterator<Item = seccomp::RuleLine> {
    let nested = plan.nested_sandbox || plan.wall == Wall::Gvisor;
    seccomp::rules()
        .into_iter()
        .filter(move |rule| match rule.applies {
            Applies::Always => true,
            Applies::UnlessNested => !nested,
            Applies::IfNested => nested,
        })
}

fn limits(page: &mut Page, limits: &Limits) {
    page.heading(if limits.exact {
        "Limits (exact)"
    } else {
        "Limits (best effort)"
    });
    let count = |value: Option<u64>| value.map(|value| value.to_string());
    let rows = [
        ("memory", limits.memory_bytes.map(bytes_text)),
        ("processes", count(limits.processes)),
        (
            "processors",
            limits.cpu_percent.map(|percent| format!("{percent} %")),
        ),
        (
            "processor time",
            limits
                .cpu_seconds
                .map(|seconds| format!("{seconds} s a process")),
        ),
        ("wall time", limits.wall_time_ms.map(duration_text)),
        ("open files", count(limits.open_files)),
        ("largest file", limits.file_bytes.map(bytes_text)),
        ("waiting layers", Some(bytes_text(limits.store_bytes))),
        (
            "private files",
            Some(format!(
                "{}, {} inodes",
                bytes_text(limits.disk_bytes),
                limits.disk_inodes
            )),
        ),
    ];
    for (name, value) in rows {
        page.item(&format!(
            "{name:<15} {}",
            value.as_deref().unwrap_or("no limit")
        ));
    }
}

fn steps(page: &mut Page, plan: &Plan) {
    page.heading("Steps");
    for (index, step) in plan.steps.iter().enumerate() {
        let holds: Vec<&str> = step.holds.iter().map(|guarantee| guarantee.id()).collect();
        page.item(format!("{index:>3} {}  {}", step.name, holds.join(" ")).trim_end());
        if let Action::Seatbelt { profile } = &step.action {
            profile
                .lines()
                .for_each(|line| page.item(&format!("    {line}")));
        }
    }
}

fn guarantees(page: &mut Page, plan: &Plan) {
    page.heading("Guarantees");
    for (guarantee, hold) in &plan.guarantees {
        let (tone, word) = match hold {
            Hold::Held { .. } => (Tone::Good, "held"),
            Hold::Partial { .. } => (Tone::Careful, "in part"),
            Hold::NotHeld { .. } => (Tone::Careful, "not held"),
        };
        let word = page.toned(tone, &format!("{word:<8}"));
        page.item(&format!(
            "{:<3}  {word}  {}",
            guarantee.id(),
            guarantee.promise()
        ));
        let mut more = |label: &str, text: &str| page.item(&format!("{:15}{label}: {text}", ""));
        match hold {
            Hold::Held { by, .. } => more("by", by),
            Hold::Partial { by, lost, .. } => {
                more("by", by);
                more("lost", lost);
            }
            Hold::NotHeld { because } => more("because", because),
        }
    }
}

fn notes(page: &mut Page, plan: &Plan) {
    if plan.notes.is_empty() {
        return;
    }
    page.heading("Notes");
    for note in &plan.notes {
        page.item(&format!("- {note}"));
    }
}

fn source(rule: &Rule) -> String {
    match rule.origin == "built-in" {
        true => format!("[{}]", rule.id),
        false => format!("[{}, {}]", rule.id, rule.origin),
    }
}

/// Width of a column, so wide that one long path does not push all others out.
fn column(cells: impl Iterator<Item = String>) -> usize {
    cells.map(|cell| cell.len()).max().unwrap_or(0).min(40)
}

/// A word as a shell would take it back, with what is not printable escaped.
fn quoted(word: &[u8]) -> String {
    let text = printable(word);
    let plain =
        |character: char| character.is_ascii_alphanumeric() || "%+,-./:=@_".contains(character);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn duration_text(milliseconds: u64) -> String {
    let mut text = String::new();
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    let parts = [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
        (rest, "ms"),
    ];
    for (value, unit) in parts.into_iter().filter(|(value, _)| *value > 0) {
        let separator = if text.is_empty() { "" } else { " " };
        write!(text, "{separator}{value} {unit}").expect("writing to a string cannot fail");
    }
    if text.is_empty() {
        "0 s".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests;
