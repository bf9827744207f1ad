//! Events in their order: by time, and at the same time in the order in which they were planned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use pool::Ns;

/// What is planned.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    planned: BinaryHeap<Reverse<Planned<E>>>,
    sequence: u64,
}

#[derive(Clone, Debug)]
struct Planned<E> {
    at: Ns,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { planned: BinaryHeap::new(), sequence: 0 }
    }
}

impl<E> Queue<E> {
    /// Plans an event.
    pub fn plan(&mut self, at: Ns, event: E) {
        self.planned.push(Reverse(Planned { at, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    /// The next event, with its time.
    pub fn pop(&mut self) -> Option<(Ns, E)> {
        self.planned.pop().map(|Reverse(planned)| (planned.at, planned.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_are_in_the_order_of_planning() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (4, 'e'), (5, 'f')] {
            queue.plan(Ns(at), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "bdeacf");
    }
}
