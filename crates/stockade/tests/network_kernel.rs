//! What the kernel does for a sandbox with a way out, seen through the product;
//! `stockade-walls` tests the same in detail with a plan written by hand.

use std::process::Stdio;

use stockade_testkit::{Finished, World};

fn world() -> World {
    let world = World::new();
    world.policy("[network]\nallow = [\"origin.test\"]\n");
    world
}

/// Names of the plan's steps that open the way out.
fn steps(world: &World) -> Vec<String> {
    let mut command = world.stockade();
    command.args(["explain", "--json"]).stdin(Stdio::null());
    let explained = Finished::of(command.output().expect("stockade starts")).ok();
    let plan: serde_json::Value = serde_json::from_str(&explained).expect("a plan is JSON");
    let steps = plan["steps"].as_array().expect("a plan has steps").iter();
    let names = steps.map(|step| step["name"].as_str().expect("a name").to_owned());
    names
        .filter(|name| {
            ["network.", "egress."]
                .iter()
                .any(|part| name.starts_with(part))
        })
        .collect()
}

#[test]
fn no_step_of_the_way_out_may_fail() {
    let world = world();
    let steps = steps(&world);
    for wanted in ["network.routes", "network.redirect", "network.listen"] {
        assert!(steps.iter().any(|step| step == wanted), "{steps:?}");
    }
    for step in steps {
        let finished = world.run(&["--fail-step", &step], &["touch", "marker"]);
        let finished = finished.expect_code(125);
        assert!(finished.stderr.contains(&step), "{}", finished.stderr);
        assert!(!world.project.join("marker").exists(), "{step}");
    }
}

#[test]
fn the_command_has_no_socket_of_the_way_out() {
    let listing = world().sh("ls -l /proc/self/fd").ok();
    assert!(!listing.contains("socket:"), "{listing}");
}

#[test]
fn what_is_not_named_is_closed_or_refused_at_once() {
    let script = "for to in 192.0.2.1/443 198.51.100.1/22; do \
                  if exec 3<>/dev/tcp/$to; then cat <&3; echo $to over; fi; done; \
                  exec 4<>/dev/udp/192.0.2.1/443 && echo x >&4; cat <&4 2>&1; echo end";
    let world = world();
    let said = world.run(&[], &["bash", "-c", script]).ok();
    assert!(
        said.starts_with("192.0.2.1/443 over\n198.51.100.1/22 over\n"),
        "{said}"
    );
    assert!(said.contains("refused") && said.ends_with("end"), "{said}");
}
