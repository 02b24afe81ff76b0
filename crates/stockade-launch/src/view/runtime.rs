//! The root of an OCI runtime, or of QEMU, with the finished view below it.
//!
//! Both need what they are linked to, and a runtime a process table that nothing
//! covers (mount_namespaces(7)) and control groups to look at. None of that is
//! the command's business, so they have a root apart from the view, and the view
//! needs nothing of it: not even the host's libraries, where it is an image's.

use std::io;
use std::os::fd::AsFd;

use stockade_sys::mount::{self, Attributes, Reach};
use stockade_sys::rustix::fs::{CWD, FileType, Mode, lstat, mkdirat, readlink, stat};
use stockade_sys::rustix::mount::{MountAttrFlags, MoveMountFlags, OpenTreeFlags, move_mount};
use stockade_sys::rustix::process::fchdir;

use super::{DISCARDED, Make, View, attach, clone_tree, filesystem, host_device};

/// Where the host keeps programs and what they are linked to; links are made
/// again as they are.
const SYSTEM: [&str; 7] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];
/// Where the dynamic linker finds libraries in other places.
const LINKER: &str = "/etc/ld.so.cache";
/// The runtime's own program.
const PROGRAM: &[u8] = b"/runtime";
/// The bundle (runtime-spec 1.0.2, bundle.md).
const CONFIG: &[u8] = b"/bundle/config.json";
/// The runtime's state, in the private storage.
const STATE: &[u8] = b"/tmp";
/// Where runtimes expect control groups.
const GROUPS: &[u8] = b"/sys/fs/cgroup";

impl View {
    /// Puts the view, which is finished, below a root with the runtime
    /// `program`; `path` is where. The next step enters that root.
    pub(super) fn runtime_root(
        &mut self,
        program: &[u8],
        config: &[u8],
        path: &[u8],
    ) -> io::Result<String> {
        let state = self.stored_name();
        mkdirat(self.storage()?, state.as_str(), Mode::from_raw_mode(0o700))?;
        let state = self.clone_stored(&state)?;
        self.move_below(path)?;
        self.bind(program, PROGRAM, false, false)?;
        self.file(CONFIG, config, 0o400, true)?;
        self.attach_at(&state, STATE, Make::Parent)?;
        self.kernel_interfaces()?;
        self.foreign.push(path.to_vec());
        Ok(format!(
            "the view is below it; a bundle, configured by {} bytes",
            config.len()
        ))
    }

    /// Puts the view below a root with nothing but what QEMU is linked to and a
    /// process table, by which its file server changes modes.
    pub(super) fn machine_root(&mut self, devices: &[String], path: &[u8]) -> io::Result<String> {
        // Those of the host are covered once the view has moved.
        let devices = devices.iter().map(|name| host_device(name));
        let devices: Vec<_> = devices.collect::<io::Result<_>>()?;
        self.move_below(path)?;
        for (place, device) in &devices {
            self.attach_at(device, place.as_bytes(), Make::File)?;
        }
        // The rules about it are the plan's, whatever of it the host has.
        self.make(b"/etc", Make::Parent)?;
        self.proc(false, true)?;
        self.foreign.push(path.to_vec());
        Ok("the view is below it".into())
    }

    /// Makes a new root, with the host's programs, and moves the view below it.
    fn move_below(&mut self, path: &[u8]) -> io::Result<()> {
        let view = self
            .root
            .take()
            .ok_or_else(|| io::Error::other("no view yet"))?;
        fchdir(&view)?;
        self.discard_storage(view.as_fd())?;
        mount::set_attributes(view.as_fd(), Attributes::READ_ONLY, Reach::One)?;
        let null = clone_tree(view.as_fd(), "dev/null", OpenTreeFlags::empty())?;

        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let options = [("size", "16m".to_string()), ("mode", "0755".into())];
        let root = filesystem("tmpfs", &options, attributes)?;
        // Out of the way of the view, which moves below it; then the new root
        // takes the view's place on top of the host's.
        attach(root.as_fd(), CWD, DISCARDED)?;
        mkdirat(&root, super::relative(path), Mode::from_raw_mode(0o755))?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&view, "", &root, super::relative(path), flags)?;
        attach(root.as_fd(), CWD, "/")?;
        self.root = Some(root);
        self.foreign.clear();
        self.private.clear();
        self.attach_at(&null, b"/dev/null", Make::File)?;
        self.host_system()
    }

    /// What the host's programs are linked to.
    fn host_system(&mut self) -> io::Result<()> {
        for place in SYSTEM {
            let Ok(found) = lstat(place) else { continue };
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Symlink => {
                    let target = readlink(place, Vec::new())?;
                    self.symlink(place.as_bytes(), target.as_bytes())?;
                }
                _ => drop(self.bind(place.as_bytes(), place.as_bytes(), false, true)?),
            }
        }
        if stat(LINKER).is_ok() {
            self.bind(LINKER.as_bytes(), LINKER.as_bytes(), false, false)?;
        }
        Ok(())
    }

    /// The process table of the launcher's pid namespace, which can be written
    /// because the runtime writes about its own processes there, and the control
    /// group namespace, which cannot: limits are the supervisor's business.
    fn kernel_interfaces(&mut self) -> io::Result<()> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let processes = filesystem("proc", &[], attributes)?;
        self.attach_at(&processes, b"/proc", Make::Parent)?;
        let read_only = attributes | MountAttrFlags::MOUNT_ATTR_RDONLY;
        let groups = filesystem("cgroup2", &[], read_only)?;
        self.attach_at(&groups, GROUPS, Make::Parent)
    }
}
