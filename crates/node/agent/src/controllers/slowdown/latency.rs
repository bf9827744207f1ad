//! The measured latencies of the slow node, and of the node to which its memory is promoted (`slow.measure_latency`).

use kernel::latency::Probe;
use policy::slowdown::latency::Measured;

use crate::slow_node::SlowNode;

/// What measures one node, and what it found. If a measurement fails, the last figure stays.
#[derive(Debug, Default)]
struct Timed {
    probe: Option<Probe>,
    measured: Measured,
}

impl Timed {
    fn measure(&mut self, node: u32) -> kernel::Result<()> {
        let probe = match self.probe.take().filter(|probe| probe.node() == node) {
            Some(probe) => probe,
            None => {
                self.measured = Measured::default();
                Probe::open(node)?
            }
        };
        let ns = self.probe.insert(probe).measure()?;
        self.measured.take(ns);
        Ok(())
    }
}

/// The latencies of both nodes.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    slow: Timed,
    home: Timed,
    /// The last reported error; a repeated error is reported once.
    error: Option<String>,
}

impl Latencies {
    /// Measures both nodes. Returns what to report, if a measurement failed in another way than before.
    pub(super) fn measure(&mut self, node: &mut SlowNode) -> Option<String> {
        let failed = self.slow.measure(node.node).and(self.home.measure(node.home)).err().map(|error| error.to_string());
        node.take_measured(&self.slow.measured, &self.home.measured);
        if failed == self.error {
            return None;
        }
        self.error.clone_from(&failed);
        failed.map(|error| format!("the latency of slow memory is not measured, and the known one counts: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::*;

    fn node(node: u32) -> SlowNode {
        let (latency_ns, latency_from, bytes) = (400, "HMAT", Bytes::gib(1));
        let (measured_ns, home_measured_ns) = (None, None);
        SlowNode { node, home: node + 1, latency_ns, latency_from, measured_ns, home_measured_ns, total_bytes: bytes, free_bytes: bytes }
    }

    #[test]
    fn a_node_that_cannot_be_measured_keeps_its_known_latency_and_is_reported_once() {
        let mut latencies = Latencies::default();
        let mut slow = node(1_000);
        let reported = latencies.measure(&mut slow);
        assert!(reported.is_some_and(|what| what.contains("the known one counts")));
        assert_eq!((slow.latency_ns, slow.latency_from, slow.measured_ns), (400, "HMAT", None));
        assert_eq!(latencies.measure(&mut slow), None);
    }
}
