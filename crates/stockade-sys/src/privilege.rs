//! Giving up what a process may do, for good, and seeing that it is gone.

use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
    capability_is_in_bounding_set, clear_ambient_capability_set,
    configure_capability_in_ambient_set, no_new_privs, remove_capability_from_bounding_set,
    set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
};

/// Keeps other processes of the user from reading this one's memory, by
/// ptrace(2), /proc or a core dump (PR_SET_DUMPABLE). execve(2) undoes it.
pub fn set_not_dumpable() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match dumpable_behavior()? {
        DumpableBehavior::NotDumpable => Ok(()),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Gains nothing from programs that it executes (PR_SET_NO_NEW_PRIVS).
pub fn set_no_new_privileges() -> io::Result<()> {
    set_no_new_privs(true)?;
    match no_new_privs()? {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Drops every capability of the calling thread from its effective, permitted,
/// inheritable, ambient and, where it may, bounding set (capabilities(7)).
pub fn drop_all_capabilities() -> io::Result<()> {
    keep_capabilities(CapabilitySet::empty())
}

/// Drops every capability but CAP_SETFCAP, which what is executed has as well.
/// Whoever has user id 0 can map it into a further user namespace only with this
/// one (user_namespaces(7)).
pub fn drop_all_but_mapping() -> io::Result<()> {
    keep_capabilities(CapabilitySet::SETFCAP)
}

/// `kept` is empty, or is kept in all sets.
fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: kept,
    };
    clear_ambient_capability_set()?;
    // Without these bits a process with user id 0 would gain what the bounding
    // set still allows at each exec; they also keep ambient ones from coming.
    // They can only be set with CAP_SETPCAP, so outside a user namespace of
    // one's own an ordinary user has none to drop.
    let held = capabilities(None)?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        if !kept.is_empty() {
            // An ambient one has to be inheritable first.
            let inheritable = kept;
            set_capabilities(
                None,
                CapabilitySets {
                    inheritable,
                    ..held
                },
            )?;
            configure_capability_in_ambient_set(kept, true)?;
        }
        set_capabilities_secure_bits(
            CapabilitiesSecureBits::NO_ROOT
                | CapabilitiesSecureBits::NO_ROOT_LOCKED
                | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
                | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
                | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
        )?;
        empty_bounding_set(kept)?;
    }
    set_capabilities(None, sets)?;
    if capabilities(None)? == sets {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// Drops every capability of the calling thread but the one that looks into
/// other processes (CAP_SYS_PTRACE): above all those that override what a
/// file's owner and mode say.
pub fn keep_only_tracing() -> io::Result<()> {
    let held = capabilities(None)?.permitted;
    let kept = CapabilitySet::SYS_PTRACE & held;
    clear_ambient_capability_set()?;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    if capabilities(None)? == sets {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

fn empty_bounding_set(kept: CapabilitySet) -> io::Result<()> {
    // The first number that the kernel does not know ends the list.
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if kept.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    match capability_is_in_bounding_set(CapabilitySet::SYS_ADMIN)? {
        false => Ok(()),
        true => Err(io::ErrorKind::PermissionDenied.into()),
    }
}
