//! What customers' VMs left untouched, as far as it is known when the next VM is asked for.
//!
//! Only VMs that have ended count. `python/thermocline/learn/history.py` takes the same window for training.

use std::collections::{HashMap, VecDeque};

/// Customers that are remembered at most.
pub const CUSTOMERS_MAX: usize = 100_000;

/// The recent VMs of every customer. Bounded: by entries per customer, and by [`CUSTOMERS_MAX`] customers.
#[derive(Clone, Debug)]
pub struct History {
    window_seconds: i64,
    entries_max: usize,
    /// By customer: when VMs ended, in rising order, and what they left.
    customers: HashMap<u64, VecDeque<(i64, f32)>>,
    refused: u64,
}

impl History {
    /// An empty one that keeps a window of seconds and so many VMs of each customer, the latest.
    #[must_use]
    pub fn new(window_seconds: i64, entries_max: usize) -> Self {
        Self { window_seconds, entries_max, customers: HashMap::new(), refused: 0 }
    }

    /// Notes that a VM has ended, and what share of its memory it never touched. Shares outside 0 to 1 are refused.
    pub fn record(&mut self, customer: u64, ended: i64, untouched_ratio: f64) {
        if !(0.0..=1.0).contains(&untouched_ratio) || !self.room(customer, ended) {
            self.refused = self.refused.saturating_add(1);
            return;
        }
        let of = self.customers.entry(customer).or_default();
        let place = of.partition_point(|&(when, _)| when <= ended);
        #[expect(clippy::cast_possible_truncation, reason = "the model compares 32-bit floats")]
        of.insert(place, (ended, untouched_ratio as f32));
        let newest = of.back().map_or(ended, |&(when, _)| when);
        while of.len() > self.entries_max || of.front().is_some_and(|&(when, _)| when <= newest.saturating_sub(self.window_seconds)) {
            of.pop_front();
        }
    }

    /// Shares of a customer's VMs that ended within the window before a time, latest last, at most as many as are kept.
    pub fn recent(&self, customer: u64, now: i64) -> impl Iterator<Item = f32> + '_ {
        let oldest = now.saturating_sub(self.window_seconds);
        let of = self.customers.get(&customer);
        of.into_iter().flatten().filter(move |&&(when, _)| oldest < when && when <= now).map(|&(_, left)| left)
    }

    /// Customers that are remembered.
    #[must_use]
    pub fn customers(&self) -> usize {
        self.customers.len()
    }

    /// Records that were refused: out of range, or of one customer too many.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Makes room for a customer; forgets those of whom nothing recent is known where there are too many.
    fn room(&mut self, customer: u64, now: i64) -> bool {
        if self.customers.contains_key(&customer) || self.customers.len() < CUSTOMERS_MAX {
            return true;
        }
        let oldest = now.saturating_sub(self.window_seconds);
        self.customers.retain(|_, of| of.back().is_some_and(|&(when, _)| when > oldest));
        self.customers.len() < CUSTOMERS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ended_in_the_window_counts() {
        let check = |records: &[(i64, f64)], now: i64, want: &[f32]| {
            let mut history = History::new(100, 3);
            for &(ended, ratio) in records {
                history.record(7, ended, ratio);
            }
            history.record(8, now, 0.9);
            assert_eq!(history.recent(7, now).collect::<Vec<_>>(), want, "{records:?} at {now}");
        };
        check(&[], 0, &[]);
        check(&[(10, 0.5)], 9, &[]);
        check(&[(10, 0.5)], 10, &[0.5]);
        check(&[(10, 0.5)], 109, &[0.5]);
        check(&[(10, 0.5)], 110, &[]);
        // Out of order, and more than are kept: the oldest goes.
        check(&[(30, 0.3), (10, 0.1), (20, 0.2), (40, 0.4)], 50, &[0.2, 0.3, 0.4]);
        check(&[(10, 1.5), (10, f64::NAN), (10, -0.1), (10, 1.0)], 10, &[1.0]);
        check(&[(i64::MIN, 0.5), (i64::MAX, 0.25)], i64::MAX, &[0.25]);
    }

    #[test]
    fn there_is_room_for_so_many_customers_and_no_more() {
        let mut history = History::new(100, 4);
        for customer in 0..CUSTOMERS_MAX as u64 {
            history.record(customer, 0, 0.5);
        }
        history.record(u64::MAX, 50, 0.5);
        assert_eq!((history.customers(), history.refused()), (CUSTOMERS_MAX, 1));
        // A week later nobody is recent, and all of them make room.
        history.record(u64::MAX, 200, 0.5);
        assert_eq!((history.customers(), history.refused()), (1, 1));
    }
}
