//! Files of slices: creation, listing, locking and scrubbing.
//!
//! A free slice of generation 6 has one file, for generation 7, which is zero and was never opened. Assigning the slice
//! makes it generation 7, and changes no file. Scrubbing creates the file of the next generation and removes all
//! others, each under its lock: a file without a name cannot be opened again, and its pages are freed when its last
//! user closes it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pool::{EmcId, Generation, Pool, SliceId, State};
use units::Bytes;

use crate::claim;
use crate::layout::Layout;

/// An error of the pool's directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file failed.
    #[error("cannot {op} {path}: {source}")]
    File {
        /// The operation.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file system is smaller than the pool: guests that touch all of their memory would be killed.
    #[error(
        "the pool needs {} bytes and the file system of {path} has {}; make it larger (mount -o remount,size=...), or use --overcommit",
        needed.0, size.0
    )]
    TooSmall {
        /// The directory.
        path: PathBuf,
        /// Size of all slices.
        needed: Bytes,
        /// Size of the file system.
        size: Bytes,
    },
}

fn failed(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { op, path, source }
}

/// The generations for which each slice of an EMC has a file.
pub(crate) type Generations = BTreeMap<u32, Vec<Generation>>;

/// The files of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    layout: Layout,
    mode: u32,
}

/// Outcome of scrubbing a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scrub {
    /// The slice is zero.
    Done,
    /// A process still uses it.
    InUse,
}

impl Files {
    /// The files of a pool, with permissions `mode`.
    #[must_use]
    pub(crate) fn new(layout: Layout, mode: u32) -> Self {
        Self { layout, mode }
    }

    /// Checks that the file system can hold `capacity` if it is empty otherwise.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn check_capacity(&self, capacity: Bytes) -> Result<(), Error> {
        let path = &self.layout.directory;
        let stat = rustix::fs::statvfs(path).map_err(io::Error::from).map_err(failed("determine the size of", path))?;
        let size = Bytes(stat.f_blocks.saturating_mul(stat.f_frsize));
        // A memory file system without a limit reports zero blocks.
        if size > Bytes::ZERO && size < capacity {
            return Err(Error::TooSmall { path: path.clone(), needed: capacity, size });
        }
        Ok(())
    }

    /// Creates the directory of an EMC if it does not exist.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn create_directory(&self, emc: EmcId) -> Result<(), Error> {
        let path = self.layout.emc(emc);
        std::fs::create_dir_all(&path).map_err(failed("create", &path))
    }

    /// Whether there are files of any slice.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn exist(&self) -> Result<bool, Error> {
        let directory = &self.layout.directory;
        for entry in std::fs::read_dir(directory).map_err(failed("list", directory))? {
            let path = entry.map_err(failed("list", directory))?.path();
            let is_emc = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"emc-"));
            if is_emc && self.list_directory(&path)?.keys().next().is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lists the files of an EMC.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn list(&self, emc: EmcId) -> Result<Generations, Error> {
        self.list_directory(&self.layout.emc(emc))
    }

    fn list_directory(&self, path: &Path) -> Result<Generations, Error> {
        let mut found = Generations::new();
        for entry in std::fs::read_dir(path).map_err(failed("list", path))? {
            let name = entry.map_err(failed("list", path))?.file_name();
            if let Some((index, generation)) = Layout::parse(Path::new(&name)) {
                found.entry(index).or_default().push(generation);
            }
        }
        Ok(found)
    }

    /// Creates the missing files of free slices: for a new pool, a pool that has grown, or one whose files were lost
    /// when the machine restarted. Returns their number.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn create_missing(&self, pool: &Pool) -> Result<u32, Error> {
        let mut created = 0;
        let mut of: Option<(EmcId, Generations)> = None;
        for (slice, record) in pool.slices().filter(|(_, record)| record.state == State::Free) {
            if of.as_ref().is_none_or(|(emc, _)| *emc != slice.emc) {
                self.create_directory(slice.emc)?;
                of = Some((slice.emc, self.list(slice.emc)?));
            }
            let next = next(record.generation);
            let there = of.as_ref().and_then(|(_, found)| found.get(&slice.index)).is_some_and(|generations| generations.contains(&next));
            if !there {
                self.create(slice, next)?;
                created += 1;
            }
        }
        Ok(created)
    }

    /// Locks a slice of a given generation. The inner option is `None` if the file does not exist, so that no process
    /// can open it; the outer one if a process uses the slice.
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

    /// Creates the file of the next generation, and removes all others of the slice. A process with a lock on one of
    /// them prevents this; `held` is the caller's lock on that of `generation`.
    ///
    /// # Errors
    /// [`enum@Error`]; the slice is not scrubbed then.
    pub(crate) fn scrub(&self, slice: SliceId, generation: Generation, found: &Generations, held: Option<File>) -> Result<Scrub, Error> {
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
        // A scrub that was interrupted may have left a file with this name.
        let next = next(generation);
        self.remove(slice, next)?;
        self.create(slice, next)?;
        for &other in generations.iter().filter(|other| **other != next) {
            self.remove(slice, other)?;
        }
        // Until here the locks excluded other processes; now the files have no names.
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

    fn create(&self, slice: SliceId, generation: Generation) -> Result<(), Error> {
        if let Some(device) = self.layout.device(slice.emc) {
            let offset = self.layout.offset(slice).0;
            kernel::device_memory::zero(device, offset, self.layout.slice_bytes).map_err(failed("zero a slice of", device))?;
        }
        let path = self.layout.path(slice, generation);
        // Renamed when it has its size: a file with this name is a whole slice.
        let draft = path.with_extension(format!("{}.new", generation.0));
        let create = || -> io::Result<()> {
            match std::fs::remove_file(&draft) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = OpenOptions::new().write(true).create_new(true).mode(self.mode).open(&draft)?;
            // The umask applied to the mode at creation.
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(self.mode))?;
            if self.layout.device(slice.emc).is_none() {
                file.set_len(self.layout.slice_bytes.0)?;
            }
            std::fs::rename(&draft, &path)
        };
        create().map_err(failed("create", &path))
    }
}

