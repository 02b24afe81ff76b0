//! What the tests of machines share: a world with a machine image and a saved
//! machine, and which machines run.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use stockade_testkit::machine::{QEMU, kernel_package};
use stockade_testkit::tools::soon;
use stockade_testkit::{Finished, World, processes_with};

/// What is given up by name: exact limits, where this user has no control group.
pub const POLICY: &str = "wall = \"microvm\"\nweaken = [\"PR7\"]\n[limits]\nmemory = \"556MiB\"\n";

pub fn stockade(world: &World, arguments: &[&str]) -> Finished {
    Finished::of(world.stockade().args(arguments).output().unwrap())
}

/// A world with a machine image and a saved machine. Both are made once: to unpack
/// half a gigabyte takes longer than to boot, and to boot longer than to go on.
pub fn with_image(test: &str) -> Option<World> {
    let package = kernel_package(test)?;
    let world = World::new();
    give_image(&world, &package);
    Some(world)
}

/// Gives a world the policy and the image.
pub fn give_image(world: &World, package: &Path) {
    static IMAGE: OnceLock<(World, PathBuf)> = OnceLock::new();
    let (_, image) = IMAGE.get_or_init(|| {
        remove_images_of_the_dead();
        let world = World::new();
        world.write(IMAGE_OF, std::process::id().to_string());
        let package = package.to_str().unwrap();
        let built = stockade(
            &world,
            &["vm", "build", "--json", "--kernel-package", package],
        )
        .ok();
        let built: Value = serde_json::from_str(&built).unwrap();
        assert!(
            built["image"]["release"]
                .as_str()
                .unwrap()
                .starts_with("6."),
            "{built}"
        );
        world.policy(POLICY);
        let run = world.run(&[], &["true"]).expect_code(0);
        let said = "booted for the first time";
        assert!(run.stderr.contains(said), "{}", run.stderr);
        assert!(!run.stderr.contains("was not saved"), "{}", run.stderr);
        let image = world.home.join(".local/state/stockade/machines");
        (world, image)
    });
    world.policy(POLICY);
    let state = world.home.join(".local/state/stockade");
    fs::create_dir_all(&state).unwrap();
    let copied = Command::new("cp").arg("-a").arg(image).arg(&state).status();
    assert!(copied.unwrap().success());
    let closed = Command::new("chmod").arg("700").arg(&state).status();
    assert!(closed.unwrap().success());
}

/// Beside the home of a world with an image: the process whose tests it is for.
/// What is kept for all tests of a process is never dropped by it.
const IMAGE_OF: &str = "image-of";

/// Removes what earlier test processes kept.
fn remove_images_of_the_dead() {
    let worlds = fs::read_dir("/var/tmp").unwrap().flatten();
    for world in worlds.map(|entry| entry.path()) {
        let Ok(process) = fs::read_to_string(world.join("home").join(IMAGE_OF)) else {
            continue;
        };
        if !Path::new("/proc").join(process).exists() {
            // Another process may be about the same.
            let _left = fs::remove_dir_all(world).is_err();
        }
    }
}

/// No machine of this world runs.
pub fn nothing_is_left(world: &World) {
    assert!(soon(|| machines_of(world).is_empty()));
}

/// The machines whose view has the project of this world for its directory.
pub fn machines_of(world: &World) -> Vec<u32> {
    let machines = processes_with(QEMU).into_iter();
    let directory = |process| {
        let at = fs::read_link(format!("/proc/{process}/cwd")).ok()?;
        // With an image, the view is below QEMU's own root.
        Some(match at.strip_prefix("/container") {
            Ok(below) => Path::new("/").join(below),
            Err(_) => at,
        })
    };
    machines
        .filter(|&process| directory(process).is_some_and(|at| at.starts_with(&world.project)))
        .collect()
}

/// A machine boots for seconds, and longer on a busy host.
pub fn soon_after_boot(mut condition: impl FnMut() -> bool) -> bool {
    (0..10).any(|_| soon(&mut condition))
}
