//! One virtual machine of a trace, and the limits of its values.

use units::Bytes;

/// The largest number of cores of a VM: far above any machine, and small enough that sums never overflow.
pub const CORES_MAX: u32 = 1 << 16;
/// The largest memory of a VM.
pub const MEMORY_MAX: Bytes = Bytes(1 << 50);
/// The largest distance of a time from the trace's beginning: 34,000 years.
pub const SECONDS_MAX: i64 = 1 << 40;
/// The smallest slowdown. A negative slowdown is measurement noise.
pub const SLOWDOWN_MIN: f64 = -0.99;
/// The largest slowdown: 1,000 times.
pub const SLOWDOWN_MAX: f64 = 1000.0;

/// One virtual machine: its request, its arrival and departure, and its use of memory.
///
/// Times are whole seconds since an instant that all rows of a trace share. They are negative for a VM that arrived before
/// the trace began. Types, operating systems and regions are indices into the trace's lists of names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vm {
    /// Unique id.
    pub id: u64,
    /// Arrival, in seconds.
    pub arrival: i64,
    /// Departure, in seconds, at or after the arrival. `None` if the VM was running at the end of the trace (its lifetime is
    /// censored) or the trace lacks it.
    pub departure: Option<i64>,
    /// Virtual cores, at least one.
    pub cores: u32,
    /// Rented memory, at least one byte.
    pub memory_bytes: Bytes,
    /// The cluster that the VM was scheduled on; 0 if the trace has one cluster.
    pub cluster: u32,
    /// The customer that rents the VM.
    pub customer: Option<u64>,
    /// Type (series and size).
    pub vm_type: Option<u16>,
    /// Guest operating system.
    pub guest_os: Option<u16>,
    /// Region.
    pub location: Option<u16>,
    /// Share of its memory that the VM never touched, 0 to 1.
    pub untouched_ratio: Option<f64>,
    /// Slowdown with all memory on a pool that adds 64 ns (182 % of local latency): 0.05 is 5 % slower. Values slightly below
    /// zero are noise and allowed.
    pub slowdown_64ns: Option<f64>,
    /// Slowdown with 140 ns added (222 % of local latency).
    pub slowdown_140ns: Option<f64>,
    /// What a scheduler recorded of the VM. Boxed: few traces have it, and a trace has millions of VMs.
    pub recorded: Option<Box<Recorded>>,
}

/// What the log of a scheduler has of a VM beside its request.
///
/// Events are numbered in the order in which they happened: a trace's times are whole seconds, and in one second VMs arrive and
/// others leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Pool memory that the VM got, at most what was requested.
    pub pool_bytes: Bytes,
    /// Pool memory that was requested for it, at most its memory.
    pub requested_bytes: Bytes,
    /// Number of the event of its arrival.
    pub arrival_event: u64,
    /// Number of the event of its departure, above that of its arrival. `None` exactly if the departure is unknown.
    pub departure_event: Option<u64>,
}

/// A field of a VM is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}; {allowed}")]
pub struct InvalidField {
    /// Name of the field of [`Vm`].
    pub field: &'static str,
    /// The value found.
    pub value: String,
    /// The allowed range, as a clause.
    pub allowed: &'static str,
}

impl Vm {
    /// Checks the limits of all fields. Every reader of outside data calls this for each row.
    ///
    /// # Errors
    /// The first [`InvalidField`], in the order of the fields.
    pub fn check(&self) -> Result<(), InvalidField> {
        let invalid = |field, value: String, allowed| Err(InvalidField { field, value, allowed });
        if self.arrival.checked_abs().is_none_or(|seconds| seconds > SECONDS_MAX) {
            return invalid("arrival", format!("{} s", self.arrival), "it must lie within 2^40 seconds of the trace's beginning");
        }
        if let Some(departure) = self.departure
            && (departure < self.arrival || departure > SECONDS_MAX)
        {
            return invalid("departure", format!("{departure} s"), "it must not be before the arrival or after 2^40 seconds");
        }
        for (field, number) in [("id", Some(self.id)), ("customer", self.customer)] {
            if let Some(number) = number
                && i64::try_from(number).is_err()
            {
                return invalid(field, number.to_string(), "it must be below 2^63");
            }
        }
        if !(1..=CORES_MAX).contains(&self.cores) {
            return invalid("cores", self.cores.to_string(), "it must be 1 to 65536");
        }
        if !(Bytes(1)..=MEMORY_MAX).contains(&self.memory_bytes) {
            return invalid("memory_bytes", self.memory_bytes.0.to_string(), "it must be 1 byte to 1 PiB");
        }
        if let Some(ratio) = self.untouched_ratio
            && !(0.0..=1.0).contains(&ratio)
        {
            return invalid("untouched_ratio", ratio.to_string(), "it must be 0 to 1");
        }
        for (field, slowdown) in [("slowdown_64ns", self.slowdown_64ns), ("slowdown_140ns", self.slowdown_140ns)] {
            if let Some(slowdown) = slowdown
                && !(SLOWDOWN_MIN..=SLOWDOWN_MAX).contains(&slowdown)
            {
                return invalid(field, slowdown.to_string(), "it must be -0.99 to 1000");
            }
        }
        self.recorded.as_ref().map_or(Ok(()), |recorded| self.check_recorded(recorded))
    }

