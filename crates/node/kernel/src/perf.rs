//! Processors that sample memory accesses by themselves: `/sys/bus/event_source/devices`
//! (`Documentation/ABI/testing/sysfs-bus-event_source-devices-events`) and `perf_event_open(2)`.
//!
//! The processor itself notes the address of one of so many loads and stores: `mem-loads` and `mem-stores` by PEBS (Intel), or
//! one of so many operations, of which those that touch memory have an address: `ibs_op` (AMD). Arm's SPE has a trace format of
//! its own, which is not read.
//!
//! **Not tested on such a processor**: none was at hand. What is tested is the way from the kernel's buffers to us, with page
//! faults for accesses.

use std::fmt;
use std::fs;
use std::io;

use perf_event::data::Record;
use perf_event::events::{Dynamic, Event};
use perf_event::{Builder, SampleFlag, SampleSkid, Sampler};

use crate::{Error, Result, Roots, file};

/// Bytes of the kernel's buffer for each processor and event: some ten thousand samples between two looks.
const BUFFER_BYTES: usize = 512 << 10;

/// What samples accesses on this machine: `cpu/mem-loads/` (PEBS of Intel), `ibs_op` (IBS of AMD) or `arm_spe_0` (SPE of
/// Arm), by name; none on most virtual machines.
///
/// # Errors
/// [`Error::Io`] where the performance monitoring units cannot be listed.
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

/// Samples of the memory accesses of all processes, on all processors, while it is resumed. Ends when it is dropped.
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
    /// Prepares to sample one of `every` accesses.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where this processor or kernel cannot, or will not let us; [`Error::Io`].
    pub fn open(roots: &Roots, every: u64) -> Result<Self> {
        let found = access_sampling(roots)?;
        let devices = roots.sys.join("bus/event_source/devices");
        let build = |unit: &str, event: Option<&str>| -> io::Result<Dynamic> {
            let mut builder = Dynamic::builder(devices.join(unit))?;
            match event {
                Some(event) => builder.event(event)?,
                // Operations are counted, not cycles: each sample stands for as many.
                None => builder.field("cnt_ctl", 1).map_err(io::Error::other)?,
            };
            builder.build().map_err(io::Error::other)
        };
        let cannot = |what: String| Error::unsupported(&what, "leave slow.access_sampling off: rates come from accessed bits then");
        let Some(unit) = found.iter().find(|unit| *unit == "ibs_op" || unit.ends_with("/mem-loads/")) else {
            return Err(cannot(match found.first() {
                Some(unit) => format!("{unit} samples memory accesses in a form that is not read here"),
                None => "this processor samples no memory accesses".to_owned(),
            }));
        };
        let events = match unit.strip_suffix("/mem-loads/") {
            Some(unit) => ["mem-loads", "mem-stores"].map(|event| build(unit, Some(event))).into_iter().collect(),
            None => build(unit, None).map(|event| vec![event]),
        };
        let open = |events: Vec<Dynamic>| Self::of(&online(roots)?, &events, every);
        events.and_then(open).map_err(|error| cannot(format!("{unit} is there, and the kernel refuses it: {error}")))
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

    /// For how many accesses each sample stands.
    #[must_use]
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Begins to sample, or goes on.
    ///
    /// # Errors
    /// [`Error::Io`] where a processor's counter cannot be switched on.
    pub fn resume(&mut self) -> Result<()> {
        self.switch(|sampler| sampler.enable())
    }

    /// Samples nothing until it is resumed: nobody is interrupted, and no buffer overflows.
    ///
    /// # Errors
    /// [`Error::Io`] where a processor's counter cannot be switched off.
    pub fn pause(&mut self) -> Result<()> {
        self.switch(|sampler| sampler.disable())
    }

    fn switch(&mut self, each: impl FnMut(&mut Sampler) -> io::Result<()>) -> Result<()> {
        let switched = self.samplers.iter_mut().try_for_each(each);
        switched.map_err(|source| Error::Io { path: "perf_event_open".into(), op: "switch", source })
    }

    /// Takes all samples since the last call: the process, and the address. Returns how many the kernel had no room for.
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
                    // Throttled: accesses were not sampled for a while.
                    Ok(Record::Throttle(_)) | Err(_) => lost = lost.saturating_add(1),
                    Ok(_) => {}
                }
            }
        }
        lost
    }
}

/// The processors that are on.
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
                eprintln!("left out, as this user may not: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let unwatched = Mapping::new(PAGES);
        (0..PAGES).for_each(|page| unwatched.touch(page));
        sampler.drain(&mut |pid, _| assert_ne!(pid, own_pid(), "nothing is sampled before it is resumed"));
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
        // Each sample is told once.
        sampler.drain(&mut |pid, address| assert!(pid != own_pid() || !range.contains(&address)));
        assert_eq!(sampler.every(), 1);
    }

    #[test]
    fn what_cannot_be_sampled_is_told_with_its_remedy() {
        let check = |files: &[(&str, &str)], what: &str| {
            let (_keep, roots) = tree(files);
            let error = AccessSampler::open(&roots, 1_000).unwrap_err();
            assert!(error.is_unsupported() && error.to_string().contains(what), "{error}");
            assert!(error.to_string().contains("slow.access_sampling"), "{error}");
        };
        check(&[], "samples no memory accesses");
        check(&[("sys/bus/event_source/devices/arm_spe_0/type", "8\n")], "not read here");
        // A unit whose description is not what it should be.
        check(&[("sys/bus/event_source/devices/ibs_op/type", "9\n")], "ibs_op is there");
        // One that this kernel does not have.
        let format = ("sys/bus/event_source/devices/ibs_op/format/cnt_ctl", "config:19\n");
        check(&[("sys/bus/event_source/devices/ibs_op/type", "77777\n"), format, ("sys/devices/system/cpu/online", "0\n")], "refuses it");
    }

    #[test]
    fn lists_of_processors_are_read() {
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
    fn only_units_that_sample_accesses_are_named() {
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
