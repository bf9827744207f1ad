//! Where a trial reads what the application reports about itself: metrics in the text exposition format, Prometheus, or a log.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use rollout::prometheus;

/// The most of a log or of a file of metrics that is read at once.
const BYTES_MAX: u64 = 64 << 20;

/// A source of outcomes.
#[derive(Debug)]
pub(crate) enum Source {
    /// A metric of a file or URL in the text exposition format.
    Metrics { from: String, metric: String },
    /// A query whose result is one value.
    Prometheus { url: String, query: String },
    /// Numbers in the lines of a log that grows.
    Log { path: PathBuf, pattern: Regex },
}

impl Source {
    /// The current values: one of a metric, and of a log those in lines that were added since `position`, which advances.
    ///
    /// # Errors
    /// The source cannot be read, or has no such value.
    pub(crate) fn read(&self, position: &mut u64) -> Result<Vec<f64>> {
        match self {
            Self::Metrics { from, metric } => {
                let body =
                    if from.contains("://") { prometheus::body(from).map_err(anyhow::Error::msg)? } else { added(from.as_ref(), &mut 0)? };
                Ok(vec![sample(&String::from_utf8_lossy(&body), metric).with_context(|| format!("{from} has no sample {metric}"))?])
            }
            Self::Prometheus { url, query } => Ok(vec![prometheus::ask_one(url, query).map_err(anyhow::Error::msg)?]),
            Self::Log { path, pattern } => {
                let start = *position;
                let mut bytes = added(path, position)?;
                // The last line may not be complete yet.
                let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                bytes.truncate(whole);
                *position = start + u64::try_from(whole).unwrap_or(u64::MAX);
                Ok(numbers(&String::from_utf8_lossy(&bytes), pattern))
            }
        }
    }

    /// The end of the log; zero for the others.
    ///
    /// # Errors
    /// The log does not exist.
    pub(crate) fn end(&self) -> Result<u64> {
        let Self::Log { path, .. } = self else { return Ok(0) };
        Ok(std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len())
    }
}

/// A pattern with a group for the number.
pub(crate) fn pattern(text: &str) -> Result<Regex, String> {
    let pattern = Regex::new(text).map_err(|error| error.to_string())?;
    if pattern.captures_len() < 2 {
        return Err("put the number into a group, such as 'served ([0-9.]+) requests'".to_owned());
    }
    Ok(pattern)
}

/// What was added to a file since `position`, which becomes its end.
fn added(path: &std::path::Path, position: &mut u64) -> Result<Vec<u8>> {
    let fail = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(fail)?;
    let length = file.metadata().with_context(fail)?.len();
    if length < *position {
        bail!("{} became shorter, from {position} to {length} bytes: it was rotated during the measurement", path.display());
    }
    ensure!(length - *position <= BYTES_MAX, "{} grew by more than {BYTES_MAX} bytes", path.display());
    file.seek(SeekFrom::Start(*position)).with_context(fail)?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).with_context(fail)?;
    *position += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    Ok(bytes)
}

/// The number in each line that the pattern matches.
fn numbers(text: &str, pattern: &Regex) -> Vec<f64> {
    text.lines().filter_map(|line| pattern.captures(line)?.get(1)?.as_str().parse().ok()).collect()
}

/// The value of a sample, such as `requests_total{code="200"}`, with its labels as they are written.
fn sample(text: &str, metric: &str) -> Option<f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    // A timestamp may follow the value; a sample without labels must not match one with labels.
    lines.filter_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')).find_map(|rest| rest.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# HELP a_total requests\n# TYPE a_total counter\na_total{code=\"500\"} 1\na_total{code=\"200\"} 12.5 1795201200\n\
                           a_total_more 3\nb 7\n";

    #[test]
    fn a_sample_is_found_with_its_labels() {
        let check = |metric, want| assert_eq!(sample(METRICS, metric), want, "{metric}");
        check("a_total{code=\"200\"}", Some(12.5));
        check("a_total", None);
        check("b", Some(7.0));
        check("c", None);
    }

    #[test]
    fn numbers_of_whole_new_lines_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "t=0 ops=5\nt=1 ops=6\n").unwrap();
        let source = Source::Log { path: path.clone(), pattern: pattern("ops=([0-9.]+)").unwrap() };
        let mut position = source.end().unwrap();
        assert_eq!(source.read(&mut position).unwrap(), [0.0; 0], "what is there before does not count");
        std::fs::write(&path, "t=0 ops=5\nt=1 ops=6\nt=2 ops=7.5\nno number\nt=3 op").unwrap();
        assert_eq!(source.read(&mut position).unwrap(), [7.5]);
        std::fs::write(&path, "t=0 ops=5\nt=1 ops=6\nt=2 ops=7.5\nno number\nt=3 ops=9\n").unwrap();
        assert_eq!(source.read(&mut position).unwrap(), [9.0], "the rest of the line");
        std::fs::write(&path, "t=0\n").unwrap();
        assert!(source.read(&mut position).unwrap_err().to_string().contains("rotated"));
        let missing = Source::Log { path: directory.path().join("none"), pattern: pattern("(x)").unwrap() };
        assert!(missing.end().is_err() && pattern("ops=[0-9]+").unwrap_err().contains("group") && pattern("(").is_err());
    }

    #[test]
    fn metrics_of_a_file_are_read_whole_each_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        std::fs::write(&path, METRICS).unwrap();
        let source = |metric: &str| Source::Metrics { from: path.display().to_string(), metric: metric.to_owned() };
        let mut position = 0;
        for _ in 0..2 {
            assert_eq!(source("b").read(&mut position).unwrap(), [7.0]);
        }
        assert!(source("c").read(&mut position).unwrap_err().to_string().contains("no sample c"));
    }
}
