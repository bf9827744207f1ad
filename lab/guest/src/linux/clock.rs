//! `CLOCK_MONOTONIC` as a number, comparable between the processes of one machine.

/// Returns the nanoseconds of `CLOCK_MONOTONIC` (`clock_gettime(2)`).
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to fill; every Linux kernel has this clock, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
