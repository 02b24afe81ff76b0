//! What the way out of a run came to, in a few lines at its end.

use stockade_engine::policy_text::merged;
use stockade_engine::way_out::tally::{DeniedDestination, NetworkSummary};

use crate::show;

/// Most denied destinations that are named; the log has all.
const SHOWN_MAX: usize = 10;

/// Says what was denied, and which lines of policy would allow it.
pub fn say(network: &NetworkSummary) {
    for denied in network.denials.iter().take(SHOWN_MAX) {
        show::line(&format!("stockade: {}", row(denied)));
    }
    let more = (network.denials.len().saturating_sub(SHOWN_MAX)) as u64 + network.left_out;
    if more > 0 {
        show::line(&format!(
            "stockade: and {more} more: `stockade log --network` has them all"
        ));
    }
    if network.alerts > 0 {
        show::line(&format!(
            "stockade: {} alert(s) about credentials: `stockade log --network` says which",
            network.alerts
        ));
    }
    let grants = grants(network);
    if !grants.is_empty() {
        show::line("stockade: to allow what was denied, add to a policy file:");
        for line in grants.lines() {
            show::line(&format!("    {line}"));
        }
    }
}

/// The lines of policy that would have allowed what was denied.
fn grants(network: &NetworkSummary) -> String {
    merged(
        network
            .denials
            .iter()
            .filter_map(|denied| denied.smallest_grant.clone()),
    )
}

fn row(denied: &DeniedDestination) -> String {
    let request = denied
        .request
        .as_deref()
        .map_or_else(String::new, |request| format!(" ({request})"));
    let times = match denied.count {
        1 => String::new(),
        count => format!(", {count} times"),
    };
    format!(
        "{}{request} was denied{times}: {} [{}]",
        denied.destination, denied.reason, denied.code
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(destination: &str, grant: Option<&str>) -> DeniedDestination {
        DeniedDestination {
            destination: destination.into(),
            request: Some("GET /".into()),
            code: "not-allowed".into(),
            reason: "no rule names it".into(),
            rule: String::new(),
            origin: String::new(),
            smallest_grant: grant.map(str::to_owned),
            count: 2,
        }
    }

    #[test]
    fn what_was_denied_is_said_with_one_list_of_grants() {
        let network = NetworkSummary {
            denials: vec![
                denied("b.test:443", Some("[network]\nallow = [\"b.test\"]\n")),
                denied("a.test:443", Some("[network]\nallow = [\"a.test\"]\n")),
                denied("169.254.169.254:80", None),
            ],
            ..NetworkSummary::default()
        };
        assert_eq!(
            row(&network.denials[0]),
            "b.test:443 (GET /) was denied, 2 times: no rule names it [not-allowed]"
        );
        assert_eq!(
            grants(&network),
            "[network]\nallow = [\n    \"a.test\",\n    \"b.test\",\n]\n"
        );
    }
}
