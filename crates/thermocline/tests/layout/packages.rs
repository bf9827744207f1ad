//! Dependencies between packages point down only, and every package obeys the workspace's lints.

use std::process::Command;

use serde_json::Value;

use crate::root;

/// Every package with its floor. A package may depend on packages of lower floors, never on one of its own floor or above:
/// `agent`, `model`, `rollout` and `manager` do not depend on each other.
const ROOMS: &[(&str, u8)] = &[
    // crates/ground: what every product stands on.
    ("thermocline-units", 0),
    ("thermocline-settings", 1),
    ("thermocline-daemon", 1),
    ("thermocline-store", 1),
    ("thermocline-parquet-guard", 1),
    // crates/node: one machine.
    ("thermocline-policy", 1),
    ("thermocline-kernel", 1),
    ("thermocline-config", 2),
    ("thermocline-trackers", 3),
    // Control laws on access traces: no kernel, no agent.
    ("thermocline-arena", 3),
    // Writes rules for the agent, which does not know it.
    ("thermocline-kubernetes", 3),
    ("thermocline-agent", 4),
    // Reads the agent's journals; the agent does not know it.
    ("thermocline-advise", 5),
    // Runs the whole agent.
    ("thermocline-sim", 5),
    // crates/fleet: many machines.
    ("thermocline-trace", 2),
    ("thermocline-model", 3),
    ("thermocline-rollout", 3),
    // crates/pool: memory that machines share.
    ("thermocline-pool-core", 1),
    ("thermocline-placement", 1),
    // A trace's stranded memory is measured by placing its VMs.
    ("thermocline-vmtrace", 2),
    ("thermocline-predict", 2),
    ("thermocline-manager", 3),
    // Uses the manager's messages.
    ("thermocline-pool-host", 4),
    ("thermocline-simulator", 4),
    // Reads the managers; replays its log by the simulator, which does not know it.
    ("thermocline-scheduler", 5),
    // A bench instrument.
    ("thermocline-emulator", 3),
    ("thermocline", 6),
    // Above everything: they may measure and feed any crate, and no crate may depend on them.
    ("thermocline-bench", 7),
    ("thermocline-fuzz", 7),
];

/// Packages without dependencies in this workspace, on which no package depends: the lab uses the product's binary and files.
const ALONE: &[&str] = &["thermocline-lab-guest"];

/// The packages of this workspace, as cargo lists them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().clone();
    assert!(packages.iter().any(|package| package["name"] == "thermocline"), "cargo metadata does not list this very package");
    packages
}

/// Forbidden dependencies of a package within the workspace, one sentence each.
fn judge(package: &str, dependencies: &[&str]) -> Vec<String> {
    let floor = |name: &str| ROOMS.iter().find(|(room, _)| *room == name).map(|&(_, floor)| floor);
    if ALONE.contains(&package) {
        return dependencies.iter().map(|to| format!("{package} must not depend on {to}")).collect();
    }
    let Some(own) = floor(package) else {
        return vec![format!("{package} has no floor: add it to ROOMS in {}", file!())];
    };
    let wrong = dependencies.iter().filter(|to| floor(to).is_none_or(|floor| floor >= own));
    wrong
        .map(|to| format!("{package} (floor {own}) must not depend on {to} (floor {:?}): dependencies point down only", floor(to)))
        .collect()
}

#[test]
fn forbidden_dependencies_are_found() {
    let check = |package: &str, dependencies: &[&str], complaints: usize| {
        assert_eq!(judge(package, dependencies).len(), complaints, "{package} {dependencies:?}");
    };
    check("thermocline-agent", &["thermocline-policy", "thermocline-config", "thermocline-kernel"], 0);
    check("thermocline-simulator", &["thermocline-pool-core", "thermocline-placement"], 0);
    check("thermocline-kernel", &["thermocline-units"], 0);
    check("thermocline-bench", &["thermocline-agent"], 0);
    check("thermocline-policy", &["thermocline-config"], 1);
    check("thermocline-kernel", &["thermocline-config", "thermocline-policy"], 2);
    check("thermocline-model", &["thermocline-agent", "thermocline-rollout"], 2);
    check("thermocline", &["thermocline-bench", "thermocline-lab-guest", "thermocline-bindings"], 3);
    check("thermocline-lab-guest", &["thermocline-policy"], 1);
    check("thermocline-new", &[], 1);
}

#[test]
fn dependencies_point_down_only() {
    let mut complaints = Vec::new();
    for package in packages() {
        let dependencies = package["dependencies"].as_array().unwrap();
        // A dependency by path is in this workspace, whether for the product, its tests or its build.
        let ours: Vec<_> = dependencies.iter().filter(|d| !d["path"].is_null()).filter_map(|d| d["name"].as_str()).collect();
        complaints.extend(judge(package["name"].as_str().unwrap(), &ours));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_package_obeys_the_workspace_lints() {
    for package in packages() {
        let manifest = package["manifest_path"].as_str().unwrap();
        let text = std::fs::read_to_string(manifest).unwrap();
        let obeys = text.split("\n[").any(|section| section.starts_with("lints]\nworkspace = true"));
        assert!(obeys, "{manifest} lacks `[lints]` with `workspace = true`, which denies unsafe code among other things");
    }
}
