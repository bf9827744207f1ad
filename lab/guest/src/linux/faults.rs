//! Page faults of the calling thread.

/// Returns how many page faults the calling thread has caused so far, with and without a read from a device
/// (`getrusage(2)`).
pub(crate) fn of_this_thread() -> u64 {
    // SAFETY: rusage is plain data, for which all zeroes is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid rusage to fill; every Linux kernel knows RUSAGE_THREAD, so the call cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_minflt.unsigned_abs() + usage.ru_majflt.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use crate::linux::mapping::{Mapping, page_bytes};

    #[test]
    fn a_first_touch_is_a_fault_and_a_second_is_none() {
        let mapping = Mapping::anonymous(page_bytes(), 1).unwrap();
        let before = super::of_this_thread();
        mapping.write(0, &[1]);
        let first = super::of_this_thread();
        mapping.write(0, &[2]);
        let second = super::of_this_thread();
        // The code itself may not have been in memory the first time.
        assert!(first > before && second == first, "{before} {first} {second}");
    }
}
