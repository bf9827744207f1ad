//! Helpers for the tests of this crate.
#![allow(unsafe_code)]

use std::path::Path;

use tempfile::TempDir;

use crate::{Malformed, Roots, page_size};

/// A fake machine: a temporary directory with the given files.
pub(crate) fn tree(files: &[(&str, &str)]) -> (TempDir, Roots) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (path, text) in files {
        put(directory.path(), path, text);
    }
    let roots = Roots::under(directory.path());
    (directory, roots)
}

/// Writes one file of a fake machine and creates its parent directories.
pub(crate) fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    std::fs::write(path, text).expect("a file");
}

/// Reads a file of a fake machine.
pub(crate) fn get(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).expect("a file")
}

/// Truncates `text` at every character and corrupts every character in turn. For each variant the parser must return a value
/// or an error that names a line of the text, and it must reject at least one variant.
pub(crate) fn cut_everywhere<T>(text: &str, parse: impl Fn(&str) -> Result<T, Malformed>) {
    assert!(parse(text).is_ok(), "the whole text must parse");
    let mut refused = 0;
    let mut judge = |damaged: &str| {
        if let Err(malformed) = parse(damaged) {
            refused += 1;
            assert!(malformed.line <= damaged.lines().count().max(1), "line {} of {damaged:?}", malformed.line);
            assert!(malformed.value.chars().count() <= 80);
        }
    };
    for (at, letter) in text.char_indices() {
        judge(&text[..at]);
        for junk in ["\0", "-", "\n", "9", " ", "é"] {
            judge(&[&text[..at], junk, &text[at + letter.len_utf8()..]].concat());
        }
    }
    assert!(refused > 0, "no corruption was detected");
}

/// Private anonymous memory of this process, in small pages, unmapped when dropped.
pub(crate) struct Mapping {
    start: *mut u8,
    pages: usize,
}

impl Mapping {
    pub(crate) fn new(pages: usize) -> Self {
        Self::mapped(pages, 0)
    }

    /// A reservation: it may be larger than the machine's memory and swap space.
    pub(crate) fn reserved(pages: usize) -> Self {
        Self::mapped(pages, libc::MAP_NORESERVE)
    }

    fn mapped(pages: usize, more: i32) -> Self {
        let length = pages * Self::page();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "mmap");
        // SAFETY: the advice concerns only this mapping and does not change its content.
        unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
        Self { start: start.cast(), pages }
    }

    pub(crate) fn page() -> usize {
        usize::try_from(page_size().bytes()).expect("a page size")
    }

    /// Writes to one page.
    pub(crate) fn touch(&self, page: usize) {
        assert!(page < self.pages);
        // SAFETY: the byte lies within the mapping, which is writable and to which no reference exists.
        unsafe { self.start.add(page * Self::page()).write_volatile(1) };
    }

    /// The addresses of a range of pages.
    pub(crate) fn range(&self, pages: std::ops::Range<usize>) -> std::ops::Range<u64> {
        let at = |page| (self.start.addr() + page * Self::page()) as u64;
        at(pages.start)..at(pages.end)
    }

    /// Unmaps a range of pages.
    pub(crate) fn unmap(&self, pages: std::ops::Range<usize>) {
        assert!(pages.end <= self.pages);
        // SAFETY: the pages lie within the mapping, and no reference into it exists.
        unsafe { libc::munmap(self.start.add(pages.start * Self::page()).cast(), pages.len() * Self::page()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.unmap(0..self.pages);
    }
}

/// The pid of this process.
pub(crate) fn own_pid() -> i32 {
    i32::try_from(std::process::id()).expect("a pid")
}
