//! Regions: memory that is created, filled and accessed according to the specification.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::content::{self, Content};
use crate::linux::clock::monotonic_ns;
use crate::linux::mapping::{Advice, Mapping, memory_file, page_bytes};

use super::layout::with_suffix;
use super::record::Record;
use super::spec::{HUGE_PAGE_BYTES, Kind, Pattern, RegionSpec};

/// A region that is mapped and filled.
pub(super) struct Region {
    /// Its index among the workload's regions.
    pub(super) index: usize,
    pub(super) spec: RegionSpec,
    pub(super) mapping: Mapping,
    /// The file created for a `file` region.
    file: Option<PathBuf>,
}

/// Returns the file of a `file` region without a path in the specification.
fn default_path(layout: &Path, name: &str) -> PathBuf {
    with_suffix(layout, &format!(".{name}.data"))
}

impl Region {
    /// Creates and fills a region. Afterwards all of its pages are in memory and mapped.
    ///
    /// # Errors
    /// There is not enough memory or disk space.
    pub(super) fn new(index: usize, spec: &RegionSpec, seed: u64, layout: &Path) -> Result<Self> {
        let bytes = usize::try_from(spec.bytes)?;
        let mut file = None;
        let filling = Filling { seed, region: index, content: spec.kind.content() };
        let mapping = match spec.kind {
            Kind::Anon | Kind::Incompressible | Kind::Weights | Kind::Huge => {
                let huge = spec.kind == Kind::Huge;
                let align = if huge || spec.pattern.is_by_block() { usize::try_from(HUGE_PAGE_BYTES)? } else { 1 };
                let mapping = Mapping::anonymous(bytes, align)?;
                let advised = mapping.advise(if huge { Advice::HugePage } else { Advice::NoHugePage });
                if huge {
                    // For other kinds, a kernel without transparent huge pages is fine.
                    advised.context("MADV_HUGEPAGE: this kernel has no transparent huge pages")?;
                }
                // Names are a convenience for readers of /proc/PID/maps, and not every kernel supports them.
                let _ = mapping.name(&spec.name);
                filling.each_page(bytes, |offset, page| {
                    mapping.write(offset, page);
                    Ok(())
                })?;
                mapping
            }
            Kind::Shared | Kind::Memfd => filling.map(&memory_file(&spec.name)?, bytes)?,
            Kind::File => {
                let path = spec.path.clone().unwrap_or_else(|| default_path(layout, &spec.name));
                let context = || format!("cannot fill the file {}", path.display());
                let open = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
                let mapping = filling.map(&open.with_context(context)?, bytes).with_context(context)?;
                if matches!(spec.pattern, Pattern::Requests(_)) {
                    // As databases with mapped files do: requests read single pages, so readahead is useless.
                    mapping.advise(Advice::Random).context("MADV_RANDOM")?;
                }
                file = Some(path);
                mapping
            }
        };
        if spec.locked {
            mapping.lock().context("mlock")?;
        }
        Ok(Self { index, spec: spec.clone(), mapping, file })
    }

    /// Removes the region's file, if there is one.
    pub(super) fn remove_file(&self) {
        if let Some(path) = &self.file {
            // The file may be gone already, and the program exits in any case.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Returns the number of pages.
    pub(super) fn pages(&self) -> usize {
        self.mapping.bytes() / page_bytes()
    }

    /// Accesses every page once, in address order, and records it.
    pub(super) fn sweep(&self, record: &Record, missed: u64) {
        record.begin_sweep(self.index, missed, monotonic_ns());
        for unit in 0..record.shape(self.index).units {
            self.access(record, unit);
        }
        record.end_sweep(self.index, monotonic_ns());
    }

    /// Accesses the pages of one unit of the record, and records it.
    pub(super) fn access(&self, record: &Record, unit: usize) {
        self.access_at(record, unit, monotonic_ns());
    }

    /// Like [`Region::access`], with the current time as an argument.
    pub(super) fn access_at(&self, record: &Record, unit: usize, now_ns: u64) {
        let unit_pages = record.shape(self.index).unit_pages;
        let first = unit * unit_pages;
        record.access(self.index, unit, now_ns);
        self.mapping.touch(first..(first + unit_pages).min(self.pages()), self.spec.writes);
    }
}

/// The content of a region.
struct Filling {
    seed: u64,
    region: usize,
    content: Content,
}

impl Filling {
    /// Calls `put` with each page's offset and content.
    fn each_page(&self, bytes: usize, mut put: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let page_bytes = page_bytes();
        let mut content = Vec::with_capacity(2 * page_bytes);
        for offset in (0..bytes).step_by(page_bytes) {
            let page = (offset / page_bytes) as u64;
            let mut rng = content::seeded(&[self.seed, self.region as u64, page]);
            content.clear();
            self.content.write(&mut content, page_bytes, (self.region as u64) << 40 | page, &mut rng);
            put(offset, &content)?;
        }
        Ok(())
    }

    /// Fills a file by writing, so that a full disk is an error and not a signal, and maps it.
    fn map(&self, file: &File, bytes: usize) -> Result<Mapping> {
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        self.each_page(bytes, |_, page| Ok(writer.write_all(page)?))?;
        writer.flush()?;
        drop(writer);
        // Written pages are made clean, like those of a program that reads its files.
        file.sync_all()?;
        let mapping = Mapping::shared(file, bytes)?;
        mapping.advise(Advice::NoHugePage).or_else(|error| {
            // The kernel has no transparent huge pages.
            if error.kind() == std::io::ErrorKind::InvalidInput { Ok(()) } else { Err(error) }
        })?;
        Ok(mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the compression ratio of a content, and that no two pages are equal.
    fn check(content: Content, ratios: std::ops::Range<f64>) {
        let mut pages = std::collections::HashSet::new();
        let mut compressed = 0;
        for region in 0..2 {
            let filling = Filling { seed: 3, region, content };
            let put = |_, page: &[u8]| {
                compressed += lz4_flex::block::compress(page).len();
                assert!(pages.insert(page.to_vec()), "two pages are equal");
                Ok(())
            };
            filling.each_page(200 * page_bytes(), put).unwrap();
        }
        let ratio = (pages.len() * page_bytes()) as f64 / compressed as f64;
        assert!(pages.len() == 400 && ratios.contains(&ratio), "{} pages compress {ratio}:1", pages.len());
    }

    #[test]
    fn only_text_compresses() {
        check(Content::Text, 2.7..3.4);
        check(Content::Weights, 0.9..1.05);
        check(Content::Random, 0.9..1.0);
    }
}
