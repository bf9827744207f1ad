//! The files of slices: made, found, locked, made anew.
//!
//! A slice that is free at generation 6 has one file, that of generation 7, which is zero and which nobody has opened. Assigning it makes
//! it generation 7's, and touches no file. To scrub is to make the file of the next generation and remove all others, each under its lock:
//! a file whose name is gone is read by nobody who opens it later, and its pages go back to the system with its last user.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pool::{EmcId, Generation, Pool, SliceId, State};

use crate::claim;
use crate::layout::Layout;

/// What is wrong with the directory of a pool.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read or written.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Guests that touch all of their memory would be killed.
    #[error(
        "the pool needs {needed} bytes and the file system of {path} has {size}; make it larger (mount -o remount,size=...), or allow it by --overcommit"
    )]
    Small {
        /// The directory.
        path: PathBuf,
        /// All slices.
        needed: u64,
        /// All there is.
        size: u64,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

/// The generations of which each slice of an EMC has a file.
pub(crate) type Found = BTreeMap<u32, Vec<Generation>>;

/// The files of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    layout: Layout,
    mode: u32,
}

/// What came of making a slice anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scrub {
    /// It is zero, and nobody's.
    Done,
    /// Somebody still uses it.
    InUse,
}

impl Files {
    /// The files of a pool, whose permissions are `mode`.
    #[must_use]
    pub(crate) fn new(layout: Layout, mode: u32) -> Self {
        Self { layout, mode }
    }

    /// Fails if the file system could not hold `capacity` bytes even if it held nothing else.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn check_room(&self, capacity: u64) -> Result<(), Error> {
        let path = &self.layout.directory;
        let about = rustix::fs::statvfs(path).map_err(io::Error::from).map_err(failed("look at", path))?;
        let size = about.f_blocks.saturating_mul(about.f_frsize);
        // A memory file system without a limit says that it has no blocks.
        if size > 0 && size < capacity {
            return Err(Error::Small { path: path.clone(), needed: capacity, size });
        }
        Ok(())
    }

    /// Makes the directory of an EMC if need be.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn make_emc(&self, emc: EmcId) -> Result<(), Error> {
        let path = self.layout.emc(emc);
        std::fs::create_dir_all(&path).map_err(failed("make", &path))
    }

    /// What files there are.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn look(&self, emc: EmcId) -> Result<Found, Error> {
        let path = self.layout.emc(emc);
        let mut found = Found::new();
        for entry in std::fs::read_dir(&path).map_err(failed("list", &path))? {
            let name = entry.map_err(failed("list", &path))?.file_name();
            if let Some((index, generation)) = Layout::parse(Path::new(&name)) {
                found.entry(index).or_default().push(generation);
            }
        }
        Ok(found)
    }

    /// Makes the files that free slices lack: of a new pool, of one that has grown, of one whose files were lost with the
    /// machine's memory. Returns how many.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn make_missing(&self, pool: &Pool) -> Result<u32, Error> {
        let mut made = 0;
        let mut of: Option<(EmcId, Found)> = None;
        for (slice, record) in pool.slices().filter(|(_, record)| record.state == State::Free) {
            if of.as_ref().is_none_or(|(emc, _)| *emc != slice.emc) {
                self.make_emc(slice.emc)?;
                of = Some((slice.emc, self.look(slice.emc)?));
            }
            let next = next(record.generation);
            let there = of.as_ref().and_then(|(_, found)| found.get(&slice.index)).is_some_and(|generations| generations.contains(&next));
            if !there {
                self.make(slice, next)?;
                made += 1;
            }
        }
        Ok(made)
    }

    /// Takes the lock of a slice in somebody's hands. The inner is none if its file is gone: nobody can open it then. None
    /// if it is in use.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn lock(&self, slice: SliceId, generation: Generation) -> Result<Option<Option<File>>, Error> {
        let path = self.layout.path(slice, generation);
        match claim::lock(&path).map_err(failed("lock", &path))? {
            Some(file) => Ok(Some(Some(file))),
            None if path.exists() => Ok(None),
            None => Ok(Some(None)),
        }
    }

    /// Makes the file of the next owner, and removes all others of that slice. Whoever holds a lock on one of them keeps
    /// the slice from being scrubbed; `held` is a lock that the caller has on that of `generation`.
    ///
    /// # Errors
    /// [`enum@Error`]; the slice is not zero then.
    pub(crate) fn scrub(&self, slice: SliceId, generation: Generation, found: &Found, held: Option<File>) -> Result<Scrub, Error> {
        let mut locks = vec![held];
        let generations = found.get(&slice.index).map_or(&[][..], Vec::as_slice);
        for &other in generations {
            if other == generation && locks.iter().any(Option::is_some) {
                continue;
            }
            match self.lock(slice, other)? {
                Some(lock) => locks.push(lock),
                None => return Ok(Scrub::InUse),
            }
        }
        // One of this name may be left of a scrub that was cut short.
        let next = next(generation);
        self.remove(slice, next)?;
        self.make(slice, next)?;
        for &other in generations.iter().filter(|other| **other != next) {
            self.remove(slice, other)?;
        }
        // Until here nobody could take it; now nobody can open it.
        drop(locks);
        Ok(Scrub::Done)
    }

    fn remove(&self, slice: SliceId, generation: Generation) -> Result<(), Error> {
        let path = self.layout.path(slice, generation);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    fn make(&self, slice: SliceId, generation: Generation) -> Result<(), Error> {
        let path = self.layout.path(slice, generation);
        // It gets its name with its size: a file of this name is a whole slice.
        let draft = path.with_extension(format!("{}.new", generation.0));
        let make = || -> io::Result<()> {
            match std::fs::remove_file(&draft) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = OpenOptions::new().write(true).create_new(true).mode(self.mode).open(&draft)?;
            // The process' umask has had its say before.
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(self.mode))?;
            file.set_len(self.layout.slice_bytes.0)?;
            std::fs::rename(&draft, &path)
        };
        make().map_err(failed("make", &path))
    }
}

