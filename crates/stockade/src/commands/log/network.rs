//! `stockade log --network`: one row for each decision and each end of a
//! connection, with what matters about the way out.

use stockade_engine::events::network::{NetworkDecision, NetworkEnd};
use stockade_engine::events::{Event, Record};
use stockade_policy::path::printable;

/// Whether an event belongs into this view.
pub fn is_about(event: &Event) -> bool {
    matches!(
        event,
        Event::NetworkDecided(_)
            | Event::CredentialUsed { .. }
            | Event::NetworkAlert { .. }
            | Event::NetworkClosed(_)
            | Event::NetworkLost { .. }
            | Event::Approval(_)
            | Event::PolicyReloaded { .. }
    )
}

/// The first line of the table.
pub fn head() -> String {
    row([
        "TIME",
        "RUN",
        "VERDICT",
        "DESTINATION",
        "REQUEST",
        "BYTES",
        "CREDENTIAL",
        "RULE",
    ])
}

/// One record of this view.
pub fn record_row(record: &Record) -> String {
    let run = record
        .run
        .as_ref()
        .map_or_else(|| "-".to_owned(), ToString::to_string);
    let cells = cells(&record.event).map(|text| printable(text.as_bytes()));
    let [verdict, destination, request, bytes, credential, rule] =
        cells.each_ref().map(String::as_str);
    row([
        &record.time,
        &run,
        verdict,
        destination,
        request,
        bytes,
        credential,
        rule,
    ])
}

/// The columns `OBJECT` and `RULE` of the view of everything.
pub fn describe(event: &Event) -> (String, String) {
    let [verdict, destination, request, bytes, credential, rule] = cells(event);
    let object = [verdict, destination, request, bytes, credential]
        .into_iter()
        .filter(|cell| cell != "-")
        .collect::<Vec<_>>()
        .join(" ");
    (object, rule)
}

/// Verdict, destination, request, bytes, credential, rule or reason.
fn cells(event: &Event) -> [String; 6] {
    let none = || "-".to_owned();
    match event {
        Event::NetworkDecided(decision) => decided(decision),
        Event::NetworkClosed(end) => closed(end),
        Event::CredentialUsed {
            credential,
            destination,
            ..
        } => [
            "attached".to_owned(),
            destination.clone(),
            none(),
            none(),
            credential.clone(),
            none(),
        ],
        Event::NetworkAlert {
            code,
            destination,
            detail,
            ..
        } => [
            "ALERT".to_owned(),
            destination.clone(),
            none(),
            none(),
            none(),
            format!("{code}: {detail}"),
        ],
        Event::NetworkLost { reason } => [
            "lost".to_owned(),
            none(),
            none(),
            none(),
            none(),
            format!("no network from here on: {reason}"),
        ],
        Event::Approval(approval) => [
            approval.answer.clone(),
            approval.destination.clone(),
            none(),
            none(),
            none(),
            format!("answered on the {}", approval.by),
        ],
        Event::PolicyReloaded {
            generation,
            refused,
        } => {
            let (verdict, why) = match generation {
                Some(generation) => ("reloaded", format!("generation {generation}")),
                None => ("kept", format!("the new rules were refused: {refused}")),
            };
            [verdict.to_owned(), none(), none(), none(), none(), why]
        }
        _ => [none(), none(), none(), none(), none(), none()],
    }
}

fn decided(decision: &NetworkDecision) -> [String; 6] {
    let rule = match decision.reason.is_empty() {
        true => format!("{} ({})", decision.rule, decision.origin),
        false if decision.rule.is_empty() => format!("{}: {}", decision.code, decision.reason),
        false => format!(
            "{}: {} [{}, {}]",
            decision.code, decision.reason, decision.rule, decision.origin
        ),
    };
    [
        decision.verdict.name().to_owned(),
        decision.destination.clone(),
        decision.request.clone().unwrap_or_else(|| "-".to_owned()),
        "-".to_owned(),
        "-".to_owned(),
        rule,
    ]
}

fn closed(end: &NetworkEnd) -> [String; 6] {
    let credentials = match end.credentials.as_slice() {
        [] => "-".to_owned(),
        names => names.join(","),
    };
    [
        "closed".to_owned(),
        end.destination.clone(),
        format!("{} requests, {} ms", end.requests, end.duration_ms),
        format!("{} up {} down", end.uploaded_bytes, end.downloaded_bytes),
        credentials,
        end.rule.clone(),
    ]
}

fn row(cells: [&str; 8]) -> String {
    let [
        time,
        run,
        verdict,
        destination,
        request,
        bytes,
        credential,
        rule,
    ] = cells;
    format!(
        "{time:<24}  {run:<12}  {verdict:<8}  {destination:<32}  {request:<28}  {bytes:<20}  \
         {credential:<12}  {rule}"
    )
    .trim_end()
    .to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use stockade_engine::events::network::Verdict;
    use stockade_engine::events::{Hash, VERSION, time_text};

    use super::*;

    #[test]
    fn a_row_says_what_was_asked_and_which_rule_spoke() {
        let record = Record {
            version: VERSION,
            seq: 1,
            time: time_text(SystemTime::UNIX_EPOCH),
            run: None,
            event: Event::NetworkDecided(NetworkDecision {
                connection: 1,
                entry: "connect".into(),
                verdict: Verdict::Denied,
                destination: "a.test:443\u{1b}".into(),
                request: Some("PUT /x".into()),
                rule: "network.rule[0]".into(),
                origin: "stockade.toml:3".into(),
                generation: 0,
                code: "method".into(),
                reason: "PUT is not allowed".into(),
                smallest_grant: None,
            }),
            previous: Hash::ZERO,
        };
        let row = record_row(&record);
        let cells: Vec<&str> = row.split("  ").filter(|cell| !cell.is_empty()).collect();
        assert_eq!(
            cells[2..]
                .iter()
                .map(|cell| cell.trim())
                .collect::<Vec<_>>(),
            [
                "denied",
                "a.test:443\\u{1b}",
                "PUT /x",
                "-",
                "-",
                "method: PUT is not allowed [network.rule[0], stockade.toml:3]"
            ]
        );
    }
}
