//! What became of the layer that a run in review or discard mode wrote to.

use serde_json::{Value, json};
use stockade_engine::layers::LayerOutcome;
use stockade_engine::run::Planned;

use crate::show;

/// One or two lines at the end of a run.
pub fn say(layer: &LayerOutcome) {
    match layer {
        LayerOutcome::Unchanged => {
            show::line("stockade: the workspace is unchanged; nothing waits for review");
        }
        LayerOutcome::Waiting { run, usage } => {
            show::line(&format!(
                "stockade: {} files and {} directories wait in run {run}: `stockade diff {run}` \
                 shows them, `stockade apply {run}` or `stockade discard {run}` settles them",
                usage.files, usage.directories
            ));
        }
        LayerOutcome::Discarded => {
            show::line("stockade: what the command wrote to the workspace is discarded");
        }
        LayerOutcome::Failed { run, error } => show::line(&format!(
            "stockade: what the command wrote is in run {run}, but the store failed: {error}"
        )),
    }
}

/// The part of a report about the workspace.
pub fn report(planned: &Planned, layer: Option<&LayerOutcome>) -> Value {
    let mode = planned.plan.workspace_mode.0.word();
    let mut report = json!({ "mode": mode });
    let (state, run) = match layer {
        None => return report,
        Some(LayerOutcome::Unchanged) => ("unchanged", None),
        Some(LayerOutcome::Waiting { run, usage }) => {
            report["files"] = json!(usage.files);
            report["bytes"] = json!(usage.bytes);
            ("waiting", Some(run))
        }
        Some(LayerOutcome::Discarded) => ("discarded", None),
        Some(LayerOutcome::Failed { run, error }) => {
            report["error"] = json!(error);
            ("failed", Some(run))
        }
    };
    report["state"] = json!(state);
    report["run"] = json!(run);
    report
}
