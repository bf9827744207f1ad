//! Marks in memory. A holder checks that its marks are intact; a search finds marks that an earlier owner of physical
//! memory has left there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::latencies::print_line;
use crate::linux::numa;
use crate::linux::signals::Signals;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;
const WORD_BYTES: usize = 8;
/// Sizes of an ELF file's header and of a segment's header; for their fields see `elf(5)`.
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const LOAD: u32 = 1;

/// Marks, and what to do with them.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Fill memory with a mark, and report periodically whether it is intact, until `SIGTERM`
    Hold {
        /// Number of the mark
        #[arg(long)]
        mark: u64,
        /// Amount of memory
        #[arg(long)]
        mib: usize,
        /// NUMA node of the memory; any node by default
        #[arg(long)]
        node: Option<u32>,
        /// Time between two checks
        #[arg(long, value_name = "MS", default_value_t = 500)]
        every_ms: u64,
    },
    /// Search for marks in all physical memory of a node
    Find {
        /// Numbers of the marks
        #[arg(long = "mark", required = true)]
        marks: Vec<u64>,
        /// NUMA node whose memory is searched
        #[arg(long)]
        node: u32,
    },
}

/// Runs the command.
///
/// # Errors
/// Memory cannot be allocated, or `/proc/kcore` cannot be read.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Hold { mark, mib, node, every_ms } => hold(*mark, *mib, *node, Duration::from_millis(*every_ms)),
        Command::Find { marks, node } => {
            println!("{}", find(marks, *node)?);
            Ok(())
        }
    }
}

/// Returns the word with which memory is filled for this mark. The searching process has it only in its own memory.
fn word(mark: u64) -> u64 {
    // The finisher of SplitMix64: marks that differ in one bit have unrelated words.
    let mut mixed = mark.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn hold(mark: u64, mib: usize, node: Option<u32>, every: Duration) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM]).context("cannot block signals")?;
    ensure!((1..=1 << 20).contains(&mib), "--mib is {mib}; 1 to {} are allowed", 1 << 20);
    if let Some(node) = node {
        numa::bind_to(node).with_context(|| format!("cannot restrict memory to node {node}"))?;
    }
    let mut memory = vec![0_u64; (mib << 20) / WORD_BYTES];
    memory.fill(word(mark));
    if node.is_some() {
        // A node that goes offline has no free memory, and a process restricted to it would be killed by the OOM
        // killer.
        numa::unbind().context("cannot remove the restriction to a node")?;
    }
    print_line(&json!({ "held_bytes": memory.len() * WORD_BYTES }))?;
    let begun = Instant::now();
    while signals.take(Some(every)).is_none() {
        let damaged = memory.iter().filter(|&&found| std::hint::black_box(found) != word(mark)).count();
        print_line(&json!({ "seconds": begun.elapsed().as_secs_f64(), "damaged_bytes": damaged * WORD_BYTES }))?;
    }
    Ok(())
}

fn find(marks: &[u64], node: u32) -> Result<serde_json::Value> {
    let words: Vec<u64> = marks.iter().map(|&mark| word(mark)).collect();
    let core = File::open("/proc/kcore").context("cannot open /proc/kcore; this requires root")?;
    let segments = segments(&core)?;
    let mut searched = 0_u64;
    let mut found = vec![0_u64; words.len()];
    let mut chunk = vec![0; CHUNK_BYTES];
    let (blocks, block_bytes) = blocks(Path::new("/sys/devices/system"), node)?;
    for block in blocks {
        let mut at = block;
        while at < block + block_bytes {
            let Some(offset) = segments.iter().find_map(|segment| segment.offset_of(at, CHUNK_BYTES as u64)) else {
                bail!("/proc/kcore has no memory at {at:#x}");
            };
            core.read_exact_at(&mut chunk, offset).with_context(|| format!("cannot read memory at {at:#x}"))?;
            count(&chunk, &words, &mut found);
            searched += CHUNK_BYTES as u64;
            at += CHUNK_BYTES as u64;
        }
    }
    let bytes: Vec<u64> = found.iter().map(|words| words * WORD_BYTES as u64).collect();
    Ok(json!({ "searched_bytes": searched, "found_bytes": bytes }))
}

/// Adds the number of occurrences of each word in a chunk.
fn count(chunk: &[u8], words: &[u64], found: &mut [u64]) {
    for here in chunk.chunks_exact(WORD_BYTES) {
        let here = u64::from_ne_bytes(here.try_into().unwrap_or_default());
        // Nearly all words are zero or other data.
        for (word, count) in words.iter().zip(found.iter_mut()) {
            *count += u64::from(here == *word);
        }
    }
}

