//! The configuration file of a pool host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::settings::{Document, Group, Problems, Schema, Table, Unit, join, read_file, unreadable};
use manager::client::Identity;
use units::{Bytes, RatioPpm};

use crate::accesses::Choice;
use crate::drivers::{HOST_TABLES, Settings as Driver};
use crate::{accesses, free_memory, guest_file, host, hot, monitor};

::settings::tables! {
    /// The host and its local memory.
    pub(crate) struct HostTable = "", Always {
        name: String = Unit::Text, required "host-a",
            "The name of the host, as in its certificate and in the manager's configuration.";
        local_memory: Bytes = Unit::Bytes, required "240GiB",
            "The local memory of this host for guests.";
        least_local_memory: Bytes = Unit::Bytes, "512MiB",
            "How much of each guest's memory is local at least.";
        state: PathBuf = Unit::RelativePath, "/var/lib/thermocline/pool-host",
            "The directory of the records that a restart of the daemon needs.";
        runtime: PathBuf = Unit::RelativePath, "/run/thermocline",
            "The directory of sockets and pid files.";
        metrics: Option<SocketAddr> = Unit::Listen, "",
            "The address on which metrics are served, such as `127.0.0.1:9474`; not served if not set.";
        lives_store: Option<String> = Unit::Text, "",
            "Where `thermocline pool lives send` puts the records of guests that have ended: a directory, or `s3://bucket/prefix`.";
    }

    /// The pool manager.
    pub(crate) struct ManagerTable = "manager", Always {
        url: String = Unit::Url, required "https://pool-1:7443",
            "The URL of the manager, or those of the members of its group, with commas between them.";
        identity: Option<PathBuf> = Unit::RelativePath, "",
            "The host's certificate: the path without its extension of a certificate (`.pem`) and its key (`.key`), with `ca.pem` in the same directory. Required for a URL of HTTPS.";
    }

    /// The models that predict how much pool memory a guest can have. Without this table, guests get pool memory only
    /// if their file requests it.
    pub struct Models = "predict", Recommended {
        untouched: PathBuf = Unit::RelativePath, required "/etc/thermocline/pool/untouched.onnx",
            "The model of untouched memory (Pond section 4.4).";
        insensitive: Option<PathBuf> = Unit::RelativePath, "",
            "The model of insensitivity to latency (Pond section 4.4), such as `/etc/thermocline/pool/insensitive.onnx`.";
        store: Option<String> = Unit::Text, "",
            "Where `thermocline pool models fetch` takes the models from: a directory, or `s3://bucket/prefix`. Without it the files are yours.";
        root: PathBuf = Unit::RelativePath, "/etc/thermocline/models-root.json",
            "The file of the root that signs that store.";
    }

    /// The monitor, which detects mispredicted guests and mitigates them (Pond section 4.3).
    pub(crate) struct MonitorTable = "monitor", Always {
        period: Duration = Unit::Duration, "30m" in "1ms" ..= "30d",
            "The sampling period of guests.";
        instrument: Choice = Unit::Choice(Choice::NAMES), "auto",
            "How accesses are seen: `page_idle` (idle page tracking) and `damon` sample pages during a window, and see what KVM guests access; `accessed_bits` of the hypervisor's process do not, and are used for guests without KVM only. `auto` uses `accessed_bits` for those, and otherwise `page_idle` if the kernel has it, and `damon` if not.";
        window: Duration = Unit::Duration, "10s" in "1s" ..= "10m",
            "How long the sampled pages of a guest are watched in each period.";
        touched: RatioPpm = Unit::Ratio, "5%" in "0%" ..= "100%",
            "The share of its pool memory that a guest may touch and still count as predicted.";
        accessed: RatioPpm = Unit::Ratio, "0.5%" in "0%" ..= "100%",
            "The share of the memory that a guest accesses in a period that may be pool memory.";
        counters: Option<Duration> = Unit::DurationOrOff, "5s" in "100ms" ..= "1m",
            "How long to sample the performance counters of a guest: once after `least_life`, and whenever it accesses more; `off` disables sampling.";
        least_life: Duration = Unit::Duration, "10m" in "0s" ..= "30d",
            "How long a guest must have run for its untouched memory to count in predictions for its customer, and its counters for its workload.";
        counters_agree: u32 = Unit::Count, "5" in "1" ..= "1000",
            "How many of the latest guests of a workload (customer, type and region) must all be insensitive by their counters for the next one to count as insensitive.";
        budget: RatioPpm = Unit::Ratio, "1%" in "0%" ..= "100%",
            "The share of all guests started that may be mitigated. The first is always within the budget.";
        slowdown: RatioPpm = Unit::Ratio, "5%" in "0%" ..= "50%",
            "The permitted slowdown of a guest by its accesses to the pool (Pond's PDM). Until those are within it, the hottest part of its pool memory is moved home before the guest is moved whole. 0% always moves guests whole.";
        latency: Duration = Unit::Duration, "0s" in "0s" ..= "1ms",
            "The latency of one access to pool memory, such as `250ns`, by which accesses count as slowdown. 0s: it is not known, and guests are moved whole.";
        rest: Duration = Unit::Duration, "10m" in "1ms" ..= "30d",
            "The least time between two mitigations.";
        within: Duration = Unit::Duration, "2m" in "1ms" ..= "1d",
            "How long a mitigation may take.";
        attempts: u32 = Unit::Count, "3" in "0" ..= "1000",
            "How many mitigations of one guest may fail before the host gives up.";
    }

    /// Slices that the manager requests back from running guests.
    pub(crate) struct ReleaseTable = "release", Always {
        margin: RatioPpm = Unit::Ratio, "10%" in "0%" ..= "100%",
            "The share of the memory that a guest keeps that must be free.";
        least_margin: Bytes = Unit::Bytes, "128MiB",
            "How much memory must be free at least.";
        within: Duration = Unit::Duration, "30s" in "1ms" ..= "1d",
            "How long a guest may take to release one slice.";
    }
}

