//! Counters for VMs of a trace, which tells none: those of a workload that slow memory slows as much.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use thiserror::Error;
use vmtrace::Vm;

use crate::latency::slowdown;

/// Samples that are taken at most.
const SAMPLES_MAX: usize = 1_000_000;
/// The added latencies whose slowdowns a sample tells: 182 % and 222 % of local latency.
const LATENCIES: usize = 2;

/// A file of samples that cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {what}")]
pub struct Damaged {
    path: String,
    what: String,
}

#[derive(Deserialize)]
struct Sample {
    counters: BTreeMap<String, f32>,
    slowdowns: [f64; LATENCIES],
}

/// Counters of workloads by how much slow memory slows them.
#[derive(Clone, Debug)]
pub struct Counters {
    counters: Vec<BTreeMap<String, f32>>,
    /// For each latency, slowdowns in rising order, with whose they are.
    by_slowdown: [Vec<(f64, usize)>; LATENCIES],
}

impl Counters {
    /// Reads samples as the trainer takes them: a JSON object a line.
    ///
    /// # Errors
    /// [`Damaged`]: the file cannot be read, holds none, or a line is no sample.
    pub fn read(path: &Path) -> Result<Self, Damaged> {
        let fail = |what: String| Damaged { path: path.display().to_string(), what };
        let file = std::fs::File::open(path).map_err(|error| fail(format!("cannot read it: {error}")))?;
        let mut told = Self { counters: Vec::new(), by_slowdown: Default::default() };
        for (number, line) in (1usize..).zip(std::io::BufReader::new(file).lines()) {
            let line = line.map_err(|error| fail(format!("line {number}: {error}")))?;
            let Sample { counters, slowdowns } =
                serde_json::from_str(&line).map_err(|error| fail(format!("line {number} is no sample: {error}")))?;
            if number > SAMPLES_MAX {
                return Err(fail(format!("more than {SAMPLES_MAX} samples; give a part of them")));
            }
            if let Some(odd) = slowdowns.iter().find(|slowdown| !slowdown.is_finite()) {
                return Err(fail(format!("line {number} has a slowdown of {odd}")));
            }
            for (by, slowdown) in told.by_slowdown.iter_mut().zip(slowdowns) {
                by.push((slowdown, told.counters.len()));
            }
            told.counters.push(counters);
        }
        if told.counters.is_empty() {
            return Err(fail("holds no samples".to_owned()));
        }
        for by in &mut told.by_slowdown {
            by.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
        Ok(told)
    }

    /// The counters of the sample whose slowdown is next to a VM's; none of a VM whose slowdown the trace does not tell.
    #[must_use]
    pub fn of(&self, vm: &Vm, added_ns: u32) -> Option<&BTreeMap<String, f32>> {
        let (by, at) = if added_ns > 102 { (&self.by_slowdown[1], 140) } else { (&self.by_slowdown[0], 64) };
        let wanted = slowdown(vm, at)?;
        let above = by.partition_point(|(slowdown, _)| *slowdown < wanted);
        let near = |place: usize| by.get(place).map(|(slowdown, sample)| ((slowdown - wanted).abs(), *sample));
        let below = above.checked_sub(1).and_then(near);
        let (_, sample) = [below, near(above)].into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0))?;
        self.counters.get(sample)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(text: &str) -> Result<Counters, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Counters::read(file.path()).map_err(|error| error.what)
    }

    fn sample(name: f32, at_182: f64, at_222: f64) -> String {
        format!("{{\"name\": \"w\", \"counters\": {{\"which\": {name}}}, \"slowdowns\": [{at_182}, {at_222}]}}\n")
    }

    #[test]
    fn a_vm_gets_those_of_the_nearest_slowdown() {
        let all = read(&[sample(1.0, 0.01, 0.5), sample(2.0, 0.1, 0.2), sample(3.0, 0.4, 0.3)].concat()).unwrap();
        let check = |at_64: Option<f64>, at_140: Option<f64>, added_ns: u32, want: Option<f32>| {
            let vm = Vm { slowdown_64ns: at_64, slowdown_140ns: at_140, ..Vm::default() };
            assert_eq!(all.of(&vm, added_ns).map(|counters| counters["which"]), want, "{at_64:?} {at_140:?} at {added_ns}");
        };
        check(Some(-0.1), None, 64, Some(1.0));
        check(Some(0.054), None, 64, Some(1.0));
        check(Some(0.056), None, 64, Some(2.0));
        check(Some(9.0), None, 64, Some(3.0));
        check(Some(0.0), Some(0.21), 140, Some(2.0));
        check(Some(0.0), Some(0.6), 140, Some(1.0));
        check(None, None, 64, None);
    }

    #[test]
    fn a_line_that_is_no_sample_is_named() {
        let check = |text: &str, words: &str| {
            let told = read(text).unwrap_err();
            assert!(told.contains(words), "{text:?}: {told}");
        };
        check("", "no samples");
        check(&(sample(1.0, 0.1, 0.2) + "{\"counters\": {}}\n"), "line 2");
        check("{\"counters\": {\"a\": 1}, \"slowdowns\": [0.1]}\n", "line 1");
        check("nonsense", "line 1");
        assert!(Counters::read(Path::new("/nowhere/samples.jsonl")).unwrap_err().to_string().contains("/nowhere"));
    }
}
