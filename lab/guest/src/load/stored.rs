//! Where a server keeps the keys and values of a fill in its memory, how popular each page and 2 MiB block is by the
//! load's generator, and what of that is on a slow node: what an oracle of placement knows.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::latencies::print_line;
use crate::linux::clock::monotonic_ns;
use crate::linux::mapping::page_bytes;
use crate::linux::numa::nodes_of;
use crate::linux::signals::Signals;

use super::requests::{Records, popularity};

/// Bytes of a block, and of one read.
const BLOCK_BYTES: u64 = 2 << 20;
/// Bytes by which reads overlap: more than the beginnings below.
const OVERLAP_BYTES: u64 = 64;
/// Beginning of a value: its first record, with the key as id as long as the value has not been overwritten.
const VALUE: (&[u8], &[u8]) = (b"{\"id\":", b",\"item\":0,");
/// Beginning of a key's name, followed by this many digits.
const KEY: (&[u8], usize) = (b"record:", 10);

/// The server, and the load whose popularity of keys is known.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The server's process
    pid: i32,
    /// Number of keys that were filled
    #[arg(long)]
    keys: u64,
    /// Exponent of the load's Zipf's law
    #[arg(long)]
    zipf: f64,
    /// Seed of the fill and of the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Node of the slow memory
    #[arg(long, default_value_t = 1)]
    slow_node: u32,
    /// Time between two lines
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    every_ms: u64,
}

/// Prints a line with the popularity of each block, then periodically what is on the slow node, until `SIGTERM`. One
/// read of a key accesses a page for its name and every page of its value; what else the server accesses is not known.
///
/// # Errors
/// The process has exited, or less than 99 % of the keys are in its memory.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT]).context("cannot block signals")?;
    let records = Records { seed: arguments.seed, keys: arguments.keys, factor: 1 };
    let mut memory = Memory::of(arguments.pid)?;
    let popular = popularity(records, arguments.zipf, &mut records.random()).shares();
    let found = memory.find(arguments.pid, records, &popular)?;
    let blocks: Vec<_> = memory.blocks().into_iter().map(|(bytes, share)| json!({ "bytes": bytes, "share": share })).collect();
    print_line(&json!({ "names": found.names, "values": found.values, "blocks": blocks }))?;
    ensure!(found.names.min(found.values) * 100 >= arguments.keys * 99, "{found:?} of {} keys are in memory", arguments.keys);
    while signals.take(Some(Duration::from_millis(arguments.every_ms))).is_none() {
        let (bytes, share) = memory.on(arguments.pid, arguments.slow_node)?;
        print_line(&json!({ "at_ns": monotonic_ns(), "slow_bytes": bytes, "slow_share": share }))?;
    }
    Ok(())
}

/// How many names and values were found.
#[derive(Debug, Default)]
struct Found {
    names: u64,
    values: u64,
}

/// Private memory of a process that was resident when it was found.
struct Memory {
    /// Addresses of pages, ascending.
    pages: Vec<u64>,
    /// Accesses of each page per request.
    shares: Vec<f64>,
}

impl Memory {
    fn of(pid: i32) -> Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).with_context(|| format!("process {pid}"))?;
        let all: Vec<u64> = private(&maps).flat_map(|(start, end)| (start..end).step_by(page_bytes())).collect();
        let nodes = nodes_of(pid, &all).context("cannot determine the nodes of pages")?;
        let pages: Vec<u64> = all.into_iter().zip(nodes).filter_map(|(page, node)| node.map(|_| page)).collect();
        Ok(Self { shares: vec![0.0; pages.len()], pages })
    }

    /// Finds names and values of keys, and adds the accesses of one request to their pages.
    fn find(&mut self, pid: i32, records: Records, popular: &[f64]) -> Result<Found> {
        let file = File::open(format!("/proc/{pid}/mem")).context("cannot open the process's memory")?;
        let keys = usize::try_from(records.keys)?;
        let (mut names, mut values) = (vec![false; keys], vec![false; keys]);
        let mut buffer = vec![0; usize::try_from(BLOCK_BYTES + OVERLAP_BYTES)?];
        let mut first = 0;
        while let Some(&start) = self.pages.get(first) {
            // A run of resident pages, of one block at most.
            let page = page_bytes() as u64;
            let block_end = start - start % BLOCK_BYTES + BLOCK_BYTES;
            let run = self.pages[first..].iter().zip((start..block_end).step_by(page_bytes())).take_while(|(is, due)| *is == due).count();
            let bytes = run as u64 * page;
            // The beginnings of the next page, if it follows.
            let more = if self.pages.get(first + run) == Some(&(start + bytes)) { OVERLAP_BYTES } else { 0 };
            let text = &mut buffer[..usize::try_from(bytes + more)?];
            file.read_exact_at(text, start).with_context(|| format!("cannot read memory at {start:#x}"))?;
            for (offset, what) in beginnings(text).filter(|(offset, _)| *offset < bytes) {
                let (Item::Name(key) | Item::Value(key)) = what;
                let Some(index) = usize::try_from(key).ok().filter(|&index| index < keys) else { continue };
                let (seen, length) = match what {
                    Item::Name(_) => (&mut names[index], 1),
                    Item::Value(_) => (&mut values[index], records.value_bytes(key) as u64),
                };
                // Further ones are in the server's buffers.
                if !std::mem::replace(seen, true) {
                    self.add(start + offset, length, popular[index]);
                }
            }
            first += run;
        }
        let count = |seen: &[bool]| seen.iter().filter(|&&seen| seen).count() as u64;
        Ok(Found { names: count(&names), values: count(&values) })
    }

    /// Adds `share` accesses to each page of a range.
    fn add(&mut self, start: u64, bytes: u64, share: f64) {
        let page = page_bytes() as u64;
        let first = self.pages.partition_point(|&address| address + page <= start);
        let after = self.pages.partition_point(|&address| address < start + bytes);
        for of_page in &mut self.shares[first..after] {
            *of_page += share;
        }
    }

    /// Returns each block's resident bytes, and its accesses per request.
    fn blocks(&self) -> Vec<(u64, f64)> {
        let mut blocks: Vec<(u64, u64, f64)> = Vec::new();
        for (&address, &share) in self.pages.iter().zip(&self.shares) {
            let block = address / BLOCK_BYTES;
            if blocks.last().is_none_or(|last| last.0 != block) {
                blocks.push((block, 0, 0.0));
            }
            if let Some(last) = blocks.last_mut() {
                last.1 += page_bytes() as u64;
                last.2 += share;
            }
        }
        blocks.into_iter().map(|(_, bytes, share)| (bytes, share)).collect()
    }

    /// Returns the bytes on a node, and their accesses per request.
    fn on(&self, pid: i32, node: u32) -> Result<(u64, f64)> {
        let nodes = nodes_of(pid, &self.pages).context("cannot determine the nodes of pages")?;
        let there = nodes.iter().zip(&self.shares).filter(|(is, _)| **is == Some(node));
        Ok(there.fold((0, 0.0), |(bytes, sum), (_, share)| (bytes + page_bytes() as u64, sum + share)))
    }
}