const TABLES: [Table; 5 + HOST_TABLES.len()] =
    join(&[&[HostTable::TABLE, ManagerTable::TABLE], HOST_TABLES, &[Models::TABLE, MonitorTable::TABLE, ReleaseTable::TABLE]]);

/// The configuration file of a pool host.
pub static SCHEMA: Schema = Schema { name: "pool-host", tables: &TABLES, lists: &[], remedy: |_| None };

const EXAMPLE_HEAD: &str = "\
# One host of a memory pool: thermocline pool host --config /etc/thermocline/pool-host.toml
# Relative paths start at the directory of this file. Check with: thermocline config check --as pool-host FILE
";

const REFERENCE_HEAD: &str = "\
# Settings of a pool host and of guest files

<!-- Generated from crates/pool/host: UPDATE_DOCS=1 cargo test -p thermocline-pool-host --test generated -->

The daemon of a pool host reads one file: `thermocline pool host --config FILE`. See [pool hosts](../pool-hosts.md).

    thermocline config check --as pool-host FILE

reports all problems together, each with its line and remedy. [Guest files](#a-guest-file) are below.
";

/// Returns the example file, `deploy/pool-host.toml`.
#[must_use]
pub fn example() -> String {
    ::settings::example(&SCHEMA, EXAMPLE_HEAD)
}

/// Returns the reference page, `docs/reference/pool-host.md`.
#[must_use]
pub fn reference() -> String {
    ::settings::reference(&SCHEMA, REFERENCE_HEAD, &guest_file::reference())
}

/// The configuration of a pool host. Paths are resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The host, its monitor and its releases.
    pub host: host::Settings,
    /// The driver that starts guests.
    pub driver: Driver,
    /// The pool manager.
    pub manager: Manager,
    /// The models that predict; `None` disables predictions.
    pub predict: Option<Models>,
    /// How long to sample the performance counters of a guest; `None` disables sampling.
    pub counters: Option<Duration>,
    /// The directory of the records that a restart needs.
    pub state: PathBuf,
    /// The directory of sockets and pid files.
    pub runtime: PathBuf,
    /// The address on which metrics are served; `None` serves none.
    pub metrics: Option<SocketAddr>,
    /// The store of records of guests that have ended; `None` if they are not sent.
    pub lives_store: Option<String>,
}

/// The pool manager as a host reaches it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manager {
    /// Its URL.
    pub url: String,
    /// The host's certificate.
    pub identity: Option<Identity>,
}

impl Settings {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        let text = read_file(path).map_err(|error| Problems(vec![unreadable(path, &error)]))?;
        Self::parse(path, &text)
    }

    /// Reads a configuration from a text; `path` is the file for messages and relative paths.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Problems> {
        let mut document = Document::read(&SCHEMA, path, text);
        let driver = Driver::read(&mut document);
        let table: HostTable = document.get();
        let monitor: MonitorTable = document.get();
        let release: ReleaseTable = document.get();
        let manager: ManagerTable = document.get();
        let host = host::Settings {
            name: table.name,
            local: table.local_memory,
            local_min: table.least_local_memory,
            period: monitor.period,
            accesses: accesses::Settings { instrument: monitor.instrument, window: monitor.window },
            least_life: monitor.least_life,
            counters_agree: usize::try_from(monitor.counters_agree).unwrap_or(usize::MAX),
            monitor: monitor::Settings {
                touched: monitor.touched,
                accessed: monitor.accessed,
                budget: monitor.budget,
                attempts: monitor.attempts,
            },
            hot: hot::Settings { slowdown: monitor.slowdown, latency_ns: u64::try_from(monitor.latency.as_nanos()).unwrap_or(u64::MAX) },
            cooldown: monitor.rest,
            mitigation_timeout: monitor.within,
            margin: free_memory::Margin { ratio: release.margin, min: release.least_margin },
            release_timeout: release.within,
        };
        let identity = manager.identity.map(|path| Identity::at(&document.resolve(&path)));
        let predict = document.optional::<Models>().map(|models| Models {
            untouched: document.resolve(&models.untouched),
            insensitive: models.insensitive.map(|path| document.resolve(&path)),
            root: document.resolve(&models.root),
            ..models
        });
        let settings = Self {
            host,
            driver,
            manager: Manager { url: manager.url, identity },
            predict,
            counters: monitor.counters,
            state: document.resolve(&table.state),
            runtime: document.resolve(&table.runtime),
            metrics: table.metrics,
            lives_store: table.lives_store,
        };
        document.finish(settings)
    }
}

