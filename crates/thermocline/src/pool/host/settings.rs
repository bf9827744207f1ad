//! A host's configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use manager::client::Identity;
use pool_host::drivers::{Settings as Driver, libvirt, qemu};
use pool_host::{free_memory, host, monitor};
use serde::Deserialize;
use units::{Bytes, RatioPpm};

use crate::pool::status::identity;
use crate::values::{duration, ratio, size};

/// A host, as it is to run.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::pool) struct Settings {
    pub(super) host: host::Settings,
    pub(super) driver: Driver,
    pub(super) manager: Manager,
    pub(super) predict: Option<Models>,
    /// How long the processor's counters of a guest are looked at; not at all if it is not told.
    pub(super) counters: Option<Duration>,
    pub(super) state: PathBuf,
    pub(in crate::pool) runtime: PathBuf,
    /// Where metrics are served; nowhere if it is not told.
    pub(super) metrics: Option<SocketAddr>,
}

/// Where the manager is, and who we are to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Manager {
    pub(super) url: String,
    pub(super) identity: Option<Identity>,
}

/// Which models predict.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct Models {
    pub(super) untouched: PathBuf,
    pub(super) insensitive: Option<PathBuf>,
}

/// As it is written; all but the name, the memory and the manager has a default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    local_memory: String,
    #[serde(default = "least_local")]
    least_local_memory: String,
    #[serde(default = "state")]
    state: PathBuf,
    #[serde(default = "runtime")]
    runtime: PathBuf,
    metrics: Option<SocketAddr>,
    manager: RawManager,
    qemu: Option<RawQemu>,
    libvirt: Option<RawLibvirt>,
    predict: Option<Models>,
    #[serde(default)]
    monitor: RawMonitor,
    #[serde(default)]
    release: RawRelease,
}

fn least_local() -> String {
    "512MiB".to_owned()
}

fn state() -> PathBuf {
    "/var/lib/thermocline/pool-host".into()
}

