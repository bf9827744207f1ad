//! The file that describes a guest to start.

use std::collections::BTreeMap;
use std::path::Path;

use ::settings::{Document, Group, Number, Problems, Schema, Table, Unit, join, read_file, unreadable};
use units::Bytes;

use crate::drivers::description::{Description, GUEST_TABLES};
use crate::vm::Request;

::settings::tables! {
    /// The guest. Its kernel must bring hot-plugged memory online: `memhp_default_state=online` on its command line,
    /// unless its distribution does so.
    struct GuestTable = "", Always {
        name: String = Unit::Text, required "redis-1",
            "Its name: 1 to 32 letters, digits, `-`, `_` and `.`, of which the first is a letter or digit.";
        cores: u32 = Unit::Count, required "2" in "1" ..= "512",
            "How many cores it has.";
        memory: Bytes = Unit::Bytes, required "4GiB" in "64MiB" ..= "64TiB",
            "Its memory, local and pool together, in whole MiB.";
        pool: Option<Bytes> = Unit::Bytes, "",
            "How much of its memory is pool memory, in whole slices; as much as is predicted to be safe if not set.";
    }

    /// Metadata for predictions; see `thermocline pool predict --help`.
    struct About = "about", Optional {
        customer: Option<i64> = Unit::Integer, "" in "0" ..= "9223372036854775807",
            "The customer.";
        vm_type: Option<String> = Unit::Text, "",
            "Its type (series and size).";
        guest_os: Option<String> = Unit::Text, "",
            "Its operating system.";
        location: Option<String> = Unit::Text, "",
            "The region.";
        arrival: Option<i64> = Unit::Integer, "",
            "The time of the request in seconds, by the clock of the trace that the models were trained on; now, in Unix time, if not set.";
        history: Option<Vec<Number>> = Unit::Numbers, "",
            "Untouched shares, from 0 to 1, of the customer's VMs that ended in the past week.";
        counters: Option<BTreeMap<String, Number>> = Unit::NamedNumbers, "",
            "Performance counters of earlier VMs of the same workload.";
    }
}

const TABLES: [Table; 2 + GUEST_TABLES.len()] = join(&[&[GuestTable::TABLE], GUEST_TABLES, &[About::TABLE]]);

/// The file of a guest.
pub static SCHEMA: Schema = Schema { name: "pool-guest", tables: &TABLES, lists: &[], remedy: |_| None };

const REFERENCE_HEAD: &str = "
# A guest file

`thermocline pool vm start FILE` starts the guest that the file describes.

    thermocline config check --as pool-guest FILE

checks the file only. Whether the host can start the guest is checked when it starts.
";

/// Returns the part of the reference page `docs/reference/pool-host.md` about guest files.
pub(crate) fn reference() -> String {
    ::settings::reference(&SCHEMA, REFERENCE_HEAD, "")
}

/// Reads a guest file. `now` is the Unix time in seconds.
///
/// # Errors
/// All problems of the file.
pub fn load(path: &Path, now: i64) -> Result<Request, Problems> {
    let text = read_file(path).map_err(|error| Problems(vec![unreadable(path, &error)]))?;
    parse(path, &text, now)
}

/// Reads a guest file from a text; `path` is the file for messages and relative paths.
///
/// # Errors
/// All problems of the text, and of the files that it names.
pub fn parse(path: &Path, text: &str, now: i64) -> Result<Request, Problems> {
    let mut document = Document::read(&SCHEMA, path, text);
    let GuestTable { name, cores, memory, pool } = document.get();
    let request =
        Request { name, vm: metadata(document.get(), cores, memory, now), pool_bytes: pool, description: Description::read(&mut document) };
    for (key, invalid) in request.problems() {
        document.report(document.place(&key), invalid);
    }
    document.finish(request)
}