/// Returns the ranges of private writable memory without a file, from `/proc/PID/maps`.
fn private(maps: &str) -> impl Iterator<Item = (u64, u64)> {
    maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let kept = words.next()? == "rw-p" && words.nth(2)? == "0" && !words.next().is_some_and(|name| name.starts_with("[stack"));
        kept.then_some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    })
}

/// What begins at a place in memory, and its key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Item {
    Name(u64),
    Value(u64),
}

/// Returns where names and values of keys begin.
fn beginnings(text: &[u8]) -> impl Iterator<Item = (u64, Item)> {
    text.iter().enumerate().filter_map(|(offset, &byte)| {
        let rest = &text[offset..];
        let item = match byte {
            b'{' => Item::Value(number(rest.strip_prefix(VALUE.0)?, |after| after.starts_with(VALUE.1))?),
            b'r' => Item::Name(number(rest.strip_prefix(KEY.0)?.get(..KEY.1)?, <[u8]>::is_empty)?),
            _ => return None,
        };
        Some((offset as u64, item))
    })
}

/// Returns the decimal number with which `text` begins, if the rest fits.
fn number(text: &[u8], fits: impl Fn(&[u8]) -> bool) -> Option<u64> {
    let digits = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, after) = text.split_at(digits);
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|_| fits(after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::mapping::Mapping;

    #[test]
    fn keys_and_values_are_found_where_they_are() {
        let records = Records { seed: 3, keys: 4, factor: 1 };
        let mapping = Mapping::anonymous(2 << 20, 2 << 20).unwrap();
        let page = page_bytes();
        // Names on page 0; values on the pages 2, 4, 6 and 8, of which the last crosses the end of its page.
        let mut value = Vec::new();
        for key in 0..4_u64 {
            let index = usize::try_from(key).unwrap();
            mapping.write(100 * index, Records::key(key).as_bytes());
            records.write_value(&mut value, key, 0);
            mapping.write(2 * (index + 1) * page + if key == 3 { page - 50 } else { 0 }, &value);
        }
        let pages: Vec<u64> = (0..512).map(|index| mapping.start() + (index * page) as u64).collect();
        let mut memory = Memory { shares: vec![0.0; pages.len()], pages };
        let popular = [0.5, 0.25, 0.15, 0.1];
        let found = memory.find(i32::try_from(std::process::id()).unwrap(), records, &popular).unwrap();
        assert_eq!((found.names, found.values), (4, 4));
        let expected = [(0, 1.0), (2, 0.5), (4, 0.25), (6, 0.15), (8, 0.1), (9, 0.1)];
        for (index, share) in memory.shares.iter().enumerate() {
            let expected = expected.iter().find(|one| one.0 == index).map_or(0.0, |one| one.1);
            assert!((share - expected).abs() < 1e-9, "page {index}: {share}");
        }
        let blocks = memory.blocks();
        assert_eq!(blocks.len(), 1);
        assert!(blocks[0].0 == 2 << 20 && (blocks[0].1 - 2.1).abs() < 1e-9, "{blocks:?}");
    }

    #[test]
    fn other_text_is_no_key() {
        let text = b"record:000000001 record:0000000017x{\"id\":5,\"item\":1,{\"id\":6,\"item\":0,\"name";
        let found: Vec<(u64, Item)> = beginnings(text).collect();
        assert_eq!(found, [(17, Item::Name(17)), (52, Item::Value(6))]);
    }

    #[test]
    fn private_memory_has_no_file() {
        let maps = "\
            55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]\n\
            7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
            7f0000400000-7f0000500000 ---p 00000000 00:00 0 \n\
            7f0000600000-7f0000601000 rw-p 0001a000 08:01 1234                       /usr/lib/libc.so.6\n\
            7f0000700000-7f0000701000 rw-s 00000000 00:01 2048                       /dev/zero (deleted)\n\
            7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n";
        let found: Vec<(u64, u64)> = private(maps).collect();
        assert_eq!(found, [(0x55d0_c000_0000, 0x55d0_c002_1000), (0x7f00_0000_0000, 0x7f00_0040_0000)]);
    }
}