#[cfg(test)]
mod tests {
    use units::RatioPpm;

    use super::*;
    use crate::drivers::qemu::Kind;

    const MINIMAL: &str = "name = \"host-a\"\nlocal_memory = \"64GiB\"\n[manager]\nurl = \"https://pool:7443\"\n";

    fn parse(text: &str) -> Result<Settings, Problems> {
        Settings::parse(Path::new("/etc/pool-host.toml"), text)
    }

    #[test]
    fn defaults_apply_to_keys_that_are_not_set() {
        let settings = parse(MINIMAL).unwrap();
        assert_eq!((settings.host.local, settings.host.period), (Bytes(64 << 30), Duration::from_secs(1800)));
        assert_eq!(settings.host.monitor.budget, RatioPpm(10_000));
        assert_eq!(settings.host.monitor.attempts, 3);
        assert_eq!(settings.host.hot, hot::Settings { slowdown: RatioPpm(50_000), latency_ns: 0 });
        assert_eq!(parse(&format!("{MINIMAL}[monitor]\nlatency = \"250ns\"\n")).unwrap().host.hot.latency_ns, 250);
        let Driver::Qemu(driver) = settings.driver else { panic!("QEMU is the default") };
        assert_eq!((driver.accelerator.as_str(), driver.distance, driver.slices), ("kvm", 28, Kind::Dimm));
        assert_eq!((settings.manager.identity, settings.counters), (None, Some(Duration::from_secs(5))));
        assert_eq!(parse(&format!("{MINIMAL}[monitor]\ncounters = \"off\"\n")).unwrap().counters, None);
    }

    #[test]
    fn all_problems_are_reported_together() {
        let check = |more: &str, pieces: &[&str]| {
            let problems = format!("{:#}", parse(&format!("{MINIMAL}{more}")).unwrap_err());
            for piece in pieces {
                assert!(problems.contains(piece), "{piece} in {problems}");
            }
        };
        check("[monitor]\nperiod = \"0s\"\nbudget = \"200%\"\n[qemu]\ndistance = 10\n", &["monitor.period", "monitor.budget", "11 to 254"]);
        check("[release]\nmargin = \"10\"\nwithin = \"x\"\n", &["release.margin", "release.within"]);
        check("[monitor]\nperiods = \"1m\"\n", &["periods"]);
        check("[monitor]\ncounters = \"2m\"\n", &["monitor.counters", "from 100ms to 1m"]);
        check("[qemu]\nslices = \"virtio\"\n", &["slices = \"virtio\"", "write one of dimm, virtio-mem"]);
        check("[libvirt]\nuri = \"qemu:///system\"\n", &["libvirt.pool_node", "missing"]);
        check("[libvirt]\npool_node = 1\nlocal_nodes = \"0-1\"\n", &["the pool's node is one of them"]);
        check("[libvirt]\npool_node = 1\nlocal_nodes = \"a\"\ndistance = 9\n", &["not a list of nodes", "libvirt.distance"]);
        check("[libvirt]\npool_node = 1\n[qemu]\n", &["only one driver"]);
    }

    #[test]
    fn the_device_type_of_slices_is_read() {
        let settings = parse(&format!("{MINIMAL}[qemu]\nslices = \"virtio-mem\"\n")).unwrap();
        assert!(matches!(settings.driver, Driver::Qemu(driver) if driver.slices == Kind::VirtioMem));
    }

    #[test]
    fn libvirt_is_the_driver_if_its_table_is_present() {
        let settings = parse(&format!("{MINIMAL}[libvirt]\npool_node = 2\nlocal_nodes = \"0-1\"\n")).unwrap();
        assert_eq!(settings.host.monitor.attempts, 3);
        let Driver::Libvirt(libvirt) = settings.driver else { panic!("libvirt is configured") };
        assert_eq!((libvirt.uri.as_str(), libvirt.pool_node, libvirt.local_nodes.as_deref()), ("qemu:///system", 2, Some("0-1")));
    }

    #[test]
    fn the_example_in_the_manual_is_valid() {
        let manual = include_str!("../../../../docs/pool-hosts.md");
        let example = manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let settings = parse(example).unwrap();
        assert!(settings.manager.identity.is_some() && settings.predict.is_some());
    }
}
