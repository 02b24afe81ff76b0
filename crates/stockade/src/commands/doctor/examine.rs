//! `stockade doctor` without attacks: prints what the examination found.

use std::ffi::OsString;

use serde_json::{Value, json};
use stockade_engine::doctor::{Check, Examination, Finding, Standing, examine};
use stockade_engine::run::Request;
use stockade_policy::guarantee::Guarantee;
use stockade_policy::plan::{Hold, Unenforceable, Wall};

use super::{Format, print};
use crate::exit::ExitCode;
use crate::show;

/// Examines; fails when commands cannot run here.
pub fn run(format: Format) -> anyhow::Result<ExitCode> {
    let request = Request {
        argv: vec![OsString::from("true")],
        ..Request::default()
    };
    let examination = examine(&request);
    match format {
        Format::Text => print(&text(&examination))?,
        Format::Json => print(&format!("{:#}\n", json(&examination)))?,
    }
    let ready = examination.ready;
    if let Some(refusal) = examination.refusal {
        show::error(&refusal.into());
    }
    Ok(if ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn text(examination: &Examination) -> String {
    let mut lines = vec!["What this machine can do".to_owned()];
    examination
        .checks
        .iter()
        .for_each(|check| check_lines(check, &mut lines));
    if !examination.guarantees.is_empty() {
        lines.push("\nGuarantees of `stockade run` in this directory".into());
        for (guarantee, standing) in &examination.guarantees {
            lines.push(format!("{guarantee} {}", standing_text(standing)));
        }
    }
    if !examination.walls.is_empty() {
        lines.push("\nWalls for this directory and policy".into());
        for (wall, objections) in &examination.walls {
            wall_lines(*wall, objections, &mut lines);
        }
    }
    if let Some(fallback) = &examination.landlock_only {
        lines.push("\nWith this in your stockade.toml, which needs no namespaces".into());
        lines.push("  [process]\n  form = \"landlock-only\"".into());
        if !fallback.weaken.is_empty() {
            lines.insert(
                lines.len() - 1,
                format!("  weaken = {}", ids(&fallback.weaken)),
            );
        }
        for (guarantee, hold) in &fallback.guarantees {
            lines.push(format!("{guarantee} {}", hold_text(hold)));
        }
    }
    lines.push(match examination.ready {
        true => "\nCommands can run in this directory.\n".into(),
        false => "\nCommands cannot run in this directory under this policy.\n".into(),
    });
    lines.join("\n")
}

fn ids(guarantees: &[Guarantee]) -> String {
    let ids: Vec<String> = guarantees
        .iter()
        .map(|guarantee| format!("\"{guarantee}\""))
        .collect();
    format!("[{}]", ids.join(", "))
}

fn check_lines(check: &Check, lines: &mut Vec<String>) {
    match &check.finding {
        Finding::Works(seen) => lines.push(format!("  works  {:<15} {seen}", check.name)),
        Finding::Lacks(cause) => {
            lines.push(format!("  lacks  {:<15} {}", check.name, cause.reason));
            lines.push(format!("{:25}remedy: {}", "", cause.remedy));
            let text = cause.text.iter().flat_map(|text| text.lines());
            lines.extend(text.map(|line| format!("{:27}{line}", "")));
        }
    }
}

fn wall_lines(wall: Wall, objections: &[Unenforceable], lines: &mut Vec<String>) {
    if objections.is_empty() {
        lines.push(format!("  ready  {}", wall.word()));
    }
    for (number, item) in objections.iter().enumerate() {
        let head = match number {
            0 => format!("  cannot {:<15}", wall.word()),
            _ => " ".repeat(24),
        };
        lines.push(format!("{head} {}: {}", item.guarantee, item.reason));
        lines.push(format!("{:25}remedy: {}", "", item.remedy));
    }
}

fn standing_text(standing: &Standing) -> String {
    match standing {
        Standing::Planned(hold) => hold_text(hold),
        Standing::Cannot { reason, remedy } => format!("cannot: {reason}; remedy: {remedy}"),
    }
}

fn hold_text(hold: &Hold) -> String {
    match hold {
        Hold::Held { by, .. } => format!("held by {by}"),
        Hold::Partial { by, lost, .. } => format!("held in part by {by}; lost: {lost}"),
        Hold::NotHeld { because } => format!("not held: {because}"),
    }
}

fn json(examination: &Examination) -> Value {
    let guarantees = examination
        .guarantees
        .iter()
        .map(|(guarantee, standing)| match standing {
            Standing::Planned(hold) => hold_json(*guarantee, hold),
            Standing::Cannot { reason, remedy } => json!({
                "id": guarantee.id(), "status": "cannot", "reason": reason, "remedy": remedy,
            }),
        });
    let landlock_only = examination.landlock_only.as_ref().map(|fallback| {
        let holds = fallback.guarantees.iter();
        json!({
            "weaken": fallback.weaken.iter().map(|guarantee| guarantee.id()).collect::<Vec<_>>(),
            "guarantees": holds.map(|(one, hold)| hold_json(*one, hold)).collect::<Vec<_>>(),
        })
    });
    json!({
        "version": 1,
        "ready": examination.ready,
        "checks": examination.checks.iter().map(check_json).collect::<Vec<_>>(),
        "guarantees": guarantees.collect::<Vec<_>>(),
        "walls": examination.walls.iter().map(wall_json).collect::<Vec<_>>(),
        "landlock_only": landlock_only,
        "refusal": examination.refusal.as_ref().map(ToString::to_string),
    })
}

fn wall_json((wall, objections): &(Wall, Vec<Unenforceable>)) -> Value {
    let objections = objections.iter().map(|item| {
        json!({ "guarantee": item.guarantee.id(), "reason": item.reason, "remedy": item.remedy })
    });
    json!({
        "name": wall.word(),
        "ready": objections.len() == 0,
        "objections": objections.collect::<Vec<_>>(),
    })
}

fn check_json(check: &Check) -> Value {
    match &check.finding {
        Finding::Works(seen) => json!({ "name": check.name, "works": true, "seen": seen }),
        Finding::Lacks(cause) => json!({
            "name": check.name, "works": false, "reason": cause.reason, "remedy": cause.remedy,
            "text": cause.text,
        }),
    }
}

fn hold_json(guarantee: Guarantee, hold: &Hold) -> Value {
    match hold {
        Hold::Held { by, .. } => json!({ "id": guarantee.id(), "status": "held", "by": by }),
        Hold::Partial { by, lost, .. } => json!({
            "id": guarantee.id(), "status": "partial", "by": by, "lost": lost,
        }),
        Hold::NotHeld { because } => json!({
            "id": guarantee.id(), "status": "not-held", "because": because,
        }),
    }
}