/// A range of memory in `/proc/kcore`.
struct Segment {
    offset: u64,
    physical: u64,
    bytes: u64,
}

impl Segment {
    /// Returns the file offset of memory at a physical address, if all of it is in this segment.
    fn offset_of(&self, address: u64, bytes: u64) -> Option<u64> {
        let within = address.checked_sub(self.physical)?;
        (within.checked_add(bytes)? <= self.bytes).then(|| self.offset + within)
    }
}

/// Returns the segments of the kernel's direct map, which are the only ones with a physical address.
fn segments(core: &File) -> Result<Vec<Segment>> {
    let mut header = [0; HEADER_BYTES];
    core.read_exact_at(&mut header, 0).context("cannot read /proc/kcore")?;
    ensure!(header.starts_with(b"\x7fELF"), "/proc/kcore is no ELF file");
    let (start, count) = (number(&header, 32), u64::from(short(&header, 56)));
    let mut found = Vec::new();
    for index in 0..count {
        let mut segment = [0; SEGMENT_BYTES];
        core.read_exact_at(&mut segment, start + index * SEGMENT_BYTES as u64).context("cannot read the segments of /proc/kcore")?;
        let kind = u32::from_ne_bytes(segment[..4].try_into().unwrap_or_default());
        let (offset, physical, bytes) = (number(&segment, 8), number(&segment, 24), number(&segment, 32));
        if kind == LOAD && physical != u64::MAX {
            found.push(Segment { offset, physical, bytes });
        }
    }
    Ok(found)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

fn short(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

/// Returns the physical addresses of a node's online memory blocks, and the size of a block.
fn blocks(system: &Path, node: u32) -> Result<(Vec<u64>, u64)> {
    let hexadecimal = |path: &Path| -> Result<u64> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        u64::from_str_radix(text.trim(), 16).with_context(|| format!("{}: {text:?}", path.display()))
    };
    let block_bytes = hexadecimal(&system.join("memory/block_size_bytes"))?;
    let directory = system.join(format!("node/node{node}"));
    let mut found = Vec::new();
    let entries = match fs::read_dir(&directory) {
        // A node without memory has no directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((found, block_bytes)),
        other => other.with_context(|| format!("cannot list {}", directory.display()))?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.strip_prefix("memory").is_none_or(|rest| rest.parse::<u64>().is_err()) {
            continue;
        }
        if fs::read_to_string(path.join("state")).is_ok_and(|state| state.trim() == "online") {
            found.push(hexadecimal(&path.join("phys_index"))? * block_bytes);
        }
    }
    found.sort_unstable();
    Ok((found, block_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted_and_distinguished() {
        let words = [word(1), word(2)];
        assert_ne!(words[0], words[1]);
        let mut chunk = vec![0; 4096];
        for (at, mark) in [(0, 1), (8, 2), (4088, 1)] {
            chunk[at..at + 8].copy_from_slice(&word(mark).to_ne_bytes());
        }
        // Marks are aligned to words, so an unaligned occurrence does not count.
        chunk[101..109].copy_from_slice(&word(2).to_ne_bytes());
        let mut found = [0; 2];
        count(&chunk, &words, &mut found);
        assert_eq!(found, [2, 1]);
    }

    #[test]
    fn online_blocks_of_a_node_are_found() {
        let machine = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = machine.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("memory/block_size_bytes", "8000000\n");
        for (index, state) in [(33, "online"), (32, "online"), (34, "offline")] {
            put(&format!("node/node1/memory{index}/state"), state);
            put(&format!("node/node1/memory{index}/phys_index"), &format!("{index:08x}\n"));
        }
        put("node/node1/memory_side_cache/size", "0");
        let bytes = 128 << 20;
        assert_eq!(blocks(machine.path(), 1).unwrap(), (vec![32 * bytes, 33 * bytes], bytes));
        assert_eq!(blocks(machine.path(), 2).unwrap(), (Vec::new(), bytes));
    }

    #[test]
    fn offsets_are_within_the_segment() {
        let segment = Segment { offset: 100, physical: 4096, bytes: 8192 };
        let check = |address, bytes, expected| assert_eq!(segment.offset_of(address, bytes), expected, "{address} {bytes}");
        check(4096, 8192, Some(100));
        check(8192, 4096, Some(4196));
        check(8192, 4097, None);
        check(0, 1, None);
        check(u64::MAX, u64::MAX, None);
    }
}
