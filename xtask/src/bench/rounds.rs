//! Rounds in which every contender runs once, so that a machine that is busy for a moment is
//! busy for all.

use super::rows::{Figure, Row, milliseconds};
use super::statistics::Shuffler;
use anyhow::{Context, Result};
use std::time::Duration;

/// A row of times in milliseconds, from `rounds` rounds in random order; the first round is thrown
/// away. `one` runs the contender of that number.
pub(super) fn interleaved(
    name: &str,
    contenders: &[&'static str],
    rounds: usize,
    mut one: impl FnMut(usize) -> Result<Duration>,
) -> Result<Row> {
    let mut row = Row::new(name, "ms");
    row.figures = contenders
        .iter()
        .map(|contender| empty(contender))
        .collect();
    let mut shuffler = Shuffler::new();
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        shuffler.shuffle(&mut order);
        for index in order {
            let took = one(index).with_context(|| contenders[index].to_owned())?;
            if round > 0 {
                row.figures[index].rounds.push(milliseconds(took));
            }
        }
    }
    Ok(row)
}

/// A contender that was not measured yet.
pub(super) fn empty(contender: &'static str) -> Figure {
    Figure {
        contender,
        rounds: Vec::new(),
    }
}
