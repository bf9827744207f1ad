//! The memory of this machine.

use kernel::thp::Splitter;
use kernel::{Result, Roots};

use super::Memory;
use crate::rates::blocks::{self, Block};

/// Blocks of processes of this machine.
#[derive(Debug)]
pub struct Host<'a> {
    /// Where the kernel's files are.
    pub roots: &'a Roots,
    /// What splits huge pages; none, to leave them whole.
    pub splitter: Option<&'a Splitter>,
}

impl Memory for Host<'_> {
    fn present(&self, block: &Block) -> Result<Vec<u64>> {
        blocks::present(self.roots, block)
    }

    fn split(&self, block: &Block) -> Result<bool> {
        let Some(splitter) = self.splitter else { return Ok(false) };
        match splitter.split(block.pid, &block.range()) {
            // The kernel may leave out what is pinned or on its way without telling: what counts is what is there now.
            Ok(_) => Ok(!blocks::is_huge(self.roots, block)?),
            Err(error) if error.is_gone() => Err(error),
            Err(error) => {
                log::debug!("{error}");
                Ok(false)
            }
        }
    }
}
