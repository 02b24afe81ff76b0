//! Finds out what this machine can hold, and why not.

use stockade_policy::plan::Plan;
use stockade_walls::WallError;

/// What a failed step says about the machine, and the remedy.
pub fn diagnose(_error: &WallError, _plan: &Plan) -> Option<String> {
    None
}
