//! Files for readers that take a path.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tempfile::TempDir;

/// The directory of this process, in memory if the machine has such a file system.
static DIRECTORY: LazyLock<Option<TempDir>> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.ok()
});

/// Runs `read` on a file with this name and content; no result if it cannot be written.
pub(crate) fn with_file(name: &str, bytes: &[u8], read: impl FnOnce(&Path) -> bool) -> bool {
    let Some(path) = path(name) else { return false };
    std::fs::write(&path, bytes).is_ok() && read(&path)
}

/// A path in the directory. Each thread has its own: tests run side by side.
fn path(name: &str) -> Option<PathBuf> {
    let directory = DIRECTORY.as_ref()?.path().join(format!("{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory.join(name))
}
