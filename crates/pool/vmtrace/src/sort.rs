//! Sorts VMs that come in any order into a trace, in bounded memory: sorted runs on disk, followed by a merge.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::about::About;
use crate::error::{Error, Result};
use crate::read::Trace;
use crate::vm::Vm;
use crate::write::{Writer, Written, directory_of};

/// VMs held in memory, about 150 MB.
pub const RUN_VMS: usize = 1 << 20;

/// Collects VMs for one trace file.
#[derive(Debug)]
pub struct Sorter {
    path: PathBuf,
    held: Vec<Vm>,
    run_vms: usize,
    runs: Vec<PathBuf>,
    /// A temporary directory beside the output file, which has space for the output. Removed at the end.
    scratch: Option<TempDir>,
}

impl Sorter {
    /// Creates a sorter for the file `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self::with_runs(path, RUN_VMS)
    }

    pub(crate) fn with_runs(path: &Path, run_vms: usize) -> Self {
        Self { path: path.to_owned(), held: Vec::new(), run_vms, runs: Vec::new(), scratch: None }
    }

    /// Adds a VM.
    ///
    /// # Errors
    /// Any error of writing a run.
    pub fn push(&mut self, vm: Vm) -> Result<()> {
        self.held.push(vm);
        if self.held.len() >= self.run_vms { self.end_run() } else { Ok(()) }
    }

    fn end_run(&mut self) -> Result<()> {
        let scratch = match &self.scratch {
            Some(scratch) => scratch,
            None => {
                let directory = directory_of(&self.path);
                std::fs::create_dir_all(directory).map_err(Error::file(directory, "create"))?;
                let scratch = tempfile::Builder::new().prefix(".sorting-").tempdir_in(directory);
                self.scratch.insert(scratch.map_err(Error::file(directory, "create a directory in"))?)
            }
        };
        let path = scratch.path().join(format!("run-{}.parquet", self.runs.len()));
        let mut writer = Writer::scratch(&path)?;
        self.held.sort_unstable_by_key(Vm::order);
        for vm in self.held.drain(..) {
            writer.push(&vm)?;
        }
        writer.finish(&About::default())?;
        self.runs.push(path);
        Ok(())
    }

    /// Merges the runs and writes the file.
    ///
    /// # Errors
    /// [`Error::Order`] if two VMs have the same id and arrival; any error of reading runs or writing.
    pub fn finish(mut self, about: &About) -> Result<Written> {
        let mut writer = Writer::create(&self.path)?;
        if self.runs.is_empty() {
            self.held.sort_unstable_by_key(Vm::order);
            for vm in &self.held {
                writer.push(vm)?;
            }
            return writer.finish(about);
        }
        if !self.held.is_empty() {
            self.end_run()?;
        }
        let runs = self.runs.iter().map(|path| Trace::open(path)).collect::<Result<Vec<_>>>()?;
        let mut streams: Vec<_> = runs.iter().map(Trace::vms).collect();
        let mut heads: Vec<Option<Vm>> = Vec::new();
        let mut order = BinaryHeap::new();
        for (index, stream) in streams.iter_mut().enumerate() {
            let head = stream.next().transpose()?;
            order.extend(head.as_ref().map(|vm| Reverse((vm.order(), index))));
            heads.push(head);
        }
        while let Some(Reverse((_, index))) = order.pop() {
            let next = streams[index].next().transpose()?;
            order.extend(next.as_ref().map(|vm| Reverse((vm.order(), index))));
            if let Some(vm) = std::mem::replace(&mut heads[index], next) {
                writer.push(&vm)?;
            }
        }
        writer.finish(about)
    }
}
