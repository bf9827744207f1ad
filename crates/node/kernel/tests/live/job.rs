//! The observed process: a workload of known memory in a cgroup of its own.

use std::env;
use std::error::Error as StdError;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use kernel::Roots;
use kernel::cgroup::{self, Cgroup, CgroupRoot};
use kernel::lru_gen::{LruGen, Memcg};
use kernel::pagemap::{Entry, Pagemap};

use crate::{Check, ensure};

/// The workload's memory, in MiB.
pub(crate) const MIB: usize = 32;

/// The observed process: fills its memory, prints its address, and touches a range of pages on request. Exits when its standard
/// input is closed.
pub(crate) fn workload() -> ExitCode {
    let page = usize::try_from(kernel::page_size().bytes()).unwrap_or(4096);
    // Memory is charged to the cgroup that its process is in at the first touch, so the move there comes first.
    let mut go = String::new();
    if std::io::stdin().read_line(&mut go).is_err() {
        return ExitCode::FAILURE;
    }
    let mut memory = vec![0_u8; MIB << 20];
    for (index, word) in memory.chunks_exact_mut(16).enumerate() {
        word[..8].copy_from_slice(&(index as u64 / 7).to_ne_bytes());
    }
    println!("{}", memory.as_ptr().addr().next_multiple_of(page));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let mut bounds = line.split(' ').filter_map(|word| word.parse::<usize>().ok());
        let (Some(from), Some(to)) = (bounds.next(), bounds.next()) else { return ExitCode::FAILURE };
        forget_translations();
        let skew = memory.as_ptr().addr().next_multiple_of(page) - memory.as_ptr().addr();
        for index in from..to {
            memory[skew + index * page] = memory[skew + index * page].wrapping_add(1);
        }
        println!("done");
    }
    ExitCode::SUCCESS
}

/// Flushes the TLB, so that the next access sets the accessed bit: the kernel clears the bit without a flush. Unmapping a large
/// range flushes all entries, and an allocation of over 32 MiB is always a separate mapping.
fn forget_translations() {
    let mut wide = vec![0_u8; 40 << 20];
    for end in [0, (40 << 20) - 1] {
        wide[end] = 1;
    }
    drop(std::hint::black_box(wide));
}

/// A workload in a cgroup of its own; both end with it.
pub(crate) struct Job {
    pub(crate) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) cgroup: Cgroup,
    pub(crate) start: u64,
    /// Whole pages of the workload's memory that the checks use.
    pub(crate) pages: usize,
}

impl Job {
    pub(crate) fn start(roots: &Roots, name: &str) -> Result<Self, Box<dyn StdError>> {
        let cgroup = cgroup::create(&CgroupRoot::probe(roots)?, name)?;
        let mut child = Command::new(env::current_exe()?).arg("workload").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        cgroup.move_process(i32::try_from(child.id())?)?;
        let mut input = child.stdin.take().ok_or("no standard input")?;
        writeln!(input, "go")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let pages = (MIB << 20) / usize::try_from(kernel::page_size().bytes())? - 1;
        Ok(Self { child, input, output, cgroup, start: line.trim().parse()?, pages })
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    pub(crate) fn touch(&mut self, from: usize, to: usize) -> Check {
        writeln!(self.input, "{from} {to}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(ensure(line == "done\n", || format!("the workload answered {line:?}"))?)
    }

    /// The addresses of its pages from one index to another.
    pub(crate) fn range(&self, from: usize, to: usize) -> Range<u64> {
        let at = |index: usize| self.start + index as u64 * kernel::page_size().bytes();
        at(from)..at(to)
    }

    pub(crate) fn entries(&self, roots: &Roots) -> kernel::Result<Vec<Entry>> {
        let mut entries = vec![Entry::default(); self.pages];
        let count = Pagemap::open(roots, self.pid())?.read(self.start, &mut entries)?;
        entries.truncate(count);
        Ok(entries)
    }

    /// Its row in a reading of `lru_gen`. A removed cgroup keeps its row, name and all, while pages are charged to it: the
    /// living one is listed last, and has the inode number as its id where the kernel prints that.
    pub(crate) fn generations(&self, lru_gen: &LruGen) -> Result<Memcg, Box<dyn StdError>> {
        let mut named: Vec<_> = lru_gen.read()?.into_iter().filter(|memcg| memcg.path == self.cgroup.name()).collect();
        named.sort_by_key(|memcg| memcg.id == self.cgroup.id());
        let found = named.pop();
        Ok(found.ok_or_else(|| format!("{} is not in lru_gen", self.cgroup.name()))?)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.cgroup.remove();
    }
}
