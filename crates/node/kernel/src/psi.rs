//! Pressure stall information: `/proc/pressure/{memory,io}` and a cgroup's `memory.pressure` and `io.pressure`
//! (`Documentation/accounting/psi.rst`).
//!
//! ```text
//! some avg10=0.00 avg60=0.12 avg300=1.50 total=48213
//! full avg10=0.00 avg60=0.05 avg300=0.75 total=20111
//! ```

use serde::Serialize;
use units::RatioPpm;

use crate::{Error, Malformed, Result, Roots, file, text};

/// The pressure of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Psi {
    /// Times when at least one task was stalled.
    pub some: PsiLine,
    /// Times when all non-idle tasks were stalled at once.
    pub full: PsiLine,
}

/// Stalled shares of wall time over three windows, and the total since boot or since the cgroup was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PsiLine {
    /// Stalled share of the last 10 s.
    pub avg10: RatioPpm,
    /// Stalled share of the last 60 s.
    pub avg60: RatioPpm,
    /// Stalled share of the last 300 s.
    pub avg300: RatioPpm,
    /// Stalled time in microseconds; never decreases.
    pub total_us: u64,
}

/// Parses the text of a pressure file. Unknown keys are ignored.
///
/// # Errors
/// [`Malformed`] if a line or a field of `some` or `full` is missing or not a number.
pub fn parse(text: &str) -> Result<Psi, Malformed> {
    let (mut some, mut full) = (None, None);
    for (line, row) in text::lines(text) {
        match row.split_once(' ') {
            Some(("some", fields)) => some = Some(parse_line(fields, line)?),
            Some(("full", fields)) => full = Some(parse_line(fields, line)?),
            _ => return Err(Malformed::new(line, row, "a line that starts with some or full")),
        }
    }
    let missing = |expected| Malformed::new(0, text, expected);
    Ok(Psi {
        some: some.ok_or_else(|| missing("a line that starts with some"))?,
        full: full.ok_or_else(|| missing("a line that starts with full"))?,
    })
}

fn parse_line(fields: &str, line: usize) -> Result<PsiLine, Malformed> {
    let (mut avg10, mut avg60, mut avg300, mut total_us) = (None, None, None, None);
    for field in fields.split_ascii_whitespace() {
        match field.split_once('=') {
            Some(("avg10", value)) => avg10 = Some(parse_percent(value, line)?),
            Some(("avg60", value)) => avg60 = Some(parse_percent(value, line)?),
            Some(("avg300", value)) => avg300 = Some(parse_percent(value, line)?),
            Some(("total", value)) => {
                total_us = Some(text::number(Some(value), line, "microseconds")?);
            }
            Some(_) => {}
            None => return Err(Malformed::new(line, field, "key=value")),
        }
    }
    let all = (|| Some(PsiLine { avg10: avg10?, avg60: avg60?, avg300: avg300?, total_us: total_us? }))();
    all.ok_or_else(|| Malformed::new(line, fields, "avg10, avg60, avg300 and total"))
}

/// Parses `12.34`, a percentage with two decimals, to millionths; exact, in integer arithmetic.
fn parse_percent(value: &str, line: usize) -> Result<RatioPpm, Malformed> {
    const EXPECTED: &str = "a percentage with two decimals";
    let malformed = || Malformed::new(line, value, EXPECTED);
    let (whole, hundredths) = value.split_once('.').ok_or_else(malformed)?;
    if hundredths.len() != 2 {
        return Err(malformed());
    }
    let whole: u32 = text::number(Some(whole), line, EXPECTED)?;
    let hundredths: u32 = text::number(Some(hundredths), line, EXPECTED)?;
    let ppm = whole.checked_mul(10_000).and_then(|ppm| ppm.checked_add(hundredths * 100));
    ppm.map(RatioPpm).ok_or_else(malformed)
}

/// Reads the machine's memory pressure, `/proc/pressure/memory`.
///
/// # Errors
/// [`Error::Unsupported`] if the kernel does not account pressure; [`Error::Parse`]; [`Error::Io`].
pub fn memory(roots: &Roots) -> Result<Psi> {
    machine(roots, "pressure/memory")
}

/// Reads the machine's pressure of block I/O, `/proc/pressure/io`.
///
/// # Errors
/// As [`memory`].
pub fn io(roots: &Roots) -> Result<Psi> {
    machine(roots, "pressure/io")
}

fn machine(roots: &Roots, name: &str) -> Result<Psi> {
    let path = roots.proc.join(name);
    match file::read_optional(&path, file::SMALL) {
        Ok(Some(text)) => parse(&text).map_err(|malformed| malformed.at(&path)),
        Ok(None) => Err(unsupported()),
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Err(unsupported()),
        Err(error) => Err(error),
    }
}

/// The error on a kernel built or booted without pressure stall information: the pressure files do not exist or, before
/// Linux 5.2, cannot be read.
fn unsupported() -> Error {
    Error::unsupported("this kernel does not account pressure stall information", "boot with psi=1, on a kernel with CONFIG_PSI=y")
}

/// The error on a kernel that does not account pressure per cgroup.
pub(crate) fn unsupported_for_cgroups() -> Error {
    Error::unsupported(
        "this kernel does not account pressure stall information per cgroup",
        "boot with psi=1 and without cgroup_disable=pressure, on a kernel with CONFIG_PSI=y",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str = "some avg10=0.00 avg60=1.12 avg300=10.50 total=48213\nfull avg10=0.00 avg60=0.05 avg300=0.75 total=20111\n";

    #[test]
    fn percentages_are_parsed_exactly() {
        let psi = parse(CAPTURED).unwrap();
        let some = PsiLine { avg10: RatioPpm(0), avg60: RatioPpm(11_200), avg300: RatioPpm(105_000), total_us: 48_213 };
        let full = PsiLine { avg10: RatioPpm(0), avg60: RatioPpm(500), avg300: RatioPpm(7_500), total_us: 20_111 };
        assert_eq!(psi, Psi { some, full });
        cut_everywhere(CAPTURED, parse);
    }

    #[test]
    fn missing_lines_and_fields_are_reported() {
        let check = |text, line, expected| {
            let malformed = parse(text).unwrap_err();
            assert_eq!((malformed.line, malformed.expected), (line, expected), "{text:?}");
        };
        check("some", 1, "a line that starts with some or full");
        check("", 0, "a line that starts with some");
        check("some avg10=0.00 avg60=0.00 total=1\n", 1, "avg10, avg60, avg300 and total");
        check("some avg10=0.1 avg60=0.00 avg300=0.00 total=1\n", 1, "a percentage with two decimals");
        check("some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n", 0, "a line that starts with full");
        check("some avg10=0.00 avg60=0.00 avg300=0.00 total=-1\n", 1, "microseconds");
    }

    #[test]
    fn a_kernel_without_pressure_is_unsupported() {
        let (_keep, roots) = tree(&[("proc/meminfo", "")]);
        for error in [memory(&roots).unwrap_err(), io(&roots).unwrap_err()] {
            assert!(error.is_unsupported() && error.to_string().contains("boot with psi=1"), "{error}");
        }
        let (_keep, roots) = tree(&[("proc/pressure/memory", CAPTURED)]);
        assert_eq!(memory(&roots).unwrap(), parse(CAPTURED).unwrap());
        assert!(io(&roots).unwrap_err().is_unsupported());
        let (_keep, roots) = tree(&[("proc/pressure/io", CAPTURED)]);
        assert_eq!(io(&roots).unwrap(), parse(CAPTURED).unwrap());
    }
}
