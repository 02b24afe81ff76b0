//! What a run on macOS sees beside its grants: devices, and what every program
//! there needs to start. Whether it exists does not matter to a profile.

use crate::seatbelt::BASE;

use super::{View, built_in, private};
use crate::path::AbsolutePath;
use crate::plan::Grant;

pub(super) fn enter(view: &mut View) {
    private::enter_host_devices(view);
    for (place, access, reason) in BASE {
        let path = AbsolutePath::parse(place).expect("the table holds absolute paths");
        if view.grants.iter().any(|grant| grant.path == path) {
            continue;
        }
        view.grants.push(Grant {
            path,
            access,
            private: false,
            rule: built_in("built-in.macos", reason),
        });
    }
}
