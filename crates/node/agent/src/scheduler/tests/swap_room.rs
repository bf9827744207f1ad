//! What a request for swap-backed memory may take, by the limits of swap and of zswap.

use units::{Bytes, Pages};

use super::*;
use crate::controllers::slots::Entry;
use crate::{reclaim, swap_room};

const MIB: u64 = 1 << 20;

/// A job with these files, which has 40 MiB charged to swap, of them 30 MiB in the swap cache, on a machine with 1 GiB of free swap.
fn machine(files: &[(&str, &str)]) -> Machine {
    let machine = machine_with_job();
    let kib = 1 << 20;
    machine.put(
        "proc/meminfo",
        &format!("MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\nSwapTotal: {kib} kB\nSwapFree: {kib} kB\n"),
    );
    machine.set(JOB, "memory.swap.current", &(40 * MIB).to_string());
    machine.set(JOB, "memory.stat", &format!("anon 0\nswapcached {}", 30 * MIB));
    machine.set(JOB, "memory.zswap.current", &(8 * MIB).to_string());
    files.iter().for_each(|(file, text)| machine.set(JOB, file, text));
    machine
}

/// The largest request in MiB of 64 wanted, and what counts as swapped and as swap cache on its way to a device, in MiB.
fn room_and_swapped(files: &[(&str, &str)]) -> (u64, u64, u64) {
    let machine = machine(files);
    let mut agent = agent(&machine);
    agent.scan(at(1_000));
    let Entry { job, .. } = &agent.jobs[JOB];
    let room = swap_room::limit(job, &agent.context, Bytes::mib(64).to_pages(kernel::page_size())).unwrap();
    let counted = reclaim::count(job, &agent.context).unwrap();
    (room.to_bytes(kernel::page_size()).0 / MIB, counted.swapped.0 / MIB, counted.cached.0 / MIB)
}

#[test]
fn what_zswap_refuses_is_not_swapped_and_not_asked_for_where_it_may_not_pass_zswap() {
    let (kept, passes) = (("memory.zswap.writeback", "0"), ("memory.zswap.writeback", "1"));
    assert_eq!(room_and_swapped(&[passes, ("memory.zswap.max", "12582912")]), (64, 40, 30), "the device takes what zswap refuses");
    assert_eq!(room_and_swapped(&[("memory.zswap.max", "12582912")]), (64, 40, 30), "before Linux 6.8");
    assert_eq!(room_and_swapped(&[kept, ("memory.zswap.max", "max")]), (64, 10, 0));
    assert_eq!(room_and_swapped(&[kept, ("memory.zswap.max", "12582912")]), (2, 10, 0), "half of what is free");
    assert_eq!(room_and_swapped(&[kept, ("memory.zswap.max", "8388608")]), (0, 10, 0));
}

#[test]
fn without_zswap_its_limits_do_not_hold() {
    let machine = machine(&[("memory.zswap.writeback", "0"), ("memory.zswap.max", "0")]);
    machine.put("sys/module/zswap/parameters/enabled", "N\n");
    let mut agent = agent(&machine);
    agent.scan(at(1_000));
    let Entry { job, .. } = &agent.jobs[JOB];
    assert_eq!(swap_room::limit(job, &agent.context, Pages(64)).unwrap(), Pages(64));
    assert!(!reclaim::stays_in_zswap(job, &agent.context).unwrap());
}
