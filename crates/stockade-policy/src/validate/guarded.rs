//! Guarded paths that a layer names.

use super::{Rules, Said, Validator};
use crate::document::List;
use crate::problem::{Fault, LayerKind, Located};
use crate::value::WrittenGuard;

impl Validator<'_> {
    /// A project's file may have been written by a run, or come with a clone:
    /// it adds to what is guarded and takes nothing out, trusted or not.
    pub(super) fn guarded(&mut self, key: &str, list: &List<WrittenGuard>) -> Said<WrittenGuard> {
        let is_project = matches!(self.layer.kind, LayerKind::Project(_));
        for located in list.iter().flatten().filter(|_| is_project) {
            self.refuse_removal(located);
        }
        Rules { layer: self.layer }.list(key, list)
    }

    fn refuse_removal(&mut self, located: &Located<WrittenGuard>) {
        let removed = match &located.value {
            WrittenGuard::Removed(pattern) => pattern.as_str(),
            WrittenGuard::Defaults(false) => "defaults",
            WrittenGuard::Defaults(true) | WrittenGuard::Pattern(_) => return,
        };
        let fault = Fault::new(
            "guard-weakened",
            format!("a project cannot take {removed:?} out of the guarded paths"),
        );
        let fault = fault.help("say it in your own policy, or leave it out");
        self.problems
            .push(fault.at(self.layer, located.place.as_ref()));
    }
}
