//! The text form of an access trace, documented for users in `docs/arena-simulated.md`.
//!
//! ```text
//! thermocline-access 1
//! name sessions
//! interval 1s
//! groups 0-99 anon 35%
//! groups 100-149 file
//! settle 2s
//! 0 access 0-149
//! 1 access 0-9 100
//! 3 free 140-149
//! end 5
//! ```
//! Keys before the first interval describe the trace; intervals ascend; those without a line are idle. `#` begins a comment.

use std::fmt::Write;
use std::io::BufRead;
use std::time::Duration;

use thiserror::Error;
use units::RatioPpm;
use units::quantity::{excerpt, parse_duration, parse_ratio, print_duration, print_ratio};

use crate::trace::{GROUPS_MAX, Group, INTERVALS_MAX, Interval, Kind, Trace};

/// The first line of a trace.
pub const FIRST_LINE: &str = "thermocline-access 1";

/// The most bytes of a line.
const LINE_MAX: u64 = 64 << 20;

/// Why a text is not a trace.
#[derive(Debug, Error)]
pub enum TextError {
    /// A line that is wrong: its number, and what to change.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from one.
        line: u64,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// The text could not be read.
    #[error("cannot read it: {0}")]
    Read(#[from] std::io::Error),
}

/// Reads a trace.
///
/// # Errors
/// The first line that is wrong, with what to write instead; or the reader's error.
pub fn read(mut from: impl BufRead) -> Result<Trace, TextError> {
    let mut parser = Parser::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let wrong = |problem: String| TextError::Line { line: number, problem };
        if std::io::Read::take(&mut from, LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return parser.finish().map_err(wrong);
        }
        if line.len() as u64 == LINE_MAX {
            return Err(wrong(format!("longer than {} MiB; write the interval in several lines", LINE_MAX >> 20)));
        }
        let text = std::str::from_utf8(&line).map_err(|_| wrong("not UTF-8; traces are plain text".to_owned()))?;
        parser.line(text.split('#').next().unwrap_or_default().trim()).map_err(wrong)?;
    }
    unreachable!("the file ends before line numbers do")
}

/// What was read so far.
#[derive(Default)]
struct Parser {
    begun: bool,
    ended: bool,
    name: Option<String>,
    interval: Option<Duration>,
    group_pages: Option<u32>,
    compression: Option<u32>,
    settle: Option<Duration>,
    groups: Vec<Group>,
    intervals: Vec<Interval>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.is_empty() {
            return Ok(());
        }
        if !self.begun {
            self.begun = line == FIRST_LINE;
            return if self.begun { Ok(()) } else { Err(format!("the first line is {:?}; write {FIRST_LINE:?}", excerpt(line))) };
        }
        if self.ended {
            return Err(format!("{:?} follows `end`; make `end` the last line", excerpt(line)));
        }
        let (key, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        if key.starts_with(|first: char| first.is_ascii_digit()) {
            return self.interval_line(number(key, INTERVALS_MAX, "interval")?, rest);
        }
        if key == "end" {
            return self.end(number(rest, INTERVALS_MAX, "number of intervals")?);
        }
        if !self.intervals.is_empty() {
            return Err(format!("key `{}` comes after intervals; move it above the first interval", excerpt(key)));
        }
        self.key(key, rest)
    }

    fn key(&mut self, key: &str, value: &str) -> Result<(), String> {
        let duration = || parse_duration(value).map_err(|invalid| format!("`{key}`: {invalid}"));
        let count =
            |max: usize| number(value, max, key).and_then(|n| if n == 0 { Err(format!("`{key}` is 0; give at least 1")) } else { Ok(n) });
        let once = |is_set: bool| if is_set { Err(format!("`{key}` is given twice; remove one")) } else { Ok(()) };
        match key {
            "name" => {
                once(self.name.is_some())?;
                self.name = Some(value.to_owned());
            }
            "interval" => {
                once(self.interval.is_some())?;
                let interval = duration()?;
                if interval < Duration::from_millis(1) || interval > Duration::from_secs(3_600) {
                    return Err(format!("`interval` is {value}; give 1ms to 1h"));
                }
                self.interval = Some(interval);
            }
            "group_pages" => {
                once(self.group_pages.is_some())?;
                self.group_pages = Some(u32::try_from(count(1 << 18)?).unwrap_or(u32::MAX));
            }
            "compression" => {
                once(self.compression.is_some())?;
                self.compression = Some(u32::try_from(count(3_600)?).unwrap_or(u32::MAX));
            }
            "settle" => {
                once(self.settle.is_some())?;
                self.settle = Some(duration()?);
            }
            "groups" => self.add_groups(value)?,
            _ => {
                let known = "name, interval, group_pages, compression, settle, groups, an interval's number, end";
                return Err(format!("unknown key `{}`; a line begins with one of: {known}", excerpt(key)));
            }
        }
        Ok(())
    }

    /// `FIRST-LAST anon SHARE` or `FIRST-LAST file`.
    fn add_groups(&mut self, value: &str) -> Result<(), String> {
        let words: Vec<&str> = value.split_ascii_whitespace().collect();
        let (span, kind, compressed) = match words[..] {
            [span, "anon", share] => (span, Kind::Anon, parse_ratio(share).map_err(|invalid| format!("`groups`: {invalid}"))?),
            [span, "file"] => (span, Kind::File, RatioPpm::ONE),
            _ => return Err(format!("`groups {}`; write `groups FIRST-LAST anon COMPRESSED` or `groups FIRST-LAST file`", excerpt(value))),
        };
        let (first, last) = span_of(span, GROUPS_MAX)?;
        if first != self.groups.len() {
            return Err(format!("groups {span} begin at {first}; the next group is {}: number them without gaps", self.groups.len()));
        }
        self.groups.resize(last + 1, Group { kind, compressed });
        Ok(())
    }