fn metadata(about: About, cores: u32, memory: Bytes, now: i64) -> predict::Request {
    predict::Request {
        customer: about.customer.and_then(|customer| customer.try_into().ok()),
        vm_type: about.vm_type,
        guest_os: about.guest_os,
        location: about.location,
        cores,
        memory_bytes: memory,
        arrival: about.arrival.unwrap_or(now),
        history: about.history.map(|shares| shares.into_iter().map(Number::as_f32).collect()),
        own_past: None,
        counters: about.counters.map(|counters| counters.into_iter().map(|(name, value)| (name, value.as_f32())).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "name = \"a\"\ncores = 1\nmemory = \"1GiB\"\n";
    const NOW: i64 = 1_800_000_000;

    fn read(text: &str) -> Result<Request, Problems> {
        parse(Path::new("/nowhere/vm.toml"), text, NOW)
    }

    #[test]
    fn a_minimal_file_leaves_pool_memory_to_the_prediction() {
        let request = read(MINIMAL).unwrap();
        assert_eq!((request.name.as_str(), request.vm.cores, request.memory()), ("a", 1, Bytes::gib(1)));
        assert_eq!((request.pool_bytes, request.description, request.vm.arrival), (None, None, NOW));
    }

    #[test]
    fn metadata_reaches_the_prediction() {
        let about = "[about]\ncustomer = 7\nvm_type = \"D4\"\narrival = 5\nhistory = [0.5, 1]\ncounters = { cycles = 1e9 }\n";
        let vm = read(&format!("{MINIMAL}{about}")).unwrap().vm;
        assert_eq!((vm.customer, vm.vm_type.as_deref(), vm.arrival), (Some(7), Some("D4"), 5));
        assert_eq!((vm.history, vm.counters), (Some(vec![0.5, 1.0]), Some(BTreeMap::from([("cycles".to_owned(), 1e9)]))));
    }

    #[test]
    fn the_table_of_the_driver_is_read() {
        let request = read(&format!("{MINIMAL}qemu.arguments = [\"-no-reboot\"]\n")).unwrap();
        assert!(matches!(request.description, Some(Description::Qemu(guest)) if guest.arguments == ["-no-reboot"]));
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.xml"), "<domain/>").unwrap();
        let text = format!("{MINIMAL}[libvirt]\ndomain = \"a.xml\"\n");
        let request = parse(&directory.path().join("vm.toml"), &text, NOW).unwrap();
        assert!(matches!(request.description, Some(Description::Libvirt(guest)) if guest.domain == "<domain/>"));
    }

    #[test]
    fn all_problems_are_reported_together_with_their_lines() {
        let text = "name = \"a b\"\ncores = 0\nmemory = \"4\"\npool = \"lots\"\nmemories = 2\n[qemu]\narguments = [\"--m\", \"8G\"]\n[about]\ncores = 2\n";
        let Problems(problems) = read(text).unwrap_err();
        let found: Vec<_> = problems.iter().map(|problem| (problem.line, problem.key.as_deref())).collect();
        let expected = ["name", "cores", "memory", "pool", "memories", "qemu.arguments", "about.cores"];
        assert_eq!(found, [1, 2, 3, 4, 5, 7, 9].map(Some).into_iter().zip(expected.map(Some)).collect::<Vec<_>>());
    }

    #[test]
    fn errors_contain_a_remedy() {
        let check = |text: &str, pieces: &[&str]| {
            let problems = read(text).unwrap_err().to_string();
            assert!(pieces.iter().all(|piece| problems.contains(piece)), "{problems}");
        };
        check("cores = 1\nmemory = \"1GiB\"\n", &["name", "missing"]);
        check(&MINIMAL.replace("1GiB", "67108865B"), &["memory", "whole MiB"]);
        check(&MINIMAL.replace("cores = 1", "cores = 513"), &["cores", "from 1 to 512"]);
        check(&MINIMAL.replace("1GiB", "65TiB"), &["memory", "from 64MiB to 64TiB"]);
        check(&format!("{MINIMAL}libvirt.domain = \"a.xml\"\n"), &["libvirt.domain", "cannot read /nowhere/a.xml"]);
        check(&format!("{MINIMAL}libvirt.domain = \"a.xml\"\n[qemu]\n"), &["only one driver", "[qemu] or [libvirt]"]);
        check(&format!("{MINIMAL}qemu.argument = []\n"), &["qemu.argument", "unknown key", "arguments"]);
        check(&format!("{MINIMAL}qemu.arguments = [\"--m\", \"8G\"]\n"), &["\"--m\" is not allowed"]);
        check(&format!("{MINIMAL}[about]\ncustomers = 2\n"), &["about.customers", "customer"]);
        check(&format!("{MINIMAL}[about]\ncustomer = -1\n"), &["about.customer", "out of range"]);
    }

    #[test]
    fn the_ranges_are_those_of_requests_on_the_socket() {
        for (key, low, high) in [("cores", "1", "512"), ("memory", "64MiB", "64TiB")] {
            assert_eq!(SCHEMA.knob(key).unwrap().range, Some((low, high)));
            let text = |value: &str| match key {
                "cores" => MINIMAL.replace("cores = 1", &format!("cores = {value}")),
                _ => MINIMAL.replace("1GiB", value),
            };
            assert!(read(&text(low)).unwrap().check().is_ok() && read(&text(high)).unwrap().check().is_ok(), "{key}");
        }
    }
}
