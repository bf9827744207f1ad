//! Tests of the settings.

use super::*;

const GOOD: &str = r#"
    listen = "127.0.0.1:7443"
    ledger = "/var/lib/thermocline/pool.redb"
    pool_dir = "/run/pool"
    emcs = [{ slices = 4 }, { slices = 4 }]
    hosts = ["a", "b"]
"#;

fn check(text: &str, pieces: &[&str]) {
    let problems = Settings::parse(Path::new("pool.toml"), text).unwrap_err().to_string();
    for piece in pieces {
        assert!(problems.contains(piece), "{problems} lacks {piece}");
    }
}

#[test]
fn defaults_apply_to_keys_that_are_not_set() {
    let settings = Settings::parse(Path::new("pool.toml"), GOOD).unwrap();
    assert_eq!((settings.slice_size, settings.capacity(), settings.mode()), (Bytes::gib(1), Bytes::gib(8), Some(0o600)));
    let seconds = |n: u64| Ns(n * 1_000_000_000);
    assert_eq!((settings.lease, settings.answer_within, settings.ask_again_after), (seconds(10), seconds(30), seconds(60)));
    assert_eq!((settings.buffer_slices, settings.operators.len(), settings.tls.is_none()), (Slices::ZERO, 0, true));
}

#[test]
fn relative_paths_start_at_the_directory_of_the_file() {
    let text = GOOD.replace("/var/lib/thermocline/", "") + "[tls]\ncert = \"m.pem\"\nkey = \"/keys/m.key\"\nclient_ca = \"ca.pem\"";
    let settings = Settings::parse(Path::new("/etc/t/pool.toml"), &text).unwrap();
    let tls = settings.tls.unwrap();
    assert_eq!([settings.ledger, tls.cert, tls.key], ["/etc/t/pool.redb", "/etc/t/m.pem", "/keys/m.key"].map(PathBuf::from));
    assert_eq!(settings.pool_dir, Path::new("/run/pool"));
    let devices = GOOD.replace("slices = 4 }", "slices = 4, device = \"../dev\" }");
    let settings = Settings::parse(Path::new("/etc/t/pool.toml"), &devices).unwrap();
    assert_eq!((settings.layout().devices.len(), settings.in_files(), settings.capacity()), (2, Bytes::ZERO, Bytes::gib(8)));
    assert!(settings.layout().device(pool::EmcId(1)).is_some_and(|device| device.starts_with("/etc/t")));
}

#[test]
fn all_problems_are_reported_together() {
    let bad = GOOD.replace(r#"["a", "b"]"#, r#"["a", "a", "b c"]"#).replace("slices = 4 }]", "slices = 0 }]");
    check(
        &format!("{bad}\nslice_size = \"3MiB\"\nbuffer_slices = 40\nlease = \"10ms\"\nfile_mode = \"rw\""),
        &[
            "pool.toml",
            "128MiB",
            "emcs.slices = 0: out of range",
            "buffer_slices = 40",
            "named twice",
            "\"b c\"",
            "lease = \"10ms\"",
            "0660",
        ],
    );
    check(&format!("{GOOD}\nslice_sise = \"1GiB\""), &["slice_sise", "perhaps slice_size is meant"]);
    check(&format!("{GOOD}\nlease = \"soon\""), &["soon"]);
    check(&GOOD.replacen("slices = 4 }", "slices = 4, device = \"/dev/dax0.0\" }", 1), &["1 of 2 have a device", "another manager"]);
}

fn group(more: &str) -> String {
    let devices = GOOD.replace("{ slices = 4 }", "{ slices = 4, device = \"/dev/dax0.0\" }");
    format!("{devices}\n[group]\n{more}\n")
}

#[test]
fn a_group_has_three_or_five_members_and_devices_alone() {
    let three = "members = [\"https://p1:1\", \"https://p2:1\", \"https://p3:1\"]";
    let settings = Settings::parse(Path::new("pool.toml"), &group(&format!("{three}\nmember = 2"))).unwrap();
    let members = settings.group.clone().unwrap();
    assert_eq!((members.member, members.url(2), members.url(4)), (2, Some("https://p2:1"), None));
    assert_eq!(settings.group_log(), Path::new("/var/lib/thermocline/pool.log"));
    check(&format!("{GOOD}\n[group]\n{three}\nmember = 1"), &["slices that are files", "remove [group]"]);
    check(&group(&format!("{three}\nmember = 4")), &["there is no member 4 of 3"]);
    check(&group("members = [\"https://p1:1\", \"https://p2:1\"]\nmember = 1"), &["2 members", "3 or 5"]);
    check(
        &group("members = [\"p1:1\", \"https://a:1\", \"https://a:1\"]\nmember = 1"),
        &["\"p1:1\" is not the URL", "twice", "could then act"],
    );
}
