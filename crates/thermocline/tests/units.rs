//! The systemd units in `deploy/`: what they start exists, and what they promise of guests holds.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::PathBuf;
use std::process::Command;

const UNITS: [&str; 6] = [
    "thermocline-pool-manager.service",
    "thermocline-pool-host.service",
    "thermocline-pool-scheduler.service",
    "thermocline-pool-memory.service",
    "thermocline-agent.service",
    "thermocline-network.service",
];

fn unit(name: &str) -> String {
    std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)).unwrap()
}

/// Units that end, which their timers start.
const ONCE: [&str; 4] = [
    "thermocline-pool-models.service",
    "thermocline-pool-lives.service",
    "thermocline-pool-rollout.service",
    "thermocline-pool-training.service",
];
const TIMERS: [&str; 4] =
    ["thermocline-pool-models.timer", "thermocline-pool-lives.timer", "thermocline-pool-rollout.timer", "thermocline-pool-training.timer"];

/// What this program does not do itself: it is installed from the wheel, and the unit of the training starts it first.
const LEARN: &str = "/opt/thermocline/bin/thermocline-learn";

/// By which the agent reaches the network process.
const SOCKET: &str = "thermocline-network.socket";

/// The values of a key, in their order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.split_once('=')).filter(|(found, _)| *found == key).map(|(_, value)| value).collect()
}

#[test]
fn what_units_start_is_a_command_of_this_program() {
    for name in UNITS.into_iter().chain(ONCE) {
        let text = unit(name).replace("\\\n", "");
        let starts: Vec<&str> = values(&text, "ExecStart").into_iter().filter(|start| !start.starts_with(LEARN)).collect();
        let [start] = starts[..] else { panic!("{name}: {text}") };
        // Values of the environment are in braces. Options of it are not, and come last.
        let mut words = start.split_whitespace().filter(|word| !word.starts_with('$') || word.starts_with("${"));
        assert_eq!(words.next(), Some("/usr/bin/thermocline"), "{name}");
        // What comes before is read first, and refused if it is not known.
        let output = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(words).arg("--help").output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        // Each service notifies readiness.
        assert_eq!(values(&text, "Type"), [if ONCE.contains(&name) { "oneshot" } else { "notify" }], "{name}");
    }
}

#[test]
fn the_agent_has_no_network_and_its_socket_is_the_one_that_is_opened() {
    let (agent, socket) = (unit(UNITS[4]), unit(SOCKET));
    let [path] = values(&socket, "ListenStream")[..] else { panic!("{socket}") };
    assert!(values(&agent, "ExecStart")[0].contains(&format!("agent.network={path}")), "{path}");
    assert_eq!((values(&agent, "PrivateNetwork"), values(&agent, "RestrictAddressFamilies")), (vec!["yes"], vec!["AF_UNIX"]));
}

#[test]
fn guests_outlive_their_hosts_service() {
    let text = unit(UNITS[1]);
    for (key, value) in [("KillMode", "process"), ("RuntimeDirectoryPreserve", "yes"), ("OOMPolicy", "continue")] {
        assert_eq!(values(&text, key), [value], "{key}");
    }
    // Files of the service's own would be others for the next run, and for guests of the one before. Protected ones are the same.
    // Nothing of a guest is in /tmp: scenario `confined` restarts the service under a guest.
    for key in ["PrivateDevices", "DynamicUser"] {
        assert!(values(&text, key).is_empty(), "{key}");
    }
}

/// Keys that systemd knows since 253 and 254, and Debian 12 has 252.
const NEWER: [&str; 2] = ["'OpenFile'", "'DelegateSubgroup'"];

#[test]
fn systemd_knows_every_line() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        println!("skipped: systemd-analyze is not installed");
        return;
    };
    assert!(version.status.success());
    let directory = tempfile::tempdir().unwrap();
    for name in TIMERS.into_iter().chain([SOCKET, "thermocline.slice"]) {
        std::fs::write(directory.path().join(name), unit(name)).unwrap();
    }
    for name in UNITS.into_iter().chain(ONCE).chain(TIMERS).chain([SOCKET]) {
        // The program need not be installed to be verified.
        let program = env!("CARGO_BIN_EXE_thermocline");
        let text = unit(name).replace(LEARN, program).replace("/usr/bin/thermocline", program);
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let unknown = said.lines().filter(|line| line.contains(name) && !NEWER.iter().any(|key| line.contains(key)));
        assert!(output.status.success() && unknown.count() == 0, "{name}: {said}");
    }
}
