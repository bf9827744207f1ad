//! Counters for the VMs of a trace, which has none: those of a sampled workload with a similar slowdown.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use thiserror::Error;
use vmtrace::Vm;

use crate::latency::slowdown;

/// The largest number of samples.
const SAMPLES_MAX: usize = 1_000_000;
/// Number of added latencies for which a sample has a slowdown: 182 % and 222 % of local latency.
const LATENCIES: usize = 2;

/// A file of samples that cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {cause}")]
pub struct CountersError {
    path: String,
    cause: String,
}

#[derive(Deserialize)]
struct Sample {
    counters: BTreeMap<String, f32>,
    slowdowns: [f64; LATENCIES],
}

/// Counters of sampled workloads, indexed by slowdown.
#[derive(Clone, Debug)]
pub struct Counters {
    counters: Vec<BTreeMap<String, f32>>,
    /// For each latency, slowdowns in ascending order with the number of their sample.
    by_slowdown: [Vec<(f64, usize)>; LATENCIES],
}

impl Counters {
    /// Reads samples in the trainer's format, one JSON object per line.
    ///
    /// # Errors
    /// [`CountersError`]: the file cannot be read, has no samples, or a line is not a valid sample.
    pub fn read(path: &Path) -> Result<Self, CountersError> {
        let fail = |cause: String| CountersError { path: path.display().to_string(), cause };
        let file = std::fs::File::open(path).map_err(|error| fail(format!("cannot read the samples: {error}")))?;
        let mut all = Self { counters: Vec::new(), by_slowdown: Default::default() };
        for (number, line) in (1usize..).zip(std::io::BufReader::new(file).lines()) {
            let line = line.map_err(|error| fail(format!("line {number}: {error}")))?;
            let Sample { counters, slowdowns } =
                serde_json::from_str(&line).map_err(|error| fail(format!("line {number} is not a sample: {error}")))?;
            if number > SAMPLES_MAX {
                return Err(fail(format!("more than {SAMPLES_MAX} samples; use a smaller file")));
            }
            if let Some(value) = slowdowns.iter().find(|slowdown| !slowdown.is_finite()) {
                return Err(fail(format!("line {number} has the slowdown {value}; it must be finite")));
            }
            for (index, slowdown) in all.by_slowdown.iter_mut().zip(slowdowns) {
                index.push((slowdown, all.counters.len()));
            }
            all.counters.push(counters);
        }
        if all.counters.is_empty() {
            return Err(fail("the file has no samples".to_owned()));
        }
        for index in &mut all.by_slowdown {
            index.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
        Ok(all)
    }

    /// Returns the counters of the sample with the closest slowdown, or `None` if the trace has no slowdown for the VM.
    #[must_use]
    pub fn of(&self, vm: &Vm, added_ns: u32) -> Option<&BTreeMap<String, f32>> {
        let (index, at) = if added_ns > 102 { (&self.by_slowdown[1], 140) } else { (&self.by_slowdown[0], 64) };
        let target = slowdown(vm, at)?;
        let above = index.partition_point(|(slowdown, _)| *slowdown < target);
        let distance = |place: usize| index.get(place).map(|(slowdown, sample)| ((slowdown - target).abs(), *sample));
        let below = above.checked_sub(1).and_then(distance);
        let (_, sample) = [below, distance(above)].into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0))?;
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
        Counters::read(file.path()).map_err(|error| error.cause)
    }

    fn sample(name: f32, at_182: f64, at_222: f64) -> String {
        format!("{{\"name\": \"w\", \"counters\": {{\"which\": {name}}}, \"slowdowns\": [{at_182}, {at_222}]}}\n")
    }

    #[test]
    fn a_vm_gets_the_counters_of_the_closest_slowdown() {
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
    fn an_invalid_line_is_named_in_the_error() {
        let check = |text: &str, words: &str| {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        };
        check("", "no samples");
        check(&(sample(1.0, 0.1, 0.2) + "{\"counters\": {}}\n"), "line 2");
        check("{\"counters\": {\"a\": 1}, \"slowdowns\": [0.1]}\n", "line 1");
        check("nonsense", "line 1");
        assert!(Counters::read(Path::new("/nowhere/samples.jsonl")).unwrap_err().to_string().contains("/nowhere"));
    }
}
