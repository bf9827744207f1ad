//! The manager's own configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use pool::Ns;
use rustls::pki_types::DnsName;
use serde::{Deserialize, Deserializer};

use crate::book::Terms;
use crate::layout::Layout;

/// The sizes of slices that can be: Linux hot-plugs memory in blocks of 128 MiB, and Pond's slices are of 1 GiB.
const SLICE_BYTES: std::ops::RangeInclusive<u64> = 128 << 20..=1 << 30;
/// Slices of one pool; beyond that each transaction would take long.
const SLICES_MAX: u64 = 65_536;
/// How long a file of settings may be.
const TEXT_MAX: u64 = 1 << 20;

/// What is wrong with a configuration, all of it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), problems.join("; "))]
pub struct Problems {
    path: PathBuf,
    problems: Vec<String>,
}

/// The manager's certificate, and whose certificates it takes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Its certificate, with those between it and the root, as PEM.
    pub cert: PathBuf,
    /// Its key, as PEM.
    pub key: PathBuf,
    /// Who signs the certificates of hosts and operators, as PEM.
    pub client_ca: PathBuf,
}

/// An external memory controller.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emc {
    /// Slices behind it.
    pub slices: u32,
}

/// A pool manager's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Needed unless it listens on a loopback address and is told to do without.
    pub tls: Option<Tls>,
    /// The file of its ledger.
    pub ledger: PathBuf,
    /// The directory that holds a directory for each EMC: a memory file system.
    pub pool_dir: PathBuf,
    /// The size of a slice.
    #[serde(default = "gib", deserialize_with = "bytes")]
    pub slice_size: u64,
    /// Controllers, counted from zero.
    pub emcs: Vec<Emc>,
    /// The hosts that may use the pool, by the names in their certificates.
    pub hosts: Vec<String>,
    /// Who may say that an EMC has failed, by the names in their certificates.
    #[serde(default)]
    pub operators: Vec<String>,
    /// Slices that are promised to nobody, so that VMs need not wait for those that are being released.
    #[serde(default)]
    pub buffer_slices: u32,
    /// How long a host may be silent before what it does not use is taken back.
    #[serde(default = "ten_seconds", deserialize_with = "span")]
    pub lease: Ns,
    /// How long a host may take to bring one slice offline.
    #[serde(default = "half_a_minute", deserialize_with = "span")]
    pub answer_within: Ns,
    /// How long a stuck slice is left alone before its host is asked again.
    #[serde(default = "minute", deserialize_with = "span")]
    pub ask_again_after: Ns,
    /// Who may use the files of slices, as `chmod` writes it: the user that guests run as must be able to.
    #[serde(default = "owner_only")]
    pub file_mode: String,
}

fn gib() -> u64 {
    1 << 30
}

fn ten_seconds() -> Ns {
    Ns(10_000_000_000)
}

fn half_a_minute() -> Ns {
    Ns(30_000_000_000)
}

fn minute() -> Ns {
    Ns(60_000_000_000)
}

