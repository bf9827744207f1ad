//! The manager's commands, as a user gives them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn thermocline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = thermocline(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A manager, and where it listens.
fn serve(config: &Path) -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_thermocline"))
        .args(["pool", "manager", "--config", config.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines.next().unwrap().unwrap();
        if let Some((_, address)) = line.rsplit_once(" on 127.0.0.1:") {
            break format!("https://localhost:{address}");
        }
    };
    std::thread::spawn(move || lines.for_each(drop));
    (child, address)
}

#[test]
fn two_commands_start_a_manager_that_reports_its_status() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let made = json(&["--format", "json", "pool", "certificates", &path("certs"), "--host", "a"]);
    assert_eq!(made["made"].as_array().unwrap().len(), 4);
    let config = "listen = \"127.0.0.1:0\"\nledger = \"state/ledger.redb\"\npool_dir = \"pool\"\nslice_size = \"128MiB\"\n\
                  emcs = [{ slices = 3 }, { slices = 2 }]\nhosts = [\"a\"]\noperators = [\"operator\"]\nbuffer_slices = 1\n\
                  [tls]\ncert = \"certs/manager.pem\"\nkey = \"certs/manager.key\"\nclient_ca = \"certs/ca.pem\"\n";
    std::fs::write(path("pool.toml"), config).unwrap();
    let (mut child, url) = serve(&directory.path().join("pool.toml"));
    let (operator, host) = (path("certs/operator"), path("certs/a"));
    let status = ["--format", "json", "pool", "status", "--manager", &url, "--identity", &operator];
    assert_eq!(json(&status)["slices"]["free"], 5);
    let text = String::from_utf8(thermocline(&status[2..]).stdout).unwrap();
    assert!(text.contains("5 slices of 128.0 MiB; a VM can get 3; 1 are kept free"), "{text}");
    json(&["--format", "json", "pool", "emc", "failed", "0", "--manager", &url, "--identity", &operator]);
    assert_eq!(json(&status)["emcs"][0]["works"], false);
    let refused = thermocline(&["pool", "emc", "repaired", "0", "--manager", &url, "--identity", &host]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not for an operator"), "{refused:?}");
    // SIGTERM ends it, and well.
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(child.wait().unwrap().success());
    let gone = thermocline(&status);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no pool manager answers"), "{gone:?}");
    // The memory file system is lost with the machine: it must be created again by hand.
    std::fs::remove_dir_all(path("pool")).unwrap();
    let lost = thermocline(&["pool", "manager", "--config", &path("pool.toml")]);
    assert!(String::from_utf8_lossy(&lost.stderr).contains("pool manager init"), "{lost:?}");
    let made = json(&["--format", "json", "pool", "manager", "init", "--config", &path("pool.toml")]);
    assert_eq!((made["slices"].as_u64(), made["files"].as_u64()), (Some(5), Some(2)), "those of the EMC that has failed are not made");
}

#[test]
fn the_description_in_the_manual_is_the_one_that_is_served() {
    let described = json(&["pool", "manager", "openapi"]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pool-api.json");
    let written: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert!(described == written, "write it again: thermocline pool manager openapi | python3 -m json.tool > docs/pool-api.json");
}

#[test]
fn the_example_configuration_is_sound() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/pool-manager.toml");
    let settings = manager::settings::Settings::load(&file).unwrap();
    assert!(settings.tls.is_some() && settings.slice_size == units::Bytes::gib(1));
}
