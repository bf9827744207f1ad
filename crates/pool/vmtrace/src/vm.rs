//! One virtual machine of a trace, and what cannot be true of one.

/// Cores that a VM may have: far above any machine, and low enough that sums of them never overflow.
pub const CORES_MAX: u32 = 1 << 16;
/// Memory that a VM may have.
pub const MEMORY_BYTES_MAX: u64 = 1 << 50;
/// How far from its beginning a trace may tell of: 34,000 years either way.
pub const SECONDS_MAX: i64 = 1 << 40;
/// How much faster one may run by slower memory, which can only be noise.
pub const SLOWDOWN_MIN: f64 = -0.99;
/// How much slower a VM may run: 1,000 times.
pub const SLOWDOWN_MAX: f64 = 1000.0;

/// One virtual machine: what was asked for, when it came and went, and what it made of its memory.
///
/// Times are whole seconds since an instant that all of a trace's rows share; they may be negative for what was there
/// before the trace began. Ids of types, systems and places are numbers; the trace keeps their words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vm {
    /// Which one. No other row of the trace has the same.
    pub id: u64,
    /// When it came, in seconds.
    pub arrival: i64,
    /// When it left, in seconds, at or after its arrival. `None`: it still ran when the trace ended (its life is censored),
    /// or the trace does not tell.
    pub departure: Option<i64>,
    /// Virtual cores, at least one.
    pub cores: u32,
    /// Memory that it was sold, in bytes, at least one.
    pub memory_bytes: u64,
    /// The cluster that it was scheduled on; 0 where the trace knows only one.
    pub cluster: u32,
    /// Whose it is.
    pub customer: Option<u64>,
    /// Its type (series and size).
    pub vm_type: Option<u16>,
    /// Its guest operating system.
    pub guest_os: Option<u16>,
    /// Its region.
    pub location: Option<u16>,
    /// The share of its memory that it never touched in its life, 0 to 1.
    pub untouched_ratio: Option<f64>,
    /// How much slower it runs with all its memory on a pool that adds 64 ns (182 % of local latency): 0.05 is 5 % slower.
    /// A little below zero is noise, and allowed.
    pub slowdown_64ns: Option<f64>,
    /// The same with 140 ns added (222 % of local latency).
    pub slowdown_140ns: Option<f64>,
}

/// What cannot be true of a VM.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}; {want}")]
pub struct Fault {
    /// Which field of [`Vm`].
    pub field: &'static str,
    /// What it holds.
    pub value: String,
    /// What it may hold.
    pub want: &'static str,
}

impl Vm {
    /// Checks what no row may violate. Everything that reads a trace from outside calls this on each row.
    ///
    /// # Errors
    /// The first [`Fault`], in the order of the fields.
    pub fn check(&self) -> Result<(), Fault> {
        let fault = |field, value: String, want| Err(Fault { field, value, want });
        if self.arrival.checked_abs().is_none_or(|seconds| seconds > SECONDS_MAX) {
            return fault("arrival", format!("{} s", self.arrival), "it must lie within 2^40 seconds of the trace's beginning");
        }
        if let Some(departure) = self.departure
            && (departure < self.arrival || departure > SECONDS_MAX)
        {
            return fault("departure", format!("{departure} s"), "it must not come before the arrival, nor after 2^40 seconds");
        }
        for (field, number) in [("id", Some(self.id)), ("customer", self.customer)] {
            if let Some(number) = number
                && i64::try_from(number).is_err()
            {
                return fault(field, number.to_string(), "it must be below 2^63");
            }
        }
        if !(1..=CORES_MAX).contains(&self.cores) {
            return fault("cores", self.cores.to_string(), "it must be 1 to 65536");
        }
        if !(1..=MEMORY_BYTES_MAX).contains(&self.memory_bytes) {
            return fault("memory_bytes", self.memory_bytes.to_string(), "it must be 1 byte to 1 PiB");
        }
        if let Some(ratio) = self.untouched_ratio
            && !(0.0..=1.0).contains(&ratio)
        {
            return fault("untouched_ratio", ratio.to_string(), "it must be 0 to 1");
        }
        for (field, slowdown) in [("slowdown_64ns", self.slowdown_64ns), ("slowdown_140ns", self.slowdown_140ns)] {
            if let Some(slowdown) = slowdown
                && !(SLOWDOWN_MIN..=SLOWDOWN_MAX).contains(&slowdown)
            {
                return fault(field, slowdown.to_string(), "it must be -0.99 to 1000");
            }
        }
        Ok(())
    }

    /// Seconds that it lived; `None` where it still ran, or the trace does not tell.
    #[must_use]
    pub fn lifetime(&self) -> Option<i64> {
        self.departure.map(|departure| departure - self.arrival)
    }

    /// What a trace is sorted by.
    #[must_use]
    pub fn order(&self) -> (i64, u64) {
        (self.arrival, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_true_is_named() {
        let check = |change: fn(&mut Vm), want: Option<&str>| {
            let mut vm = Vm { cores: 2, memory_bytes: 1 << 32, arrival: 300, departure: Some(900), ..Vm::default() };
            change(&mut vm);
            assert_eq!(vm.check().err().map(|fault| fault.field), want, "{vm:?}");
        };
        check(|_| (), None);
        check(|vm| vm.departure = None, None);
        check(|vm| vm.departure = Some(300), None);
        check(|vm| vm.departure = Some(299), Some("departure"));
        check(|vm| vm.departure = Some(i64::MAX), Some("departure"));
        check(|vm| vm.arrival = i64::MIN, Some("arrival"));
        check(|vm| (vm.arrival, vm.departure) = (-900, Some(-300)), None);
        check(|vm| vm.id = u64::MAX, Some("id"));
        check(|vm| vm.customer = Some(1 << 63), Some("customer"));
        check(|vm| vm.cores = 0, Some("cores"));
        check(|vm| vm.cores = CORES_MAX + 1, Some("cores"));
        check(|vm| vm.memory_bytes = 0, Some("memory_bytes"));
        check(|vm| vm.memory_bytes = u64::MAX, Some("memory_bytes"));
        check(|vm| vm.untouched_ratio = Some(1.0), None);
        check(|vm| vm.untouched_ratio = Some(f64::NAN), Some("untouched_ratio"));
        check(|vm| vm.untouched_ratio = Some(1.001), Some("untouched_ratio"));
        check(|vm| vm.slowdown_64ns = Some(-0.02), None);
        check(|vm| vm.slowdown_64ns = Some(-1.0), Some("slowdown_64ns"));
        check(|vm| vm.slowdown_140ns = Some(f64::INFINITY), Some("slowdown_140ns"));
    }
}