fn owner_only() -> String {
    "0600".to_owned()
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    units::quantity::parse_bytes(&text).map(|bytes| bytes.0).map_err(serde::de::Error::custom)
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ns, D::Error> {
    let text = String::deserialize(deserializer)?;
    units::quantity::parse_duration(&text)
        .map(|span| Ns(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
        .map_err(serde::de::Error::custom)
}

impl Settings {
    /// Reads a file of settings.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        let problem = |what: String| Problems { path: path.to_owned(), problems: vec![what] };
        let size = std::fs::metadata(path).map_err(|error| problem(format!("cannot be read: {error}")))?.len();
        if size > TEXT_MAX {
            return Err(problem(format!("has {size} bytes; {TEXT_MAX} are enough for any pool")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| problem(format!("cannot be read: {error}")))?;
        Self::parse(path, &text)
    }

    /// Reads settings; `path` is for messages.
    ///
    /// # Errors
    /// All that is wrong with them.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Problems> {
        let mut settings: Self =
            toml::from_str(text).map_err(|error| Problems { path: path.to_owned(), problems: vec![error.to_string()] })?;
        settings.resolve(path.parent().unwrap_or(Path::new("")));
        let problems = settings.problems();
        if problems.is_empty() { Ok(settings) } else { Err(Problems { path: path.to_owned(), problems }) }
    }

    /// Paths count from where the file is.
    fn resolve(&mut self, directory: &Path) {
        let tls = self.tls.iter_mut().flat_map(|tls| [&mut tls.cert, &mut tls.key, &mut tls.client_ca]);
        for path in tls.chain([&mut self.ledger, &mut self.pool_dir]) {
            *path = directory.join(&*path);
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut need = |good: bool, what: String| {
            if !good {
                problems.push(what);
            }
        };
        let size = self.slice_size;
        need(
            size.is_power_of_two() && SLICE_BYTES.contains(&size),
            format!("slice_size is {size} bytes; it must be 128MiB, 256MiB, 512MiB or 1GiB"),
        );
        need(!self.emcs.is_empty() && self.emcs.len() <= 64, format!("{} emcs; a pool has 1 to 64", self.emcs.len()));
        let slices: u64 = self.emcs.iter().map(|emc| u64::from(emc.slices)).sum();
        need(self.emcs.iter().all(|emc| emc.slices > 0), "an EMC has no slices; each needs one at least".to_owned());
        need(slices <= SLICES_MAX, format!("{slices} slices; a pool has {SLICES_MAX} at most"));
        need(u64::from(self.buffer_slices) < slices, format!("buffer_slices is {}, and there are {slices} in all", self.buffer_slices));
        need(!self.hosts.is_empty() && self.hosts.len() <= 1024, format!("{} hosts; name 1 to 1024", self.hosts.len()));
        for name in self.hosts.iter().chain(&self.operators) {
            let good = DnsName::try_from(name.as_str()).is_ok();
            need(good, format!("{name:?} cannot be in a certificate; use letters, digits, dots and dashes, such as host-a"));
        }
        let mut sorted = self.hosts.clone();
        sorted.sort_unstable();
        sorted.dedup();
        need(sorted.len() == self.hosts.len(), "a host is named twice".to_owned());
        let second = 1_000_000_000;
        need((second..=3_600 * second).contains(&self.lease.0), "lease must be 1s to 1h".to_owned());
        need(self.answer_within.0 >= second / 10, "answer_within must be 100ms or more".to_owned());
        need(self.ask_again_after.0 >= second / 10, "ask_again_after must be 100ms or more".to_owned());
        need(self.mode().is_some(), format!("file_mode {:?} is none; write 0600, or 0660 for guests of a group", self.file_mode));
        problems
    }

    /// The permissions of slice files.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        u32::from_str_radix(&self.file_mode, 8).ok().filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600)
    }

    /// All bytes of the pool.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.emcs.iter().map(|emc| u64::from(emc.slices) * self.slice_size).sum()
    }

    /// What the core is made of.
    #[must_use]
    pub fn pool(&self, hosts: u16) -> pool::Config {
        pool::Config {
            emc_slices: self.emcs.iter().map(|emc| emc.slices).collect(),
            hosts,
            buffer_slices: self.buffer_slices,
            answer_within: self.answer_within,
            ask_again_after: self.ask_again_after,
        }
    }

    /// Where the slices are.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout { directory: self.pool_dir.clone(), slice_bytes: self.slice_size }
    }

    /// Who may have a lease, for how long.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms { lease: self.lease, hosts: self.hosts.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        listen = "127.0.0.1:7443"
        ledger = "/var/lib/thermocline/pool.redb"
        pool_dir = "/run/pool"
        emcs = [{ slices = 4 }, { slices = 4 }]
        hosts = ["a", "b"]
    "#;

    fn check(text: &str, pieces: &[&str]) {
        let told = Settings::parse(Path::new("pool.toml"), text).unwrap_err().to_string();
        for piece in pieces {
            assert!(told.contains(piece), "{told} lacks {piece}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let settings = Settings::parse(Path::new("pool.toml"), GOOD).unwrap();
        assert_eq!((settings.slice_size, settings.capacity(), settings.mode()), (1 << 30, 8 << 30, Some(0o600)));
        assert_eq!((settings.lease, settings.answer_within, settings.ask_again_after), (ten_seconds(), half_a_minute(), minute()));
        assert_eq!((settings.buffer_slices, settings.operators.len(), settings.tls.is_none()), (0, 0, true));
    }

    #[test]
    fn paths_count_from_the_file() {
        let text = GOOD.replace("/var/lib/thermocline/", "") + "[tls]\ncert = \"m.pem\"\nkey = \"/keys/m.key\"\nclient_ca = \"ca.pem\"";
        let settings = Settings::parse(Path::new("/etc/t/pool.toml"), &text).unwrap();
        let tls = settings.tls.unwrap();
        assert_eq!([settings.ledger, tls.cert, tls.key], ["/etc/t/pool.redb", "/etc/t/m.pem", "/keys/m.key"].map(PathBuf::from));
        assert_eq!(settings.pool_dir, Path::new("/run/pool"));
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let bad = GOOD.replace(r#"["a", "b"]"#, r#"["a", "a", "b c"]"#).replace("slices = 4 }]", "slices = 0 }]");
        check(
            &format!("{bad}\nslice_size = \"3MiB\"\nbuffer_slices = 4\nlease = \"10ms\"\nfile_mode = \"rw\""),
            &["pool.toml", "128MiB", "no slices", "buffer_slices is 4", "named twice", "\"b c\"", "lease must be", "0660"],
        );
        check(&format!("{GOOD}\nslice_sise = \"1GiB\""), &["unknown field `slice_sise`"]);
        check(&format!("{GOOD}\nlease = \"soon\""), &["soon"]);
    }
}
