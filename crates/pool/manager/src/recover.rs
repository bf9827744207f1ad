//! A new ledger from the slices' files and locks, where the old one is lost, damaged, or older than the files.
//!
//! The files do not name owners. So nothing is assigned in the new ledger, and every slice is to be scrubbed: the manager makes a new
//! file of each whose lock is free, and waits for the others. A guest that runs keeps its memory until it ends, and no host gets a
//! slice that another may still use. What is lost is the knowledge of who has what: hosts take a new lease and find no assignments.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use pool::{EmcId, Generation, Kept, Ns, Pool, Record, SliceId, State};
use serde::Serialize;
use units::Slices;

use crate::files::Files;
use crate::ledger::{Host, Ledger};
use crate::mark::MarkFile;
use crate::service::{Error, files_of, init_member, system};
use crate::settings::Settings;
use crate::storage::Storage;
use crate::writer::Clock;

/// Summary of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoverySummary {
    /// Number of slices of the pool.
    pub slices: Slices,
    /// Slices whose files are locked: a guest uses them, or a host holds them.
    pub in_use: u32,
    /// Slices without any file.
    pub without_file: u32,
    /// Where the old ledger is now; `None` if there was none.
    pub old_ledger: Option<PathBuf>,
    /// Whether nothing was changed.
    pub dry_run: bool,
}

/// Makes a new ledger. The old one is kept beside it. No manager may run.
///
/// `hosts_are_off`: no machine can access the pool's devices, so that their slices may be zeroed.
///
/// # Errors
/// [`enum@Error`]: another manager serves the directory, the configuration has fewer slices than it, files cannot be used, or there are devices that hosts may access.
pub fn recover(settings: &Settings, dry_run: bool, hosts_are_off: bool) -> Result<RecoverySummary, Error> {
    if !hosts_are_off && settings.emcs.iter().any(|emc| emc.device.is_some()) {
        let why = "its slices are parts of devices, and nothing here shows which of them hosts use: a new ledger would have them zeroed. Turn \
                   all hosts off, or remove their access to the devices, and say so by --hosts-are-off";
        return Err(Error::Mismatch { path: settings.pool_dir.display().to_string(), why: why.to_owned() });
    }
    if settings.group.is_some() {
        return recover_member(settings, dry_run);
    }
    let files = files_of(settings);
    if dry_run {
        let _alone = MarkFile::open(&settings.pool_dir).map_err(crate::storage::Error::from)?;
        let (_, summary) = survey(settings, &files, Ns(0))?;
        return Ok(RecoverySummary { dry_run, ..summary });
    }
    let new = beside(settings, "recovering");
    let _ = std::fs::remove_file(&new);
    let mut storage = Storage::open(&new, &settings.pool_dir)?;
    let now = Clock::start().now();
    let (kept, mut summary) = survey(settings, &files, now)?;
    storage.save(None, &ledger(settings, kept, now)?)?;
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if settings.ledger.exists() {
        let old = beside(settings, &format!("before-recovery-{unix}"));
        std::fs::rename(&settings.ledger, &old).map_err(system(&format!("rename {}", settings.ledger.display())))?;
        summary.old_ledger = Some(old);
    }
    std::fs::rename(&new, &settings.ledger).map_err(system(&format!("rename {}", new.display())))?;
    Ok(summary)
}

/// Makes a member of a new group of this one. No host is left that uses a slice: in the new group every slice is zeroed first.
fn recover_member(settings: &Settings, dry_run: bool) -> Result<RecoverySummary, Error> {
    let mut summary = RecoverySummary { slices: settings.slices(), dry_run, ..RecoverySummary::default() };
    if dry_run {
        return Ok(summary);
    }
    let alone = settings.pool_dir.exists().then(|| MarkFile::open(&settings.pool_dir)).transpose();
    drop(alone.map_err(crate::storage::Error::from)?);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for file in [&settings.group_log(), &settings.ledger] {
        if file.exists() {
            let old = file.with_added_extension(format!("before-recovery-{unix}"));
            std::fs::rename(file, &old).map_err(system(&format!("rename {}", file.display())))?;
            summary.old_ledger = Some(old);
        }
    }
    init_member(settings, false)?;
    Ok(summary)
}

fn beside(settings: &Settings, word: &str) -> PathBuf {
    let mut name = settings.ledger.as_os_str().to_owned();
    name.push(".");
    name.push(word);
    PathBuf::from(name)
}

/// Reads which files there are, and which of them are in use.
fn survey(settings: &Settings, files: &Files, now: Ns) -> Result<(Kept, RecoverySummary), Error> {
    let mut found = Vec::new();
    for (emc, _) in (0u16..).zip(&settings.emcs) {
        files.create_directory(EmcId(emc))?;
        found.push(files.list(EmcId(emc))?);
    }
    let newest = found.iter().flat_map(|of| of.values().flatten()).max().copied().unwrap_or_default();
    let mut summary = RecoverySummary { slices: settings.slices(), ..RecoverySummary::default() };
    let mut kept = Kept::default();
    for ((emc, of), configured) in (0u16..).zip(&found).zip(&settings.emcs) {
        let count = configured.slices;
        if let Some(beyond) = of.keys().find(|index| **index >= count) {
            let why = format!("there are files of slice {emc}/{beyond}, and the configuration has {count} slices of EMC {emc}");
            return Err(Error::Mismatch { path: settings.pool_dir.display().to_string(), why });
        }
        let mut records = Vec::new();
        for index in 0..count {
            let generations = of.get(&index).map_or(&[][..], Vec::as_slice);
            summary.without_file += u32::from(generations.is_empty());
            let slice = SliceId { emc: EmcId(emc), index };
            let free = generations.iter().map(|&generation| files.lock(slice, generation).map(|lock| lock.is_some()));
            summary.in_use += u32::from(free.collect::<Result<Vec<_>, _>>()?.contains(&false));
            let generation: Generation = generations.iter().max().copied().unwrap_or(newest);
            records.push(Record { state: State::Scrubbing { since: now }, generation, returned: None });
        }
        kept.works.push(true);
        kept.slices.push(records);
    }
    Ok((kept, summary))
}

/// A ledger without assignments. Leases of the old one are fenced: epochs begin at the present time, which is beyond any number of
/// leases that were taken before.
fn ledger(settings: &Settings, kept: Kept, now: Ns) -> Result<Ledger, Error> {
    let epoch = now.0 / 1_000_000_000;
    let hosts: Vec<Host> = settings.hosts.iter().map(|name| Host { name: name.clone(), epoch, ..Host::default() }).collect();
    let mismatch = |why| Error::Mismatch { path: settings.ledger.display().to_string(), why };
    let count = u16::try_from(hosts.len()).map_err(|error| mismatch(error.to_string()))?;
    let pool = Pool::restore(settings.pool(count), kept).map_err(|broken| mismatch(broken.to_string()))?;
    let next_vm = 1;
    Ok(Ledger::new(pool, hosts, std::collections::BTreeMap::new(), next_vm, settings.terms(), settings.layout(), now))
}
