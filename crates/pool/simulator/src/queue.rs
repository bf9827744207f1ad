//! A queue of events, ordered by time and then by the order in which they were scheduled, or in which they were recorded.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use pool::Ns;

/// Scheduled events.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    scheduled: BinaryHeap<Reverse<Scheduled<E>>>,
    sequence: u64,
}

#[derive(Clone, Debug)]
struct Scheduled<E> {
    at: Ns,
    /// Number of a recorded event; 0 for others.
    recorded: u64,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.recorded, self.sequence).cmp(&(other.at, other.recorded, other.sequence))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { scheduled: BinaryHeap::new(), sequence: 0 }
    }
}

impl<E> Queue<E> {
    /// Schedules an event.
    pub fn schedule(&mut self, at: Ns, event: E) {
        self.schedule_recorded(at, 0, event);
    }

    /// Schedules an event that has the number `recorded`, from 1, among those of the same source. Of the events of one instant, those
    /// with numbers come last, by their numbers: what followed from an earlier one at once is done before the next.
    pub fn schedule_recorded(&mut self, at: Ns, recorded: u64, event: E) {
        self.scheduled.push(Reverse(Scheduled { at, recorded, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    /// Removes and returns the next event with its time.
    pub fn pop(&mut self) -> Option<(Ns, E)> {
        self.scheduled.pop().map(|Reverse(next)| (next.at, next.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_events_keep_the_order_of_scheduling() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (4, 'e'), (5, 'f')] {
            queue.schedule(Ns(at), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "bdeacf");
    }

    #[test]
    fn recorded_events_keep_their_order_within_an_instant() {
        let mut queue = Queue::default();
        for (at, recorded, event) in [(5, 9, 'a'), (5, 7, 'b'), (5, 0, 'c'), (3, 8, 'd'), (5, 7, 'e')] {
            queue.schedule_recorded(Ns(at), recorded, event);
        }
        assert_eq!(queue.pop(), Some((Ns(3), 'd')));
        assert_eq!(queue.pop(), Some((Ns(5), 'c')));
        assert_eq!(queue.pop(), Some((Ns(5), 'b')));
        // A consequence of the last event comes before the next recorded one.
        queue.schedule(Ns(5), 'f');
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "fea");
    }
}
