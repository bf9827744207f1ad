//! What the sampler needs of a block besides its accessed bits: the present pages, and splitting.

use kernel::thp::Splitter;
use kernel::{Result, Roots};

use crate::rates::blocks::{self, Block};

/// Operations on a sampled block.
pub trait Memory {
    /// Returns the addresses of the block's pages that are present.
    ///
    /// # Errors
    /// `Gone` if the process has exited; any other error of the kernel's files.
    fn present(&self, block: &Block) -> Result<Vec<u64>>;

    /// Splits a huge page. Returns whether it consists of base pages now.
    ///
    /// # Errors
    /// `Gone` if the process has exited; any other error of the kernel's interface.
    fn split(&self, block: &Block) -> Result<bool>;

    /// Returns whether the block is one huge page now: khugepaged may have collapsed it again.
    ///
    /// # Errors
    /// As [`Memory::present`].
    fn is_huge(&self, block: &Block) -> Result<bool>;
}

/// Blocks of processes of this machine.
#[derive(Debug)]
pub struct Host<'a> {
    /// Root directories of the kernel's files.
    pub roots: &'a Roots,
    /// Splits huge pages; `None` leaves them whole.
    pub splitter: Option<&'a Splitter>,
}

impl Memory for Host<'_> {
    fn present(&self, block: &Block) -> Result<Vec<u64>> {
        blocks::present(self.roots, block)
    }

    fn is_huge(&self, block: &Block) -> Result<bool> {
        blocks::is_huge(self.roots, block)
    }

    fn split(&self, block: &Block) -> Result<bool> {
        let Some(splitter) = self.splitter else { return Ok(false) };
        match splitter.split(block.pid, &block.range()) {
            // The kernel reports no error for a page that it skipped because it was pinned or being migrated: check.
            Ok(_) => Ok(!blocks::is_huge(self.roots, block)?),
            Err(error) if error.is_gone() => Err(error),
            Err(error) => {
                log::debug!("{error}");
                Ok(false)
            }
        }
    }
}
