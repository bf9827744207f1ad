//! Arguments that the memory-bound server rejects; it serves only in a cgroup with a limit, which lab guests provide.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::process::Command;

#[test]
fn values_out_of_range_are_rejected() {
    let usual = [("--rate", "10"), ("--keep", "1"), ("--seconds", "1"), ("--kib", "4"), ("--reserve-mib", "1"), ("--content", "text")];
    for (name, value) in
        [("--rate", "0"), ("--keep", "0"), ("--seconds", "NaN"), ("--kib", "0"), ("--reserve-mib", "2000000"), ("--content", "zeroes")]
    {
        let arguments = usual.iter().map(|&(usual_name, usual_value)| (usual_name, if usual_name == name { value } else { usual_value }));
        let arguments = arguments.flat_map(|(name, value)| [name, value]);
        let output = Command::new(env!("CARGO_BIN_EXE_labguest")).arg("sessions").args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(name), "{name} {value}: {error}");
    }
}
