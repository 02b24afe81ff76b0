//! Collects what cannot be enforced, what is lost and what must be said, so
//! that a user hears everything at once.

use std::collections::BTreeMap;

use crate::guarantee::Guarantee;
use crate::plan::Unenforceable;
use crate::policy::Policy;

/// Everything found while compiling one policy.
pub(super) struct Findings<'a> {
    policy: &'a Policy,
    refused: Vec<Unenforceable>,
    lost: BTreeMap<Guarantee, Vec<String>>,
    notes: Vec<String>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(policy: &'a Policy) -> Self {
        Self {
            policy,
            refused: Vec::new(),
            lost: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Refuses whatever the policy weakens: no weakening can make it sound.
    pub(super) fn refuse(
        &mut self,
        guarantee: Guarantee,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.refused.push(Unenforceable {
            guarantee,
            wall: self.policy.wall.0.word(),
            reason: reason.into(),
            remedy: remedy.into(),
        });
    }

    /// Refuses unless the policy weakens the guarantee by name; then it is
    /// recorded as lost.
    pub(super) fn demand(
        &mut self,
        guarantee: Guarantee,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let reason = reason.into();
        match self.weakened(guarantee) {
            true => self.lose(guarantee, reason),
            false => self.refuse(guarantee, reason, remedy),
        }
    }

    /// Records a part of a guarantee that this plan does not hold.
    pub(super) fn lose(&mut self, guarantee: Guarantee, what: impl Into<String>) {
        self.lost.entry(guarantee).or_default().push(what.into());
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub(super) fn weakened(&self, guarantee: Guarantee) -> bool {
        self.policy
            .weaken
            .iter()
            .any(|(weakened, _)| *weakened == guarantee)
    }

    /// What was lost of a guarantee, as one text.
    pub(super) fn lost(&self, guarantee: Guarantee) -> Option<String> {
        self.lost.get(&guarantee).map(|parts| parts.join("; "))
    }

    /// The notes of a plan, or all refusals in the order of the design.
    pub(super) fn into_notes(mut self) -> Result<Vec<String>, Vec<Unenforceable>> {
        if !self.refused.is_empty() {
            self.refused.sort_by_key(|refusal| refusal.guarantee);
            self.refused.dedup();
            return Err(self.refused);
        }
        for (guarantee, rule) in &self.policy.weaken {
            let effect = match self.lost(*guarantee) {
                Some(lost) => format!("lost here: {lost}"),
                None => "this run needs no weakening of it".to_owned(),
            };
            self.notes.push(format!(
                "{guarantee} is weakened by {}: {effect}",
                rule.origin
            ));
        }
        Ok(self.notes)
    }
}
