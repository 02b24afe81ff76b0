//! The policy parser: any bytes give a document or at least one problem, and never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_policy::document;
use stockade_policy::problem::{Layer, LayerKind, Trust};

fuzz_target!(|bytes: &[u8]| {
    // The agent can write the project's file, so this is the layer that an attacker holds.
    let layer = Layer::new(LayerKind::Project(Trust::Untrusted), "stockade.toml");
    if let Err(problems) = document::parse(bytes, &layer) {
        assert!(!problems.is_empty(), "a refusal names at least one problem");
        for problem in &problems {
            let inside = problem
                .span
                .as_ref()
                .is_none_or(|span| span.end <= bytes.len());
            assert!(inside, "a problem lies in the source: {problem}");
        }
    }
});
