//! The `expect` operation: waits for a line in a file that grows or does not exist yet.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::linux::inotify::Inotify;

use super::protocol::{Expect, Fields};
use super::seconds;

/// Longer lines are split after this number of bytes.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Waits until a line of the file contains the text, including lines that exist already.
///
/// The last line counts without its line break only after the time limit, because its writer may not have finished it.
/// Files of `/proc` and `/sys` have no change notifications, so this works only for files that programs write.
///
/// # Errors
/// No such line appeared in time, or the file cannot be read or watched.
pub(super) fn expect(request: &Expect) -> Result<Fields> {
    let deadline = Instant::now() + seconds("timeout_s", request.timeout_s)?;
    let mut inotify = Inotify::new().context("cannot create an inotify instance (inotify_init1)")?;
    let mut follower = Follower::new(&request.path);
    loop {
        // Add the watch before reading, so that no change in between is missed.
        watch(&inotify, &request.path)?;
        if let Some(line) = follower.read_until(&request.contains)? {
            return Ok(Fields::from_iter([("line".to_owned(), line.into())]));
        }
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            let rest = follower.rest();
            if rest.contains(&request.contains) {
                return Ok(Fields::from_iter([("line".to_owned(), rest.into())]));
            }
            bail!(
                "no line of {} contained {:?} within {} s; {}",
                request.path.display(),
                request.contains,
                request.timeout_s,
                follower.describe()
            );
        };
        inotify.wait(left).context("cannot wait for file changes")?;
    }
}

/// Watches the directory of `path`, or its nearest existing ancestor.
fn watch(inotify: &Inotify, path: &Path) -> Result<()> {
    let mut directory = parent(path);
    loop {
        match inotify.watch(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound && parent(directory) != directory => {
                directory = parent(directory);
            }
            other => return other.with_context(|| format!("cannot watch {}", directory.display())),
        }
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Reads a growing file by lines; starts over when it is truncated or replaced.
struct Follower {
    path: PathBuf,
    /// The open file and its inode number.
    file: Option<(File, u64)>,
    /// The current line, which has no line break yet.
    rest: Vec<u8>,
    last_line: Option<String>,
}

impl Follower {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, rest: Vec::new(), last_line: None }
    }

    /// Reads new data and returns the first complete line that contains `text`.
    fn read_until(&mut self, text: &str) -> Result<Option<String>> {
        self.reopen_if_replaced().with_context(|| format!("cannot open {}", self.path.display()))?;
        let Some((file, _)) = &mut self.file else { return Ok(None) };
        let mut chunk = [0; 1 << 14];
        loop {
            let got = file.read(&mut chunk).with_context(|| format!("cannot read {}", self.path.display()))?;
            if got == 0 {
                return Ok(None);
            }
            for &byte in &chunk[..got] {
                if byte != b'\n' {
                    self.rest.push(byte);
                    if self.rest.len() < LINE_BYTES_MAX {
                        continue;
                    }
                }
                let line = String::from_utf8_lossy(&self.rest).into_owned();
                self.rest.clear();
                if line.contains(text) {
                    return Ok(Some(line));
                }
                self.last_line = Some(line);
            }
        }
    }

    fn reopen_if_replaced(&mut self) -> std::io::Result<()> {
        let now = match std::fs::metadata(&self.path) {
            Ok(now) => now,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some((file, inode)) = &mut self.file {
            let truncated = file.stream_position()? > now.len();
            if *inode == now.ino() && !truncated {
                return Ok(());
            }
        }
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(0))?;
        let inode = file.metadata()?.ino();
        self.file = Some((file, inode));
        self.rest.clear();
        Ok(())
    }

    fn rest(&self) -> String {
        String::from_utf8_lossy(&self.rest).into_owned()
    }

    /// Describes the file's state, for the error message.
    fn describe(&self) -> String {
        match (&self.file, &self.last_line) {
            (None, _) => "the file did not exist".to_owned(),
            (Some(_), None) => "it had no complete line".to_owned(),
            (Some(_), Some(line)) => format!("its last line was {line:?}"),
        }
    }
}