/// The generation that begins when a free slice is assigned.
pub(crate) fn next(generation: Generation) -> Generation {
    Generation(generation.0.wrapping_add(1))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use pool::{Config, Ns};

    use super::*;

    const SLICE: SliceId = SliceId { emc: EmcId(0), index: 1 };

    fn files(directory: &Path) -> (Files, Pool) {
        let files = Files::new(Layout { directory: directory.to_owned(), slice_bytes: units::Bytes(1 << 20) }, 0o640);
        let config = Config { emc_slices: vec![2], hosts: 1, buffer_slices: 0, answer_within: Ns(1), ask_again_after: Ns(1) };
        let pool = Pool::new(config);
        assert_eq!(files.make_missing(&pool).unwrap(), 2);
        (files, pool)
    }

    #[test]
    fn a_scrubbed_slice_is_another_file() {
        let directory = tempfile::tempdir().unwrap();
        let (files, pool) = files(directory.path());
        assert_eq!(files.make_missing(&pool).unwrap(), 0);
        let used = files.lock(SLICE, Generation(1)).unwrap().unwrap().unwrap();
        used.write_all_at(b"secret", 4096).unwrap();
        let found = files.look(EmcId(0)).unwrap();
        assert_eq!(files.scrub(SLICE, Generation(1), &found, None).unwrap(), Scrub::InUse);
        assert!(files.lock(SLICE, Generation(1)).unwrap().is_none(), "it is in use");
        drop(used);
        assert_eq!(files.scrub(SLICE, Generation(1), &found, None).unwrap(), Scrub::Done);
        assert_eq!(files.look(EmcId(0)).unwrap()[&1], [Generation(2)]);
        let next = files.lock(SLICE, Generation(2)).unwrap().unwrap().unwrap();
        let mut read = [1; 6];
        next.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!(read, [0; 6]);
        assert!(files.lock(SLICE, Generation(1)).unwrap().unwrap().is_none(), "the old one is gone");
    }

    #[test]
    fn a_scrub_that_was_cut_short_is_done_again() {
        let directory = tempfile::tempdir().unwrap();
        let (files, _) = files(directory.path());
        // The next file is there already, and was written to; so is a draft.
        let path = |name: &str| directory.path().join("emc-0").join(name);
        std::fs::write(path("slice-000001.2"), [7; 1 << 20]).unwrap();
        std::fs::write(path("slice-000001.2.new"), [7; 10]).unwrap();
        let found = files.look(EmcId(0)).unwrap();
        let held = files.lock(SLICE, Generation(1)).unwrap().unwrap();
        assert_eq!(files.scrub(SLICE, Generation(1), &found, held).unwrap(), Scrub::Done);
        let made = std::fs::read(path("slice-000001.2")).unwrap();
        assert!(made.len() == 1 << 20 && made.iter().all(|&byte| byte == 0));
        assert!(!path("slice-000001.2.new").exists() && !path("slice-000001.1").exists());
    }

    #[test]
    fn a_pool_must_fit_its_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let (files, _) = files(directory.path());
        files.check_room(1 << 20).unwrap();
        let told = files.check_room(1 << 60).unwrap_err().to_string();
        assert!(told.contains("--overcommit"), "{told}");
    }
}
