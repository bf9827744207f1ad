//! The journal's files on disk: appending, rotation, and repair after a crash.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use daemon::trusted;
use units::Bytes;

use super::record::Record;

/// The file that records are appended to, and its predecessors `journal.1`, `journal.2`, ...
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    file: File,
    size: u64,
    size_max: u64,
    files_max: u32,
}

const FILE: &str = "journal";

impl Journal {
    /// Opens the journal in `dir` and truncates a torn last line.
    ///
    /// # Errors
    /// If the directory cannot be created or the file cannot be opened.
    pub fn open(dir: &Path, size_max: Bytes, files_max: u32) -> io::Result<Self> {
        trusted::create_directory(dir)?;
        let mut file = trusted::open_to_append(&dir.join(FILE))?;
        let size = cut_torn_line(&mut file)?;
        Ok(Self { dir: dir.to_owned(), file, size, size_max: size_max.0, files_max })
    }

    /// The path of the newest file in `dir`.
    #[must_use]
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Starts a new file if the current one has reached its maximum size. Returns whether it did; the next records must then
    /// be the agent's and every job's, so that the file is complete in itself.
    ///
    /// # Errors
    /// Any error of renaming or creating files.
    pub fn rotate_if_full(&mut self) -> io::Result<bool> {
        if self.size < self.size_max {
            return Ok(false);
        }
        for n in (1..self.files_max).rev() {
            let from = if n == 1 { self.dir.join(FILE) } else { self.dir.join(format!("{FILE}.{}", n - 1)) };
            if from.exists() {
                fs::rename(from, self.dir.join(format!("{FILE}.{n}")))?;
            }
        }
        self.file = trusted::open_to_append(&self.dir.join(FILE))?;
        // With a single file nothing was renamed, and the old records are dropped.
        self.file.set_len(0)?;
        self.size = 0;
        Ok(true)
    }

    /// Appends a batch of records with one write.
    ///
    /// # Errors
    /// Any error of writing, such as a full disk; then no record of the batch is kept.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(records.len() * 512);
        for record in records {
            serde_json::to_writer(&mut bytes, record)?;
            bytes.push(b'\n');
        }
        if let Err(error) = self.file.write_all(&bytes) {
            // A partial batch followed by further records would make the file unreadable.
            self.file.set_len(self.size)?;
            return Err(error);
        }
        self.size += bytes.len() as u64;
        Ok(())
    }
}

/// Truncates the file after its last newline and returns its size.
fn cut_torn_line(file: &mut File) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = [0u8; 4096];
    let mut from = end;
    while from > 0 {
        let start = from.saturating_sub(block.len() as u64);
        let part = &mut block[..usize::try_from(from - start).unwrap_or(0)];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(newline) = part.iter().rposition(|&b| b == b'\n') {
            end = start + newline as u64 + 1;
            file.set_len(end)?;
            return Ok(end);
        }
        from = start;
    }
    if end > 0 {
        file.set_len(0)?;
    }
    Ok(0)
}
