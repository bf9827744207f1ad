//! Scrubbing in a group: the leader zeroes the slices of devices that have no owner.
//!
//! # Problem
//! All members reach the devices. A leader that was stopped while it zeroed a slice, and was deposed meanwhile, would go on when it
//! continues, and destroy the data of the slice's next owner: no device refuses it.
//!
//! # Approach
//! Only a slice that was to be zeroed when the present term began can be in such hands. The leader zeroes it, and so lets it be assigned,
//! only after every other member has answered that it zeroes nothing and knows of the present term: it then begins with nothing, because
//! it confirms its own leadership first, under the lock that the answer tests. A member that does not answer holds up these slices
//! alone; all others are zeroed at once.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pool::{Generation, SliceId};

use crate::group::Group;
use crate::layout::Layout;
use crate::ledger::Request;
use crate::writer::{Handle, Wake};

/// Interval of rounds, unless there are slices to scrub.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of rounds while other members are asked.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// A round zeroes slices of 1 GiB.
const ROUND_LIMIT: Duration = Duration::from_secs(60 * 60);

struct Scrubber {
    handle: Handle,
    group: Group,
    layout: Layout,
    term: u64,
    /// Slices that an earlier leader may be zeroing.
    held: BTreeSet<(SliceId, Generation)>,
    /// Members that may be that leader.
    waiting: BTreeSet<u64>,
    /// Slices whose error was logged; a repeated error is logged once.
    reported: BTreeSet<(SliceId, Generation)>,
}

/// Starts the thread that scrubs while this member leads, until it is woken to stop.
pub(crate) fn start(handle: Handle, group: Group, layout: Layout, wake: Receiver<Wake>) -> std::io::Result<thread::JoinHandle<()>> {
    let (held, waiting, reported) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut scrubber = Scrubber { handle, group, layout, term: 0, held, waiting, reported };
    thread::Builder::new().name("maintenance".to_owned()).spawn(move || {
        let member = daemon::watchdog::join("maintenance", ROUND_LIMIT);
        loop {
            let busy = member.busy();
            scrubber.round();
            drop(busy);
            let interval = if scrubber.held.is_empty() { ROUND_INTERVAL } else { ASK_INTERVAL };
            match wake.recv_timeout(interval) {
                Ok(Wake::Scrub) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    })
}

impl Scrubber {
    fn round(&mut self) {
        let Ok(term) = self.group.wait_confirmed() else { return };
        let to_scrub: Vec<_> = self.handle.published().ledger.to_scrub().collect();
        if term != self.term {
            self.term = term;
            self.held = to_scrub.iter().copied().collect();
            self.waiting = self.group.others().collect();
        }
        if !self.held.is_empty() {
            let group = &self.group;
            self.waiting.retain(|member| !group.is_idle(*member, term));
        }
        if self.waiting.is_empty() {
            self.held.clear();
        }
        for (slice, generation) in to_scrub.into_iter().filter(|of| !self.held.contains(of)) {
            match self.zero(slice) {
                None => return,
                Some(Ok(())) => {
                    self.reported.remove(&(slice, generation));
                    if let Err(refused) = self.handle.call(Request::Scrubbed { slice, generation }) {
                        log::debug!("slice {}/{}: {}", slice.emc.0, slice.index, refused.message);
                    }
                }
                Some(Err(error)) if self.reported.insert((slice, generation)) => {
                    log::warn!("slice {}/{} cannot be scrubbed: {error}; retried until it succeeds", slice.emc.0, slice.index);
                }
                Some(Err(_)) => {}
            }
        }
    }

    /// Zeroes a slice; `None` if this member does not lead any more.
    fn zero(&self, slice: SliceId) -> Option<std::io::Result<()>> {
        let _zeroing = self.group.scrubbing();
        if self.group.wait_confirmed().ok() != Some(self.term) {
            return None;
        }
        let Some(device) = self.layout.device(slice.emc) else {
            return Some(Err(std::io::Error::other("the configuration has no device for it")));
        };
        Some(kernel::device_memory::zero(device, self.layout.offset(slice).0, self.layout.slice_bytes))
    }
}