fn runtime() -> PathBuf {
    "/run/thermocline".into()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawManager {
    url: String,
    /// As `pool status --identity` has it.
    identity: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawQemu {
    program: PathBuf,
    accelerator: String,
    cpu: String,
    distance: u8,
    balloon: bool,
    slices: qemu::Kind,
    pause: String,
}

impl Default for RawQemu {
    fn default() -> Self {
        Self {
            program: "qemu-system-x86_64".into(),
            accelerator: "kvm".to_owned(),
            cpu: "host".to_owned(),
            distance: 28,
            balloon: true,
            slices: qemu::Kind::Dimm,
            pause: "50ms".to_owned(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawLibvirt {
    program: PathBuf,
    uri: String,
    pids: PathBuf,
    pool_node: Option<u32>,
    local_nodes: Option<String>,
    distance: u8,
    balloon: bool,
}

impl Default for RawLibvirt {
    fn default() -> Self {
        Self {
            program: "virsh".into(),
            uri: "qemu:///system".to_owned(),
            pids: "/run/libvirt/qemu".into(),
            pool_node: None,
            local_nodes: None,
            distance: 28,
            balloon: true,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawMonitor {
    period: String,
    touched: String,
    accessed: String,
    budget: String,
    rest: String,
    within: String,
    counters: String,
    attempts: u32,
}

impl Default for RawMonitor {
    fn default() -> Self {
        let text = str::to_owned;
        Self {
            period: text("30m"),
            touched: text("5%"),
            accessed: text("0.5%"),
            budget: text("1%"),
            rest: text("10m"),
            within: text("2m"),
            counters: text("5s"),
            attempts: 3,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawRelease {
    margin: String,
    least_margin: String,
    within: String,
}

impl Default for RawRelease {
    fn default() -> Self {
        Self { margin: "10%".to_owned(), least_margin: "128MiB".to_owned(), within: "30s".to_owned() }
    }
}

impl Settings {
    /// Reads and checks a file.
    pub(in crate::pool) fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} cannot be used", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let raw: Raw = toml::from_str(text)?;
        let mut read = Reader::default();
        let driver = read.driver(raw.qemu, raw.libvirt);
        let host = host::Settings {
            name: raw.name.clone(),
            local: read.size("local_memory", &raw.local_memory),
            local_min: read.size("least_local_memory", &raw.least_local_memory),
            period: read.duration("monitor.period", &raw.monitor.period),
            monitor: monitor::Settings {
                touched: read.ratio("monitor.touched", &raw.monitor.touched),
                accessed: read.ratio("monitor.accessed", &raw.monitor.accessed),
                budget: read.ratio("monitor.budget", &raw.monitor.budget),
                attempts: raw.monitor.attempts,
            },
            cooldown: read.duration("monitor.rest", &raw.monitor.rest),
            mitigation_timeout: read.duration("monitor.within", &raw.monitor.within),
            margin: free_memory::Margin {
                ratio: read.ratio("release.margin", &raw.release.margin),
                min: read.size("release.least_margin", &raw.release.least_margin),
            },
            release_timeout: read.duration("release.within", &raw.release.within),
        };
        let counters = read.counters(&raw.monitor.counters);
        if raw.name.is_empty() {
            read.wrong.push("name: give the name in this host's certificate".to_owned());
        }
        if !read.wrong.is_empty() {
            bail!("{}", read.wrong.join("\n  "));
        }
        let manager = Manager { url: raw.manager.url, identity: raw.manager.identity.as_deref().map(identity) };
        Ok(Self { host, driver, manager, predict: raw.predict, counters, state: raw.state, runtime: raw.runtime, metrics: raw.metrics })
    }
}

/// Reads quantities, and remembers all that are wrong, to tell them together.
#[derive(Debug, Default)]
struct Reader {
    wrong: Vec<String>,
}

impl Reader {
    fn take<T>(&mut self, key: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|why| self.wrong.push(format!("{key}: {why}"))).ok()
    }

    fn driver(&mut self, qemu: Option<RawQemu>, libvirt: Option<RawLibvirt>) -> Driver {
        match (qemu, libvirt) {
            (Some(_), Some(_)) => self.wrong.push("qemu, libvirt: guests are started by one of the two; leave the other out".to_owned()),
            (None, Some(raw)) => return Driver::Libvirt(self.libvirt(raw)),
            (qemu, None) => return Driver::Qemu(self.qemu(qemu.unwrap_or_default())),
        }
        Driver::Qemu(self.qemu(RawQemu::default()))
    }

    fn qemu(&mut self, raw: RawQemu) -> qemu::Settings {
        qemu::Settings {
            program: raw.program,
            accelerator: raw.accelerator,
            cpu: raw.cpu,
            distance: self.distance("qemu.distance", raw.distance),
            balloon: raw.balloon,
            slices: raw.slices,
            pause: self.duration("qemu.pause", &raw.pause),
        }
    }

    fn libvirt(&mut self, raw: RawLibvirt) -> libvirt::Settings {
        if raw.pool_node.is_none() {
            let why = "libvirt.pool_node: give the NUMA node of this host that is the pool. A pool whose memory is files, a file for each slice, \
                       is for QEMU alone ([qemu] in place of [libvirt]): libvirt has no way to say which file a guest's memory is";
            self.wrong.push(why.to_owned());
        }
        if let Some(nodes) = &raw.local_nodes {
            match kernel::numa::parse_list(nodes) {
                Ok(nodes) if nodes.iter().any(|&node| Some(node) == raw.pool_node) => {
                    self.wrong
                        .push(format!("libvirt.local_nodes: the pool's node is among {nodes:?}; local memory would come from the pool"));
                }
                Ok(nodes) if !nodes.is_empty() => {}
                _ => self.wrong.push(format!("libvirt.local_nodes: {nodes:?} is no list of nodes; give one such as \"0-1\"")),
            }
        }
        libvirt::Settings {
            program: raw.program,
            uri: raw.uri,
            pids: raw.pids,
            pool_node: raw.pool_node.unwrap_or_default(),
            local_nodes: raw.local_nodes,
            distance: self.distance("libvirt.distance", raw.distance),
            balloon: raw.balloon,
        }
    }

    fn distance(&mut self, key: &str, distance: u8) -> u8 {
        if distance <= 10 || distance == u8::MAX {
            self.wrong.push(format!("{key}: {distance} is no distance of another node; give 11 to 254"));
        }
        distance
    }

    /// No longer than a guest may be kept from what else is to be done about it.
    fn counters(&mut self, text: &str) -> Option<Duration> {
        if text == "off" {
            return None;
        }
        let some = duration(text).and_then(|time| match time.as_secs_f64() {
            0.1..=60.0 => Ok(time),
            _ => Err("give 100ms to 1m, or \"off\"".to_owned()),
        });
        self.take("monitor.counters", some)
    }

    fn size(&mut self, key: &str, text: &str) -> Bytes {
        self.take(key, size(text)).unwrap_or_default()
    }

    fn duration(&mut self, key: &str, text: &str) -> Duration {
        let some = duration(text).and_then(|time| if time.is_zero() { Err("give more than nothing".to_owned()) } else { Ok(time) });
        self.take(key, some).unwrap_or_default()
    }

    fn ratio(&mut self, key: &str, text: &str) -> RatioPpm {
        let part = ratio(text).and_then(|part| if part > RatioPpm::ONE { Err("give at most 100%".to_owned()) } else { Ok(part) });
        self.take(key, part).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "name = \"host-a\"\nlocal_memory = \"64GiB\"\n[manager]\nurl = \"https://pool:7443\"\n";

    #[test]
    fn a_short_file_has_the_papers_figures() {
        let settings = Settings::parse(LEAST).unwrap();
        assert_eq!((settings.host.local, settings.host.period), (Bytes(64 << 30), Duration::from_secs(1800)));
        assert_eq!(settings.host.monitor.budget, RatioPpm(10_000));
        assert_eq!(settings.host.monitor.attempts, 3);
        let Driver::Qemu(driver) = settings.driver else { panic!("QEMU is what there is unless another is named") };
        assert_eq!((driver.accelerator.as_str(), driver.distance, driver.slices), ("kvm", 28, qemu::Kind::Dimm));
        assert_eq!((settings.manager.identity, settings.counters), (None, Some(Duration::from_secs(5))));
        assert_eq!(Settings::parse(&format!("{LEAST}[monitor]\ncounters = \"off\"\n")).unwrap().counters, None);
    }

    #[test]
    fn all_that_is_wrong_is_told_together() {
        let check = |more: &str, wrong: &[&str]| {
            let told = format!("{:#}", Settings::parse(&format!("{LEAST}{more}")).unwrap_err());
            for word in wrong {
                assert!(told.contains(word), "{word} in {told}");
            }
        };
        check("[monitor]\nperiod = \"0s\"\nbudget = \"200%\"\n[qemu]\ndistance = 10\n", &["monitor.period", "monitor.budget", "11 to 254"]);
        check("[release]\nmargin = \"10\"\nwithin = \"x\"\n", &["release.margin", "release.within"]);
        check("[monitor]\nperiods = \"1m\"\n", &["periods"]);
        check("[monitor]\ncounters = \"2m\"\n", &["monitor.counters: give 100ms to 1m, or \"off\""]);
        check("[qemu]\nslices = \"virtio\"\n", &["slices = \"virtio\"", "`dimm` or `virtio-mem`"]);
        check("[libvirt]\nuri = \"qemu:///system\"\n", &["libvirt.pool_node", "a file for each slice"]);
        check("[libvirt]\npool_node = 1\nlocal_nodes = \"0-1\"\n", &["the pool's node is among"]);
        check("[libvirt]\npool_node = 1\nlocal_nodes = \"a\"\ndistance = 9\n", &["no list of nodes", "libvirt.distance"]);
        check("[libvirt]\npool_node = 1\n[qemu]\n", &["one of the two"]);
    }

    #[test]
    fn slices_come_as_it_is_said() {
        let settings = Settings::parse(&format!("{LEAST}[qemu]\nslices = \"virtio-mem\"\n")).unwrap();
        assert!(matches!(settings.driver, Driver::Qemu(driver) if driver.slices == qemu::Kind::VirtioMem));
    }

    #[test]
    fn libvirt_is_taken_where_it_is_named() {
        let settings = Settings::parse(&format!("{LEAST}[libvirt]\npool_node = 2\nlocal_nodes = \"0-1\"\n")).unwrap();
        assert_eq!(settings.host.monitor.attempts, 3);
        let Driver::Libvirt(libvirt) = settings.driver else { panic!("libvirt was asked for") };
        assert_eq!((libvirt.uri.as_str(), libvirt.pool_node, libvirt.local_nodes.as_deref()), ("qemu:///system", 2, Some("0-1")));
    }

    #[test]
    fn the_manuals_example_is_read() {
        let manual = include_str!("../../../../../docs/pool-hosts.md");
        let example = manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let settings = Settings::parse(example).unwrap();
        assert!(settings.manager.identity.is_some() && settings.predict.is_some());
    }
}