/// The generation after `generation`, which starts when a free slice is assigned.
pub(crate) fn next(generation: Generation) -> Generation {
    Generation(generation.0.wrapping_add(1))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use pool::{Config, Ns, Slices};

    use super::*;

    const SLICE: SliceId = SliceId { emc: EmcId(0), index: 1 };

    fn files(directory: &Path) -> (Files, Pool) {
        let layout = Layout { directory: directory.to_owned(), slice_bytes: Bytes(1 << 20), devices: Vec::new() };
        let files = Files::new(layout, 0o640);
        let config =
            Config { emc_slices: vec![Slices(2)], hosts: 1, buffer_slices: Slices::ZERO, answer_within: Ns(1), ask_again_after: Ns(1) };
        let pool = Pool::new(config);
        assert_eq!(files.create_missing(&pool).unwrap(), 2);
        (files, pool)
    }

    #[test]
    fn a_scrubbed_slice_is_a_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let (files, pool) = files(directory.path());
        assert_eq!(files.create_missing(&pool).unwrap(), 0);
        let used = files.lock(SLICE, Generation(1)).unwrap().unwrap().unwrap();
        used.write_all_at(b"secret", 4096).unwrap();
        let found = files.list(EmcId(0)).unwrap();
        assert_eq!(files.scrub(SLICE, Generation(1), &found, None).unwrap(), Scrub::InUse);
        assert!(files.lock(SLICE, Generation(1)).unwrap().is_none(), "it is in use");
        drop(used);
        assert_eq!(files.scrub(SLICE, Generation(1), &found, None).unwrap(), Scrub::Done);
        assert_eq!(files.list(EmcId(0)).unwrap()[&1], [Generation(2)]);
        let next = files.lock(SLICE, Generation(2)).unwrap().unwrap().unwrap();
        let mut read = [1; 6];
        next.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!(read, [0; 6]);
        assert!(files.lock(SLICE, Generation(1)).unwrap().unwrap().is_none(), "the old file is removed");
    }

    #[test]
    fn an_interrupted_scrub_is_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let (files, _) = files(directory.path());
        // The next file and a draft exist already, and contain data.
        let path = |name: &str| directory.path().join("emc-0").join(name);
        std::fs::write(path("slice-000001.2"), [7; 1 << 20]).unwrap();
        std::fs::write(path("slice-000001.2.new"), [7; 10]).unwrap();
        let found = files.list(EmcId(0)).unwrap();
        let held = files.lock(SLICE, Generation(1)).unwrap().unwrap();
        assert_eq!(files.scrub(SLICE, Generation(1), &found, held).unwrap(), Scrub::Done);
        let made = std::fs::read(path("slice-000001.2")).unwrap();
        assert!(made.len() == 1 << 20 && made.iter().all(|&byte| byte == 0));
        assert!(!path("slice-000001.2.new").exists() && !path("slice-000001.1").exists());
    }

    #[test]
    fn a_slice_of_a_device_is_zeroed_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("device");
        std::fs::write(&device, vec![7; 2 << 20]).unwrap();
        let (Files { layout, .. }, pool) = files(&directory.path().join("files"));
        let files = Files::new(Layout { devices: vec![Some(device.clone())], directory: directory.path().join("pool"), ..layout }, 0o600);
        assert_eq!(files.create_missing(&pool).unwrap(), 2);
        assert!(std::fs::read(&device).unwrap().iter().all(|&byte| byte == 0), "what was on a new device is not known");
        std::fs::write(&device, vec![7; 2 << 20]).unwrap();
        let found = files.list(EmcId(0)).unwrap();
        assert_eq!(files.scrub(SLICE, Generation(1), &found, None).unwrap(), Scrub::Done);
        let after = std::fs::read(&device).unwrap();
        assert!(after[..1 << 20].iter().all(|&byte| byte == 7) && after[1 << 20..].iter().all(|&byte| byte == 0));
        assert_eq!(files.list(EmcId(0)).unwrap()[&1], [Generation(2)]);
        let file = files.lock(SLICE, Generation(2)).unwrap().unwrap().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0, "the memory is on the device");
        // A device that is gone: the slice stays to be scrubbed.
        std::fs::remove_file(&device).unwrap();
        drop(file);
        assert!(files.scrub(SLICE, Generation(2), &files.list(EmcId(0)).unwrap(), None).is_err());
        assert_eq!(files.list(EmcId(0)).unwrap()[&1], [Generation(2)]);
    }

    #[test]
    fn a_pool_must_fit_its_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let (files, _) = files(directory.path());
        files.check_capacity(Bytes(1 << 20)).unwrap();
        let error = files.check_capacity(Bytes(1 << 60)).unwrap_err().to_string();
        assert!(error.contains("--overcommit"), "{error}");
    }
}
