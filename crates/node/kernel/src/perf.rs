//! Hardware sampling of memory accesses: `/sys/bus/event_source/devices`
//! (`Documentation/ABI/testing/sysfs-bus-event_source-devices-events`) and `perf_event_open(2)`.
//!
//! The processor records the address of one in N loads and stores (PEBS of Intel: `mem-loads`, `mem-stores`), or of one in N
//! operations, of which those that access memory have an address (IBS of AMD: `ibs_op`). SPE of Arm uses a different trace
//! format, which is not supported.
//!
//! **Not tested with hardware sampling**: no such processor was available. The path from the kernel's buffers to the caller is
//! tested with page faults as events.

use std::fmt;
use std::fs;
use std::io;

use perf_event::data::Record;
use perf_event::events::{Dynamic, Event};
use perf_event::{Builder, SampleFlag, SampleSkid, Sampler};

use crate::{Error, Result, Roots, file};

pub mod instructions;

/// Size of the kernel's buffer per processor and event, in bytes: about ten thousand samples between two calls of `drain`.
const BUFFER_BYTES: usize = 512 << 10;

/// Names of the events that sample accesses on this machine: `cpu/mem-loads/` (PEBS of Intel), `ibs_op` (IBS of AMD) or
/// `arm_spe_0` (SPE of Arm); empty on most virtual machines.
///
/// # Errors
/// [`Error::Io`] if the performance monitoring units cannot be listed.
pub fn access_sampling(roots: &Roots) -> Result<Vec<String>> {
    let directory = roots.sys.join("bus/event_source/devices");
    let fail = |source| Error::from_io(&directory, "list", source);
    let entries = match fs::read_dir(&directory) {
        Err(source) if file::is_absent(&source) => return Ok(Vec::new()),
        other => other.map_err(fail)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "ibs_op" || name.starts_with("arm_spe") {
            found.push(name);
        } else if entry.path().join("events/mem-loads").exists() {
            found.push(format!("{name}/mem-loads/"));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Samples the memory accesses of all processes on all processors while resumed. Dropping it ends the sampling.
pub struct AccessSampler {
    samplers: Vec<Sampler>,
    every: u64,
}

impl fmt::Debug for AccessSampler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AccessSampler").field("buffers", &self.samplers.len()).field("every", &self.every).finish()
    }
}

impl AccessSampler {
    /// Prepares the sampling of one in `every` accesses. Sampling starts with [`AccessSampler::resume`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the processor or the kernel does not support or permit it; [`Error::Io`].
    pub fn open(roots: &Roots, every: u64) -> Result<Self> {
        let found = access_sampling(roots)?;
        let devices = roots.sys.join("bus/event_source/devices");
        let build = |unit: &str, event: Option<&str>| -> io::Result<Dynamic> {
            let mut builder = Dynamic::builder(devices.join(unit))?;
            match event {
                Some(event) => builder.event(event)?,
                // Count operations instead of cycles, so that each sample stands for the same number of operations.
                None => builder.field("cnt_ctl", 1).map_err(io::Error::other)?,
            };
            builder.build().map_err(io::Error::other)
        };
        let cannot =
            |what: String| Error::unsupported(&what, "leave slow.access_sampling off, so that rates are estimated from accessed bits");
        let Some(unit) = found.iter().find(|unit| *unit == "ibs_op" || unit.ends_with("/mem-loads/")) else {
            return Err(cannot(match found.first() {
                Some(unit) => format!("{unit} samples memory accesses in a format that is not supported"),
                None => "this processor does not sample memory accesses".to_owned(),
            }));
        };
        let events = match unit.strip_suffix("/mem-loads/") {
            Some(unit) => ["mem-loads", "mem-stores"].map(|event| build(unit, Some(event))).into_iter().collect(),
            None => build(unit, None).map(|event| vec![event]),
        };
        let open = |events: Vec<Dynamic>| Self::of(&online(roots)?, &events, every);
        events.and_then(open).map_err(|error| cannot(format!("the kernel rejects the event {unit}: {error}")))
    }

    fn of<E: Event + Clone>(processors: &[usize], events: &[E], every: u64) -> io::Result<Self> {
        let mut samplers = Vec::new();
        for (&processor, event) in processors.iter().flat_map(|processor| events.iter().map(move |event| (processor, event))) {
            let mut builder = Builder::new(event.clone());
            builder.any_pid().one_cpu(processor).include_kernel().exclude_hv(true).precise_ip(SampleSkid::RequestZero);
            builder.sample_period(every).sample(SampleFlag::TID).sample(SampleFlag::ADDR);
            samplers.push(builder.build()?.sampled(BUFFER_BYTES)?);
        }
        Ok(Self { samplers, every: every.max(1) })
    }

    /// The number of accesses that each sample stands for.
    #[must_use]
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Starts or resumes sampling.
    ///
    /// # Errors
    /// [`Error::Io`] if the counter of a processor cannot be enabled.
    pub fn resume(&mut self) -> Result<()> {
        self.switch(|sampler| sampler.enable())
    }

    /// Pauses sampling: no process is interrupted, and no buffer overflows, until it is resumed.
    ///
    /// # Errors
    /// [`Error::Io`] if the counter of a processor cannot be disabled.
    pub fn pause(&mut self) -> Result<()> {
        self.switch(|sampler| sampler.disable())
    }

    fn switch(&mut self, each: impl FnMut(&mut Sampler) -> io::Result<()>) -> Result<()> {
        let switched = self.samplers.iter_mut().try_for_each(each);
        switched.map_err(|source| Error::Io { path: "perf_event_open".into(), op: "switch", source })
    }

    /// Passes all samples since the last call to `each`: pid and address. Returns the number of samples that the kernel dropped
    /// because a buffer was full.
    pub fn drain(&mut self, each: &mut dyn FnMut(i32, u64)) -> u64 {
        let mut lost = 0u64;
        for sampler in &mut self.samplers {
            while let Some(record) = sampler.next_record() {
                match record.parse_record() {
                    Ok(Record::Sample(sample)) => {
                        if let (Some(pid), Some(address)) = (sample.pid().and_then(|pid| i32::try_from(pid).ok()), sample.addr()) {
                            each(pid, address);
                        }
                    }
                    Ok(Record::Lost(record)) => lost = lost.saturating_add(record.lost),
                    Ok(Record::LostSamples(record)) => lost = lost.saturating_add(record.lost),
                    // Throttled: the kernel suspended sampling for a while.
                    Ok(Record::Throttle(_)) | Err(_) => lost = lost.saturating_add(1),
                    Ok(_) => {}
                }
            }
        }
        lost
    }
}

/// The online processors.
fn online(roots: &Roots) -> io::Result<Vec<usize>> {
    let text = fs::read_to_string(roots.sys.join("devices/system/cpu/online"))?;
    let bad = || io::Error::other(format!("devices/system/cpu/online is {text:?}, not a list of processors"));
    let mut processors = Vec::new();
    for range in text.trim().split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (from.parse().map_err(|_| bad())?, to.parse().map_err(|_| bad())?);
        if to >= from + (1 << 16) {
            return Err(bad());
        }
        processors.extend(from..=to);
    }
    Ok(processors)
}

