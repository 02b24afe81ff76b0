//! The hostile corpus: small programs that each try to break one guarantee,
//! the bait that they are after, and the table of what became of them.
//!
//! `stockade doctor --attack` runs it on the user's machine and the tests run
//! the same rows. The crate must not know how a wall is built: an attack only
//! looks at what it obtained.

pub mod bait;
mod corpus;
mod inside;
mod runner;
mod stage;
mod table;
mod verdict;
mod within;

pub use corpus::guarded::is_planted;
pub use inside::{ON_TERMINAL, inside};
pub use runner::{SMALL, Start, run};
pub use stage::{SmallLimits, Stage};
pub use table::{Row, Table};
pub use verdict::Verdict;

use stockade_policy::guarantee::Guarantee;

/// One hostile program.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Stable id, for example `fs1-read-beside`.
    pub id: &'static str,
    /// The promise that it tries to break.
    pub guarantee: Guarantee,
    /// What it tries, in one line.
    pub summary: &'static str,
    /// The kind of sandbox that it has to be tried in.
    pub needs: Needs,
    /// How it is shown that the attack works where nothing stops it.
    pub proof: Proof,
    /// Tries it once, in a process of its own.
    pub run: fn(&Stage) -> Verdict,
}

/// The kind of sandbox that an attack has to be tried in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// The default policy; many attacks share one sandbox.
    Ordinary,
    /// A controlling terminal outside, which is the sandbox's standard input.
    Terminal,
    /// A sandbox of its own with the limits of [`SmallLimits`].
    SmallLimits,
    /// Two sandboxes, one after the other, in the same workspace.
    TwoRuns,
    /// A way out to the hosts of [`bait::way_out`], with a credential bound.
    WayOut,
}

/// How it is shown that an attack is not a dud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It succeeds and does no harm when run plainly, as root.
    Plain,
    /// As `Plain`, in mount and network namespaces of its own.
    Apart,
    /// As `Plain`, where the kernel has the thing at all.
    WhereKernelHasIt,
    /// It is not run without a sandbox, for this reason.
    Never(&'static str),
}

/// The whole corpus, in the order of the guarantees.
pub fn all() -> &'static [Attack] {
    corpus::all()
}

/// One attack by its id.
pub fn find(id: &str) -> Option<&'static Attack> {
    all().iter().find(|attack| attack.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_unique_and_name_their_guarantee() {
        let mut seen = BTreeSet::new();
        for attack in all() {
            assert!(seen.insert(attack.id), "{} occurs twice", attack.id);
            let prefix = format!("{}-", attack.guarantee.id().to_lowercase());
            assert!(
                attack.id.starts_with(&prefix),
                "{} is not of {prefix}",
                attack.id
            );
        }
    }

    #[test]
    fn every_guarantee_but_that_of_snapshots_is_attacked() {
        let attacked: BTreeSet<_> = all().iter().map(|attack| attack.guarantee).collect();
        use Guarantee::*;
        for guarantee in [
            FS1, FS2, FS3, FS5, FS6, PR1, PR2, PR3, PR4, PR5, PR6, PR7, PR8, NT1, NT2, NT3, NT4,
            NT5, NT6, CR1, CR2, CR3, EP1, AU1, AU2,
        ] {
            assert!(attacked.contains(&guarantee), "nothing attacks {guarantee}");
        }
    }
}
