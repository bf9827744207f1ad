//! Memory traces: text in gzip, `<instructions> <address read> [<address written back>]` per line, addresses in
//! decimal.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;

/// Bytes per base page, as a power of two.
const PAGE_SHIFT: u32 = 12;

/// Limit of a line, which consists of three numbers.
const LINE_MAX: usize = 128;

/// The accesses of one program.
#[derive(Debug)]
pub(crate) struct Trace {
    /// File name without `.gz`.
    pub(crate) name: String,
    /// Time from the first instruction to the last, in nanoseconds.
    pub(crate) length_ns: u64,
    /// Time and base page of each access, in order: nanoseconds since the start, and the address divided by the page
    /// size.
    pub(crate) accesses: Vec<(u64, u64)>,
}

/// Returns the traces in a directory, sorted by name.
///
/// # Errors
/// The directory cannot be read, or has no traces.
pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gz"));
    ensure!(!paths.is_empty(), "no trace in {}: expected files that end in .gz", directory.display());
    paths.sort();
    Ok(paths)
}

/// Reads one trace; `rate` is instructions per second. Writebacks are ignored: they happen when a cache evicts a line,
/// not when the program accesses the page.
///
/// # Errors
/// The file cannot be read, or a line is invalid.
pub(crate) fn read(path: &Path, rate: u64) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    parse(BufReader::new(MultiGzDecoder::new(file)), name, rate).with_context(|| format!("cannot read {}", path.display()))
}

fn parse(mut text: impl BufRead, name: String, rate: u64) -> Result<Trace> {
    let (mut instructions, mut accesses) = (0u64, Vec::new());
    let ns = |instructions: u64| u64::try_from(u128::from(instructions) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        let mut limited = std::io::Read::take(&mut text, LINE_MAX as u64);
        if limited.read_line(&mut line).with_context(|| format!("line {number}"))? == 0 {
            break;
        }
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(before)), Some(Ok(address)), None | Some(Ok(_)), None) = (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            bail!("line {number} is {line:?}; expected instructions, an address, and optionally another address, in decimal");
        };
        // The access is an instruction, too.
        instructions = instructions.saturating_add(before).saturating_add(1);
        accesses.push((ns(instructions), address >> PAGE_SHIFT));
    }
    ensure!(!accesses.is_empty(), "the trace is empty");
    Ok(Trace { name, length_ns: ns(instructions), accesses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_to_times_and_pages() {
        let trace = parse(&b"9 4096\n0 8191 64\n9 12288\n"[..], "a".into(), 1_000_000_000).unwrap();
        assert_eq!(trace.accesses, [(10, 1), (11, 1), (21, 3)]);
        assert_eq!(trace.length_ns, 21);
        let slower = parse(&b"9 4096\n"[..], "a".into(), 500_000_000).unwrap();
        assert_eq!(slower.accesses, [(20, 1)]);
        for bad in ["", "1\n", "a 2\n", "1 2 3 4\n", "1 0x20\n", "1 -2\n"] {
            assert!(parse(bad.as_bytes(), "a".into(), 1).is_err(), "{bad:?}");
        }
        assert!(parse(vec![b'1'; 1 << 20].as_slice(), "a".into(), 1).is_err());
    }
}
