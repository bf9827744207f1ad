//! The untouched memory of customers' past VMs.
//!
//! Only VMs that have ended count. `python/thermocline/learn/history.py` uses the same window for training.

use std::collections::{HashMap, VecDeque};

/// The largest number of customers.
pub const CUSTOMERS_MAX: usize = 100_000;

/// The recent VMs of every customer. Bounded: by entries per customer, and by [`CUSTOMERS_MAX`] customers.
#[derive(Clone, Debug)]
pub struct History {
    window_seconds: i64,
    entries_max: usize,
    /// By customer: the end of each VM, in ascending order, and its untouched share.
    customers: HashMap<u64, VecDeque<(i64, f32)>>,
    refused: u64,
}

impl History {
    /// Creates an empty history that keeps the latest `entries_max` VMs of each customer within a window.
    #[must_use]
    pub fn new(window_seconds: i64, entries_max: usize) -> Self {
        Self { window_seconds, entries_max, customers: HashMap::new(), refused: 0 }
    }

    /// Records that a VM has ended, with its untouched share. Refuses shares outside 0 to 1.
    pub fn record(&mut self, customer: u64, ended: i64, untouched_ratio: f64) {
        if !(0.0..=1.0).contains(&untouched_ratio) || !self.admit(customer, ended) {
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

    /// Returns the shares of a customer's VMs that ended within the window before `now`, in order of their end.
    pub fn recent(&self, customer: u64, now: i64) -> impl Iterator<Item = f32> + '_ {
        let oldest = now.saturating_sub(self.window_seconds);
        let of = self.customers.get(&customer);
        of.into_iter().flatten().filter(move |&&(when, _)| oldest < when && when <= now).map(|&(_, share)| share)
    }

    /// Returns the number of customers.
    #[must_use]
    pub fn customers(&self) -> usize {
        self.customers.len()
    }

    /// Returns the number of refused records: shares out of range, or customers above the limit.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns whether a customer can be recorded. At the limit, removes customers without recent records.
    fn admit(&mut self, customer: u64, now: i64) -> bool {
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
    fn only_vms_that_ended_within_the_window_count() {
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
        // Out of order, and above the limit of entries: the oldest is removed.
        check(&[(30, 0.3), (10, 0.1), (20, 0.2), (40, 0.4)], 50, &[0.2, 0.3, 0.4]);
        check(&[(10, 1.5), (10, f64::NAN), (10, -0.1), (10, 1.0)], 10, &[1.0]);
        check(&[(i64::MIN, 0.5), (i64::MAX, 0.25)], i64::MAX, &[0.25]);
    }

    #[test]
    fn the_number_of_customers_is_bounded() {
        let mut history = History::new(100, 4);
        for customer in 0..CUSTOMERS_MAX as u64 {
            history.record(customer, 0, 0.5);
        }
        history.record(u64::MAX, 50, 0.5);
        assert_eq!((history.customers(), history.refused()), (CUSTOMERS_MAX, 1));
        // After the window no customer is recent, and all are removed.
        history.record(u64::MAX, 200, 0.5);
        assert_eq!((history.customers(), history.refused()), (1, 1));
    }
}
