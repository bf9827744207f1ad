//! zswap, the compressed swap cache in DRAM (`Documentation/admin-guide/mm/zswap.rst`): module parameters in
//! `/sys/module/zswap/parameters`, counters in debugfs.

use std::path::PathBuf;

use serde::Serialize;
use units::{Bytes, Pages};

use crate::{Error, Malformed, Result, Roots, file, text};

/// The parameters that [`Zswap::set`] accepts, by their file names.
pub const PARAMETERS: [&str; 5] = ["enabled", "compressor", "max_pool_percent", "accept_threshold_percent", "shrinker_enabled"];

/// The parameters of zswap; `None` for those that the kernel does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// Whether swapped-out pages are stored in zswap.
    pub enabled: Option<bool>,
    /// The compression algorithm, by its crypto API name.
    pub compressor: Option<String>,
    /// The size limit of the pool, in percent of memory.
    pub max_pool_percent: Option<u32>,
    /// The fill level below which a full pool accepts pages again, in percent of the limit.
    pub accept_threshold_percent: Option<u32>,
    /// Whether the kernel writes back cold pages to the swap device under memory pressure.
    pub shrinker_enabled: Option<bool>,
}

/// The debugfs counters of zswap; `None` for those that the kernel does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Size of the pool in DRAM.
    pub pool_total_size: Option<Bytes>,
    /// Pages stored.
    pub stored_pages: Option<Pages>,
    /// Times that the pool limit was reached.
    pub pool_limit_hit: Option<u64>,
    /// Pages rejected because they compress poorly.
    pub reject_compress_poor: Option<u64>,
    /// Pages rejected because compression failed.
    pub reject_compress_fail: Option<u64>,
    /// Pages rejected because memory could not be allocated.
    pub reject_alloc_fail: Option<u64>,
    /// Pages rejected because the full pool could not be shrunk.
    pub reject_reclaim_fail: Option<u64>,
    /// Pages written back to the swap device.
    pub written_back_pages: Option<u64>,
    /// Pages filled with one repeated value, stored as that value.
    pub same_filled_pages: Option<u64>,
}

/// Parses a boolean parameter: `Y` or `N`, in either case, or `1` or `0`.
///
/// # Errors
/// [`Malformed`] otherwise.
pub fn parse_flag(text: &str) -> Result<bool, Malformed> {
    match text.trim() {
        "Y" | "y" | "1" => Ok(true),
        "N" | "n" | "0" => Ok(false),
        other => Err(Malformed::new(1, other, "Y or N")),
    }
}

/// zswap on this machine.
#[derive(Clone, Debug)]
pub struct Zswap {
    parameters: PathBuf,
    debug: PathBuf,
}

impl Zswap {
    /// Finds zswap, enabled or not.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on kernels built without it.
    pub fn probe(roots: &Roots) -> Result<Self> {
        let parameters = roots.sys.join("module/zswap/parameters");
        if parameters.is_dir() {
            return Ok(Self { parameters, debug: roots.debug.join("zswap") });
        }
        Err(Error::unsupported("this kernel has no zswap", "boot a kernel with CONFIG_ZSWAP=y"))
    }

    /// Reads all parameters.
    ///
    /// # Errors
    /// [`Error::Parse`]; [`Error::Io`].
    pub fn parameters(&self) -> Result<Parameters> {
        let percent = |text: &str| text::only_number(text, "a whole percentage");
        Ok(Parameters {
            enabled: self.read("enabled", parse_flag)?,
            compressor: self.read("compressor", |text| Ok(text.trim().to_owned()))?,
            max_pool_percent: self.read("max_pool_percent", percent)?,
            accept_threshold_percent: self.read("accept_threshold_percent", percent)?,
            shrinker_enabled: self.read("shrinker_enabled", parse_flag)?,
        })
    }

    /// The text of one parameter, as accepted by [`Zswap::set`]; `None` if the kernel does not have it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a name not in [`PARAMETERS`]; [`Error::Io`].
    pub fn get(&self, name: &str) -> Result<Option<String>> {
        let path = self.path_of(name)?;
        Ok(file::read_optional(&path, file::SMALL)?.map(|text| text.trim().to_owned()))
    }