    fn check_recorded(&self, recorded: &Recorded) -> Result<(), InvalidField> {
        let invalid = |field, value: String, allowed| Err(InvalidField { field, value, allowed });
        let Recorded { pool_bytes, requested_bytes, arrival_event, departure_event } = *recorded;
        if requested_bytes > self.memory_bytes {
            return invalid("pool_requested_bytes", requested_bytes.0.to_string(), "it must be at most the VM's memory");
        }
        if pool_bytes > requested_bytes {
            return invalid("pool_bytes", pool_bytes.0.to_string(), "it must be at most the pool memory that was requested");
        }
        if i64::try_from(arrival_event).is_err() {
            return invalid("arrival_event", arrival_event.to_string(), "it must be below 2^63");
        }
        match departure_event {
            None if self.departure.is_some() => invalid("departure_event", "unknown".to_owned(), "the departure is known"),
            Some(event) if self.departure.is_none() || event <= arrival_event || i64::try_from(event).is_err() => invalid(
                "departure_event",
                event.to_string(),
                "it must be after the event of the arrival, of a VM that left, and below 2^63",
            ),
            _ => Ok(()),
        }
    }

    /// Returns the lifetime in seconds, or `None` if the departure is unknown.
    #[must_use]
    pub fn lifetime(&self) -> Option<i64> {
        self.departure.map(|departure| departure - self.arrival)
    }

    /// Returns the sort key of a trace: arrival and id.
    #[must_use]
    pub fn order(&self) -> (i64, u64) {
        (self.arrival, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_fields_are_named_in_the_error() {
        let check = |change: fn(&mut Vm), want: Option<&str>| {
            let mut vm = Vm { cores: 2, memory_bytes: Bytes::gib(4), arrival: 300, departure: Some(900), ..Vm::default() };
            change(&mut vm);
            assert_eq!(vm.check().err().map(|error| error.field), want, "{vm:?}");
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
        check(|vm| vm.memory_bytes = Bytes::ZERO, Some("memory_bytes"));
        check(|vm| vm.memory_bytes = Bytes(u64::MAX), Some("memory_bytes"));
        check(|vm| vm.untouched_ratio = Some(1.0), None);
        check(|vm| vm.untouched_ratio = Some(f64::NAN), Some("untouched_ratio"));
        check(|vm| vm.untouched_ratio = Some(1.001), Some("untouched_ratio"));
        check(|vm| vm.slowdown_64ns = Some(-0.02), None);
        check(|vm| vm.slowdown_64ns = Some(-1.0), Some("slowdown_64ns"));
        check(|vm| vm.slowdown_140ns = Some(f64::INFINITY), Some("slowdown_140ns"));
    }
    #[test]
    fn what_a_scheduler_recorded_must_be_consistent() {
        let check = |departure, (pool, requested), arrival_event, departure_event, want: Option<&str>| {
            let (pool_bytes, requested_bytes) = (Bytes::gib(pool), Bytes::gib(requested));
            let recorded = Some(Box::new(Recorded { pool_bytes, requested_bytes, arrival_event, departure_event }));
            let vm = Vm { cores: 2, memory_bytes: Bytes::gib(4), departure, recorded, ..Vm::default() };
            assert_eq!(vm.check().err().map(|error| error.field), want, "{vm:?}");
        };
        let left = Some(900);
        check(left, (1, 4), 7, Some(8), None);
        check(None, (0, 0), 7, None, None);
        check(left, (2, 1), 7, Some(8), Some("pool_bytes"));
        check(left, (1, 5), 7, Some(8), Some("pool_requested_bytes"));
        check(None, (1, 1), 1 << 63, None, Some("arrival_event"));
        check(left, (1, 1), 7, Some(7), Some("departure_event"));
        check(left, (1, 1), 7, Some(1 << 63), Some("departure_event"));
        check(left, (1, 1), 7, None, Some("departure_event"));
        check(None, (1, 1), 7, Some(8), Some("departure_event"));
    }
}
