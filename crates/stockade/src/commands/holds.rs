//! The part of `stockade approvals` that is about guarded names.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use stockade_engine::state::StateDirectory;
use stockade_policy::path::printable;
use stockade_sys::rustix::fs::OFlags;
use stockade_workspace::holds::{ApproveError, Holds, Meta, Operation};

use crate::exit::ExitCode;

/// Whether an id names a hold; those of waiting requests end in a number.
pub fn is_hold(id: &str) -> bool {
    let number = id.rsplit_once("-h").map(|(_, number)| number);
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Every hold of every workspace.
pub fn all(state: &StateDirectory) -> anyhow::Result<Vec<Meta>> {
    let mut found = Vec::new();
    for holds in Holds::all(state.as_fd())? {
        found.extend(holds.list()?);
    }
    Ok(found)
}

pub fn value(meta: &Meta) -> Value {
    let mut value = json!(meta);
    value["path"] = printable(&meta.path()).into();
    value
}

/// One hold and why it is there.
pub fn row(meta: &Meta) -> String {
    let what = match meta.operation {
        Operation::Write => "write",
        Operation::Link => "link",
        Operation::Remove => "removed",
    };
    let keys = match meta.keys.is_empty() {
        true => String::new(),
        false => printable(format!(", for {}", meta.keys.join(", ")).as_bytes()),
    };
    format!(
        "  {:<20} {what} {}\n  {:<20} {}: {}{keys}\n",
        printable(meta.id.as_bytes()),
        printable(&meta.path()),
        "",
        meta.kind,
        meta.reason,
    )
}

/// The holds that an id, or the beginning of one, names: exactly one.
fn find(state: &StateDirectory, id: &str) -> anyhow::Result<(Holds, Meta)> {
    let mut found = Vec::new();
    for holds in Holds::all(state.as_fd())? {
        let fitting = holds.list()?.into_iter().find(|meta| is_named(meta, id));
        if let Some(meta) = fitting {
            found.push((holds, meta));
        }
    }
    let shown = printable(id.as_bytes());
    match (found.pop(), found.pop()) {
        (Some(found), None) => Ok(found),
        (Some(_), Some(_)) => bail!("several holds have an id that starts with `{shown}`"),
        _ => bail!("there is no hold `{shown}`\n  remedy: `stockade approvals` shows them"),
    }
}

/// `RUN-hNUMBER`, of which the run may be shortened.
fn is_named(meta: &Meta, id: &str) -> bool {
    let (Some((run, number)), Some((prefix, wanted))) =
        (meta.id.rsplit_once('-'), id.rsplit_once('-'))
    else {
        return false;
    };
    number == wanted && !prefix.is_empty() && run.starts_with(prefix)
}

/// Puts what is held in place, or throws it away.
pub fn answer(
    state: &StateDirectory,
    id: &str,
    allow: bool,
    force: bool,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let (holds, meta) = find(state, id)?;
    let path = printable(&meta.path());
    let done = match allow {
        true => match holds.approve(&meta.id, force) {
            Ok(_) => Ok(format!("{path} is in place")),
            Err(error @ ApproveError::Changed(_)) => Err(error.to_string()),
            Err(error) => return Err(error.into()),
        },
        false => {
            holds.discard(&meta.id).context("cannot discard the hold")?;
            Ok(format!("what was held for {path} is gone"))
        }
    };
    let (is_done, text) = match &done {
        Ok(text) => (true, text),
        Err(text) => (false, text),
    };
    if as_json {
        println!(
            "{}",
            json!({"version": 1, "done": is_done, "message": text})
        );
    } else if is_done {
        println!("{text}");
    } else {
        crate::show::line(&format!("stockade: {text}"));
    }
    Ok(match is_done {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Shows what is held. On a terminal no byte of it does anything.
pub fn show(state: &StateDirectory, id: &str) -> anyhow::Result<ExitCode> {
    const SHOWN_BYTES_MAX: u64 = 1 << 20;
    let (holds, meta) = find(state, id)?;
    let mut content = Vec::new();
    std::fs::File::from(holds.content(&meta.id, OFlags::RDONLY)?)
        .take(SHOWN_BYTES_MAX)
        .read_to_end(&mut content)?;
    let mut output = std::io::stdout().lock();
    write!(output, "{}", row(&meta))?;
    for line in content.split(|&byte| byte == b'\n') {
        writeln!(output, "{}", printable(line))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_holds_are_told_from_those_of_requests() {
        assert!(is_hold("3f9k2m7x0abc-h1"));
        for other in ["3f9k2m7x0abc-4", "x-h", "-hx", "h1", "a-b-hz"] {
            assert!(!is_hold(other), "{other}");
        }
    }
}
