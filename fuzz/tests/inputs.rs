//! Every target with its seeds, and with the inputs that once broke one.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use fuzz::{TARGETS, seeds, target};

#[test]
fn each_target_accepts_its_seeds() {
    for target in TARGETS {
        let seeds = seeds(target.name);
        assert!(!seeds.is_empty(), "{} has no seed", target.name);
        for (at, seed) in seeds.iter().enumerate() {
            assert!((target.run)(seed), "{} refuses its seed {at}, of {} bytes", target.name, seed.len());
        }
    }
}

#[test]
fn each_target_refuses_what_is_not_valid() {
    for target in TARGETS {
        for bytes in [&b"\xff\xfe\x00"[..], b"\x00\x00\x00\x00"] {
            assert!(!(target.run)(bytes), "{} accepts {bytes:?}", target.name);
        }
        // Each seed cut at some places, and with some bytes turned.
        for seed in seeds(target.name) {
            for part in 1..16 {
                let at = seed.len() * part / 16;
                (target.run)(&seed[..at]);
                let mut turned = seed.clone();
                turned[at] ^= 0x41;
                (target.run)(&turned);
            }
        }
    }
}

/// Folders of `found/` have the names of targets.
#[test]
fn what_once_broke_a_target_does_so_no_more() {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    for folder in std::fs::read_dir(found).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        let name = folder.file_name().into_string().unwrap();
        let target = target(&name).unwrap_or_else(|| panic!("found/{name} is no target"));
        for input in std::fs::read_dir(folder.path()).unwrap() {
            (target.run)(&std::fs::read(input.unwrap().path()).unwrap());
        }
    }
}

#[test]
fn names_of_targets_are_unique() {
    for (at, first) in TARGETS.iter().enumerate() {
        assert!(TARGETS[at + 1..].iter().all(|second| second.name != first.name), "{}", first.name);
    }
}
