//! The machine's event counters: `/proc/vmstat`, `key value` lines; each counts pages or events since boot.

use serde::Serialize;

use crate::{Malformed, Result, Roots, file, text};

/// The counters of `/proc/vmstat` that Thermocline uses; `None` where the kernel does not print it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VmStat {
    /// Pages read from swap devices.
    pub pswpin: Option<u64>,
    /// Pages written to swap devices.
    pub pswpout: Option<u64>,
    /// Pages brought back out of zswap.
    pub zswpin: Option<u64>,
    /// Pages stored in zswap.
    pub zswpout: Option<u64>,
    /// Pages that zswap wrote back to the swap device.
    pub zswpwb: Option<u64>,
    /// Page faults.
    pub pgfault: Option<u64>,
    /// Page faults that had to wait for I/O or decompression.
    pub pgmajfault: Option<u64>,
    /// Refaults of anonymous pages.
    pub workingset_refault_anon: Option<u64>,
    /// Refaults of file pages.
    pub workingset_refault_file: Option<u64>,
    /// Processes that the out-of-memory killer ended.
    pub oom_kill: Option<u64>,
}

/// Reads the text of `/proc/vmstat`. Unknown keys pass.
///
/// # Errors
/// [`Malformed`] where a line has no value, or that of a known key is not a number.
pub fn parse(text: &str) -> Result<VmStat, Malformed> {
    let mut stat = VmStat::default();
    text::flat_keyed(text, &mut stat, |stat, key| match key {
        "pswpin" => Some(&mut stat.pswpin),
        "pswpout" => Some(&mut stat.pswpout),
        "zswpin" => Some(&mut stat.zswpin),
        "zswpout" => Some(&mut stat.zswpout),
        "zswpwb" => Some(&mut stat.zswpwb),
        "pgfault" => Some(&mut stat.pgfault),
        "pgmajfault" => Some(&mut stat.pgmajfault),
        "workingset_refault_anon" => Some(&mut stat.workingset_refault_anon),
        "workingset_refault_file" => Some(&mut stat.workingset_refault_file),
        "oom_kill" => Some(&mut stat.oom_kill),
        _ => None,
    })?;
    Ok(stat)
}

/// Reads `/proc/vmstat`.
///
/// # Errors
/// [`crate::Error::Parse`], [`crate::Error::Io`].
pub fn read(roots: &Roots) -> Result<VmStat> {
    let path = roots.proc.join("vmstat");
    parse(&file::read(&path, file::SMALL)?).map_err(|malformed| malformed.at(&path))
}
