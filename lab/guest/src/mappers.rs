//! One of several processes that map the same file, as the processes of a database map its buffers.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::linux::mapping::{Mapping, page_bytes};
use crate::linux::signals::Signals;

/// The file, and what is accessed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A file, of which every page is read once
    file: PathBuf,
    /// Of this much, from its beginning, every page is read in each period
    #[arg(long, value_name = "MIB")]
    hot_mib: usize,
    /// Milliseconds from period to period
    #[arg(long, value_name = "MS", default_value_t = 100)]
    period_ms: u64,
}

/// Maps the file, reads all of it once, prints `ready`, and reads the hot part until `SIGTERM`.
///
/// # Errors
/// The file cannot be mapped, or is smaller than its hot part.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT])?;
    let context = || arguments.file.display().to_string();
    let file = OpenOptions::new().read(true).write(true).open(&arguments.file).with_context(context)?;
    let bytes = usize::try_from(file.metadata().with_context(context)?.len())?;
    let hot = arguments.hot_mib << 20;
    ensure!(hot <= bytes, "{} has {bytes} bytes, fewer than its hot part", arguments.file.display());
    let mapping = Mapping::shared(&file, bytes).with_context(context)?;
    mapping.touch(0..bytes / page_bytes(), false);
    println!("ready");
    std::io::stdout().flush()?;
    while signals.take(Some(Duration::from_millis(arguments.period_ms))).is_none() {
        mapping.touch(0..hot / page_bytes(), false);
    }
    Ok(())
}