#[cfg(test)]
mod tests {
    use perf_event::events::Software;

    use super::*;
    use crate::testing::{Mapping, own_pid, tree};

    #[test]
    fn samples_come_from_every_processor_with_process_and_address() {
        const PAGES: usize = 256;
        let processors = online(&Roots::host()).unwrap();
        let mut sampler = match AccessSampler::of(&processors, &[Software::PAGE_FAULTS], 1) {
            Ok(sampler) => sampler,
            Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) => {
                eprintln!("skipped, not permitted for this user: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let unwatched = Mapping::new(PAGES);
        (0..PAGES).for_each(|page| unwatched.touch(page));
        sampler.drain(&mut |pid, _| assert_ne!(pid, own_pid(), "a sample before resume"));
        sampler.resume().unwrap();
        let memory = Mapping::new(PAGES);
        let range = memory.range(0..PAGES);
        (0..PAGES).for_each(|page| memory.touch(page));
        sampler.pause().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        let lost = sampler.drain(&mut |pid, address| {
            if pid == own_pid() && range.contains(&address) {
                seen.insert(address / crate::page_size().bytes());
            }
        });
        assert!(seen.len() == PAGES || lost > 0, "{} of {PAGES} pages, {lost} lost", seen.len());
        // Each sample is returned once.
        sampler.drain(&mut |pid, address| assert!(pid != own_pid() || !range.contains(&address)));
        assert_eq!(sampler.every(), 1);
    }

    #[test]
    fn unsupported_sampling_is_reported_with_its_remedy() {
        let check = |files: &[(&str, &str)], what: &str| {
            let (_keep, roots) = tree(files);
            let error = AccessSampler::open(&roots, 1_000).unwrap_err();
            assert!(error.is_unsupported() && error.to_string().contains(what), "{error}");
            assert!(error.to_string().contains("slow.access_sampling"), "{error}");
        };
        check(&[], "does not sample memory accesses");
        check(&[("sys/bus/event_source/devices/arm_spe_0/type", "8\n")], "is not supported");
        // A unit with a malformed description.
        check(&[("sys/bus/event_source/devices/ibs_op/type", "9\n")], "rejects the event ibs_op");
        // A unit that this kernel does not have.
        let format = ("sys/bus/event_source/devices/ibs_op/format/cnt_ctl", "config:19\n");
        check(
            &[("sys/bus/event_source/devices/ibs_op/type", "77777\n"), format, ("sys/devices/system/cpu/online", "0\n")],
            "rejects the event",
        );
    }

    #[test]
    fn lists_of_processors_are_parsed() {
        let check = |text: &str, want: Option<&[usize]>| {
            let (_keep, roots) = tree(&[("sys/devices/system/cpu/online", text)]);
            assert_eq!(online(&roots).ok().as_deref(), want, "{text}");
        };
        check("0\n", Some(&[0]));
        check("0-2,5\n", Some(&[0, 1, 2, 5]));
        check("0-99999999999\n", None);
        check("none\n", None);
        check("", None);
    }

    #[test]
    fn only_units_that_sample_accesses_are_listed() {
        let check = |files: &[&str], expected: &[&str]| {
            let files: Vec<_> = files.iter().map(|file| (*file, "")).collect();
            let (_keep, roots) = tree(&files);
            assert_eq!(access_sampling(&roots).unwrap(), expected);
        };
        let intel = "sys/bus/event_source/devices/cpu/events/mem-loads";
        let amd = "sys/bus/event_source/devices/ibs_op/type";
        check(&[], &[]);
        check(&["sys/bus/event_source/devices/cpu/events/cycles", "sys/bus/event_source/devices/software/type"], &[]);
        check(&[intel], &["cpu/mem-loads/"]);
        check(&[amd, "sys/bus/event_source/devices/cpu/events/cycles"], &["ibs_op"]);
        check(&["sys/bus/event_source/devices/arm_spe_0/type"], &["arm_spe_0"]);
        access_sampling(&Roots::host()).unwrap();
    }
}
