//! A host's configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hypervisor::{host, monitor, qemu, room};
use manager::client::Identity;
use policy::units::{Bytes, RatioPpm};
use serde::Deserialize;

use crate::arguments::{duration, ratio, size};
use crate::pool::status::identity;

/// A host, as it is to run.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::pool) struct Settings {
    pub(super) host: host::Settings,
    pub(super) qemu: qemu::Settings,
    pub(super) manager: Manager,
    pub(super) predict: Option<Models>,
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
    #[serde(default)]
    qemu: RawQemu,
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
            pause: "50ms".to_owned(),
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
        let host = host::Settings {
            name: raw.name.clone(),
            local_bytes: read.size("local_memory", &raw.local_memory),
            least_local_bytes: read.size("least_local_memory", &raw.least_local_memory),
            period: read.duration("monitor.period", &raw.monitor.period),
            monitor: monitor::Settings {
                touched_ppm: read.ratio("monitor.touched", &raw.monitor.touched),
                accessed_ppm: read.ratio("monitor.accessed", &raw.monitor.accessed),
                budget_ppm: read.ratio("monitor.budget", &raw.monitor.budget),
                attempts: raw.monitor.attempts,
            },
            rest: read.duration("monitor.rest", &raw.monitor.rest),
            repair_within: read.duration("monitor.within", &raw.monitor.within),
            margin: room::Margin {
                ratio_ppm: read.ratio("release.margin", &raw.release.margin),
                least_bytes: read.size("release.least_margin", &raw.release.least_margin),
            },
            release_within: read.duration("release.within", &raw.release.within),
        };
        let qemu = qemu::Settings {
            program: raw.qemu.program,
            accelerator: raw.qemu.accelerator,
            cpu: raw.qemu.cpu,
            distance: raw.qemu.distance,
            balloon: raw.qemu.balloon,
            pause: read.duration("qemu.pause", &raw.qemu.pause),
        };
        if raw.name.is_empty() {
            read.wrong.push("name: give the name in this host's certificate".to_owned());
        }
        if qemu.distance <= 10 || qemu.distance == u8::MAX {
            read.wrong.push(format!("qemu.distance: {} is no distance of another node; give 11 to 254", qemu.distance));
        }
        if !read.wrong.is_empty() {
            bail!("{}", read.wrong.join("\n  "));
        }
        let manager = Manager { url: raw.manager.url, identity: raw.manager.identity.as_deref().map(identity) };
        Ok(Self { host, qemu, manager, predict: raw.predict, state: raw.state, runtime: raw.runtime, metrics: raw.metrics })
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

    fn size(&mut self, key: &str, text: &str) -> u64 {
        self.take(key, size(text)).unwrap_or(Bytes(0)).0
    }

    fn duration(&mut self, key: &str, text: &str) -> Duration {
        let some = duration(text).and_then(|time| if time.is_zero() { Err("give more than nothing".to_owned()) } else { Ok(time) });
        self.take(key, some).unwrap_or_default()
    }

    fn ratio(&mut self, key: &str, text: &str) -> u32 {
        let part = ratio(text).and_then(|part| if part > RatioPpm::ONE { Err("give at most 100%".to_owned()) } else { Ok(part) });
        self.take(key, part).map_or(0, |part| part.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "name = \"host-a\"\nlocal_memory = \"64GiB\"\n[manager]\nurl = \"https://pool:7443\"\n";

    #[test]
    fn a_short_file_has_the_papers_figures() {
        let settings = Settings::parse(LEAST).unwrap();
        assert_eq!((settings.host.local_bytes, settings.host.period), (64 << 30, Duration::from_secs(1800)));
        assert_eq!(settings.host.monitor.budget_ppm, 10_000);
        assert_eq!((settings.qemu.accelerator.as_str(), settings.qemu.distance), ("kvm", 28));
        assert_eq!(settings.manager.identity, None);
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
    }

    #[test]
    fn the_manuals_example_is_read() {
        let manual = include_str!("../../../../../docs/pool-hosts.md");
        let example = manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let settings = Settings::parse(example).unwrap();
        assert!(settings.manager.identity.is_some() && settings.predict.is_some());
    }
}
