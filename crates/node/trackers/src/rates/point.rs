//! The unit of sampling: one page.

/// One page of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The process.
    pub pid: i32,
    /// Address of the page's first byte.
    pub address: u64,
}
