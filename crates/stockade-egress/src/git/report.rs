//! Words with which a refused operation reaches whoever called git.

use stockade_policy::network::judge::Denial;

use super::commands::{Commands, Report, SideBand};
use super::packet::{self, Band};

/// How many characters of a reason are put into one line of a protocol.
const LINE_CHARACTERS_MAX: usize = 400;

/// Why, and how to allow it; several lines.
pub fn message(denial: &Denial) -> String {
    let mut text = format!("stockade: denied ({}): {}\n", denial.code, denial.reason);
    if let Some(grant) = &denial.smallest_grant {
        text.push_str("To allow it, add to the policy:\n");
        for line in grant.lines() {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

/// The same on one line.
pub fn line(denial: &Denial) -> String {
    let reason: String = denial
        .reason
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LINE_CHARACTERS_MAX)
        .collect();
    format!("denied by policy ({}): {reason}", denial.code)
}

/// What `git receive-pack` would answer to say that nothing was updated
/// (gitprotocol-pack(5), "Report Status"); `None` when the client could not
/// tell it from success.
pub fn refusal(commands: &Commands, denial: &Denial) -> Option<Vec<u8>> {
    let mut output = Vec::new();
    let side_band = commands.side_band == SideBand::Wanted;
    if side_band {
        packet::write_band(&mut output, Band::Progress, message(denial).as_bytes());
    }
    match commands.report {
        Report::NotWanted if side_band => {
            packet::write_band(&mut output, Band::Error, line(denial).as_bytes());
        }
        Report::NotWanted => return None,
        Report::Wanted => {
            let status = status(commands, denial);
            if side_band {
                packet::write_band(&mut output, Band::Data, &status);
                packet::write_flush(&mut output);
            } else {
                output.extend_from_slice(&status);
            }
        }
    }
    Some(output)
}

fn status(commands: &Commands, denial: &Denial) -> Vec<u8> {
    // What is wrong with the pack is said of the pack, the rest of the
    // references.
    let unpack = match denial.code {
        "git-ref" | "git-push" => "ok".to_owned(),
        _ => line(denial),
    };
    let mut output = Vec::new();
    packet::write_data(&mut output, format!("unpack {unpack}\n").as_bytes());
    for update in &commands.updates {
        let line = format!("ng {} {}\n", update.name, line(denial));
        packet::write_data(&mut output, line.as_bytes());
    }
    packet::write_flush(&mut output);
    output
}
