//! What a law may ask the simulated kernel for.

use policy::balance::AnonFileBias;
use units::Bytes;

/// A request to the kernel. The variants are interfaces of Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `+` in debugfs's `lru_gen`: opens a generation.
    OpenGeneration,
    /// `-` in debugfs's `lru_gen`: evicts the generations up to a number, `most` bytes of them at most. The kernel refuses its two
    /// youngest generations.
    Evict {
        /// The youngest generation to evict.
        up_to: u32,
        /// 1 to 200; 200 prefers anonymous memory.
        swappiness: u8,
        /// The most to evict.
        most: Bytes,
    },
    /// `memory.reclaim`, or what a lower `memory.high` reclaims.
    Reclaim {
        /// How much.
        bytes: Bytes,
        /// From which kind.
        bias: AnonFileBias,
    },
    /// `process_madvise(MADV_PAGEOUT)`, or DAMON's `pageout`: these groups, accessed or not.
    PageOut(Vec<u32>),
    /// These groups move from zswap to the device: another process reads a byte of each page (`process_vm_readv`) and pages them out
    /// (`MADV_PAGEOUT`) while `memory.zswap.max` is 0. The agent does it where `writeback.enabled` is true; no job waits for these reads.
    WriteBack(Vec<u32>),
    /// `memory.zswap.max`: whether zswap stores what is swapped out from now on; otherwise it goes to the device.
    Zswap(bool),
}