    /// `access` or `free`, and groups.
    fn interval_line(&mut self, at: usize, rest: &str) -> Result<(), String> {
        let (what, list) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if at + 1 < self.intervals.len() {
            return Err(format!("interval {at} follows interval {}; sort the intervals", self.intervals.len() - 1));
        }
        if at >= self.intervals.len() {
            self.intervals.resize_with(at + 1, Interval::default);
        }
        let Some(interval) = self.intervals.last_mut() else { return Ok(()) };
        let groups = match what {
            "access" => &mut interval.accessed,
            "free" => &mut interval.freed,
            _ => return Err(format!("`{at} {}`; write `{at} access GROUPS` or `{at} free GROUPS`", excerpt(rest))),
        };
        for span in list.split_ascii_whitespace() {
            let (first, last) = span_of(span, GROUPS_MAX)?;
            if last >= self.groups.len() {
                return Err(format!("group {last} is not declared; there are {} (`groups FIRST-LAST KIND`)", self.groups.len()));
            }
            groups.extend((first..=last).filter_map(|group| u32::try_from(group).ok()));
        }
        groups.sort_unstable();
        groups.dedup();
        Ok(())
    }

    fn end(&mut self, at: usize) -> Result<(), String> {
        if at < self.intervals.len() || at == 0 {
            return Err(format!("`end {at}`; the number of intervals is at least {}", self.intervals.len().max(1)));
        }
        self.intervals.resize_with(at, Interval::default);
        self.ended = true;
        Ok(())
    }

    fn finish(self) -> Result<Trace, String> {
        if !self.begun {
            return Err(format!("the file is empty; the first line is {FIRST_LINE:?}"));
        }
        if !self.ended {
            return Err("the trace ends without `end N`, its number of intervals; it may be truncated".to_owned());
        }
        if self.groups.is_empty() {
            return Err("no groups; declare them, such as `groups 0-99 anon 35%`".to_owned());
        }
        let interval = self.interval.ok_or("the length of an interval is missing; write, for example, `interval 1s`")?;
        let interval_ms = units::millis(interval);
        let settle = units::millis(self.settle.unwrap_or_default()) / interval_ms;
        let intervals = self.intervals.len() as u64;
        if settle >= intervals {
            let length = print_duration(Duration::from_millis(intervals * interval_ms));
            return Err(format!("`settle` leaves nothing to measure of a trace of {length}; give a shorter time"));
        }
        Ok(Trace {
            name: self.name.unwrap_or_else(|| "trace".to_owned()),
            interval_ms,
            group_pages: self.group_pages.unwrap_or(1),
            compression: self.compression.unwrap_or(1),
            settle: u32::try_from(settle).unwrap_or(u32::MAX),
            groups: self.groups,
            intervals: self.intervals,
        })
    }
}

fn number(text: &str, max: usize, what: &str) -> Result<usize, String> {
    let invalid = || format!("{what} {:?}; write a whole number up to {max}", excerpt(text));
    text.parse().ok().filter(|&n| n <= max).ok_or_else(invalid)
}

/// `FIRST-LAST`, or one number.
fn span_of(span: &str, max: usize) -> Result<(usize, usize), String> {
    let (first, last) = span.split_once('-').unwrap_or((span, span));
    let (first, last) = (number(first, max - 1, "group")?, number(last, max - 1, "group")?);
    if first > last {
        return Err(format!("groups {span}: the last is below the first; write `{last}-{first}`"));
    }
    Ok((first, last))
}

/// Writes a trace; [`read`] returns the same one.
#[must_use]
pub fn write(trace: &Trace) -> String {
    let mut text = format!("{FIRST_LINE}\nname {}\n", trace.name);
    let time = |ms: u64| print_duration(Duration::from_millis(ms));
    let _ = writeln!(text, "interval {}", time(trace.interval_ms));
    let _ = writeln!(text, "group_pages {}\ncompression {}", trace.group_pages, trace.compression);
    let _ = writeln!(text, "settle {}", time(u64::from(trace.settle) * trace.interval_ms));
    let mut first = 0;
    for alike in trace.groups.chunk_by(|one, other| one == other) {
        let last = first + alike.len() - 1;
        let _ = match alike[0].kind {
            Kind::Anon => writeln!(text, "groups {first}-{last} anon {}", print_ratio(alike[0].compressed)),
            Kind::File => writeln!(text, "groups {first}-{last} file"),
        };
        first = last + 1;
    }
    for (at, interval) in trace.intervals.iter().enumerate() {
        for (what, groups) in [("access", &interval.accessed), ("free", &interval.freed)] {
            if !groups.is_empty() {
                let _ = writeln!(text, "{at} {what}{}", spans(groups));
            }
        }
    }
    let _ = writeln!(text, "end {}", trace.intervals.len());
    text
}

fn spans(groups: &[u32]) -> String {
    let mut text = String::new();
    for run in groups.chunk_by(|one, next| one + 1 == *next) {
        let _ = match run {
            [one] => write!(text, " {one}"),
            _ => write!(text, " {}-{}", run[0], run[run.len() - 1]),
        };
    }
    text
}
