//! The fuzzer: libFuzzer calls the target that the environment variable `THERMOCLINE_FUZZ` names.
#![no_main]

use std::sync::LazyLock;

use fuzz::{TARGETS, Target, target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("THERMOCLINE_FUZZ").unwrap_or_default();
    let target = target(&name).unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("THERMOCLINE_FUZZ is {name:?}; it must be one of {}", names.join(", "));
        std::process::exit(2)
    });
    // The hook of the fuzzer ends the process at a panic, before anybody can catch it. Without the hook, only a panic that no frame
    // catches ends it.
    if target.guarded {
        std::panic::set_hook(Box::new(|_| ()));
    }
    target
});

fuzz_target!(|bytes: &[u8]| {
    (TARGET.run)(bytes);
});