    /// Sets one parameter, by its file name. Before zswap is enabled for the first time, the kernel accepts any compressor name,
    /// and falls back to another compressor when zswap is enabled: [`Zswap::parameters`] reports which.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a name or value that this kernel does not have; [`Error::Io`].
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = self.path_of(name)?;
        if !path.exists() {
            return Err(Error::unsupported(
                format!("zswap of this kernel has no parameter {name}"),
                "leave it out of the configuration, or boot a newer kernel",
            ));
        }
        match file::write(&path, value) {
            // The compressor is found by name, and its module may be missing.
            Err(error) if error.is_gone() || error.errno() == Some(libc::EINVAL) => Err(Error::unsupported(
                format!("zswap rejects {name}={value}"),
                "load the module of that compressor (such as modprobe lz4), or choose another value",
            )),
            other => other,
        }
    }

    /// Reads the debugfs counters; `None` if debugfs is not mounted or not readable.
    ///
    /// # Errors
    /// [`Error::Parse`]; [`Error::Io`].
    pub fn counters(&self) -> Result<Option<Counters>> {
        if !self.debug.is_dir() {
            return Ok(None);
        }
        Ok(Some(Counters {
            pool_total_size: self.counter("pool_total_size")?.map(Bytes),
            stored_pages: self.counter("stored_pages")?.map(Pages),
            pool_limit_hit: self.counter("pool_limit_hit")?,
            reject_compress_poor: self.counter("reject_compress_poor")?,
            reject_compress_fail: self.counter("reject_compress_fail")?,
            reject_alloc_fail: self.counter("reject_alloc_fail")?,
            reject_reclaim_fail: self.counter("reject_reclaim_fail")?,
            written_back_pages: self.counter("written_back_pages")?,
            same_filled_pages: self.counter("same_filled_pages")?,
        }))
    }

    /// Pages rejected since boot because they compress poorly or not at all; 0 without debugfs. Reads only these counters, because
    /// it is called around every step of offloading.
    ///
    /// # Errors
    /// [`Error::Parse`]; [`Error::Io`].
    pub fn rejected(&self) -> Result<u64> {
        let mut rejected = 0u64;
        for name in ["reject_compress_poor", "reject_compress_fail"] {
            rejected = rejected.saturating_add(self.counter(name)?.unwrap_or(0));
        }
        Ok(rejected)
    }

    fn counter(&self, name: &str) -> Result<Option<u64>> {
        let path = self.debug.join(name);
        let Some(text) = file::read_optional(&path, file::SMALL)? else { return Ok(None) };
        let value = text::only_number(&text, "a whole number");
        value.map(Some).map_err(|malformed| malformed.at(&path))
    }

    fn path_of(&self, name: &str) -> Result<PathBuf> {
        if PARAMETERS.contains(&name) {
            return Ok(self.parameters.join(name));
        }
        Err(Error::unsupported(format!("unknown zswap parameter {name:?}"), format!("choose one of {}", PARAMETERS.join(", "))))
    }

    fn read<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, Malformed>) -> Result<Option<T>> {
        let path = self.parameters.join(name);
        let Some(text) = file::read_optional(&path, file::SMALL)? else { return Ok(None) };
        parse(&text).map(Some).map_err(|malformed| malformed.at(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{get, put, tree};

    const LINUX_6_12: [(&str, &str); 7] = [
        ("sys/module/zswap/parameters/enabled", "N\n"),
        ("sys/module/zswap/parameters/compressor", "lzo\n"),
        ("sys/module/zswap/parameters/max_pool_percent", "20\n"),
        ("sys/module/zswap/parameters/accept_threshold_percent", "90\n"),
        ("sys/module/zswap/parameters/shrinker_enabled", "N\n"),
        ("sys/kernel/debug/zswap/pool_total_size", "46137344\n"),
        ("sys/kernel/debug/zswap/stored_pages", "32768\n"),
    ];

    #[test]
    fn parameters_and_counters_are_parsed() {
        let (_keep, roots) = tree(&LINUX_6_12);
        let zswap = Zswap::probe(&roots).unwrap();
        let expected = Parameters {
            enabled: Some(false),
            compressor: Some("lzo".into()),
            max_pool_percent: Some(20),
            accept_threshold_percent: Some(90),
            shrinker_enabled: Some(false),
        };
        assert_eq!(zswap.parameters().unwrap(), expected);
        let counters = zswap.counters().unwrap().unwrap();
        assert_eq!(counters.pool_total_size, Some(Bytes(46_137_344)));
        assert_eq!((counters.stored_pages, counters.pool_limit_hit), (Some(Pages(32_768)), None));
        assert_eq!(zswap.rejected().unwrap(), 0);
        put(&roots.debug, "zswap/reject_compress_poor", "41\n");
        put(&roots.debug, "zswap/reject_compress_fail", "1\n");
        assert_eq!(zswap.rejected().unwrap(), 42);
    }

    #[test]
    fn parameters_missing_on_an_older_kernel_are_none() {
        let (_keep, roots) = tree(&LINUX_6_12[..3]);
        let zswap = Zswap::probe(&roots).unwrap();
        assert_eq!(zswap.parameters().unwrap().shrinker_enabled, None);
        assert_eq!(zswap.counters().unwrap(), None);
        assert!(zswap.set("shrinker_enabled", "Y").unwrap_err().is_unsupported());
        let (_keep, roots) = tree(&[("sys/module/other", "")]);
        assert!(Zswap::probe(&roots).unwrap_err().is_unsupported());
    }

    #[test]
    fn only_known_parameters_can_be_set() {
        let (keep, roots) = tree(&LINUX_6_12);
        let zswap = Zswap::probe(&roots).unwrap();
        zswap.set("enabled", "Y").unwrap();
        assert_eq!(get(keep.path(), "sys/module/zswap/parameters/enabled"), "Y");
        assert_eq!(zswap.get("enabled").unwrap().as_deref(), Some("Y"));
        assert!(zswap.set("../../../etc/passwd", "x").unwrap_err().is_unsupported());
    }

    #[test]
    fn a_malformed_file_is_reported_with_its_value() {
        for (file, text) in [("enabled", "maybe"), ("max_pool_percent", ""), ("max_pool_percent", "-1")] {
            let path = format!("sys/module/zswap/parameters/{file}");
            let (_keep, roots) = tree(&[(path.as_str(), text)]);
            let error = Zswap::probe(&roots).unwrap().parameters().unwrap_err();
            let Error::Parse { path, line: 1, value, .. } = error else { panic!("{error}") };
            assert!(path.ends_with(file) && value == text, "{} {value}", path.display());
        }
    }
}
