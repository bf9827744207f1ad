//! The latency of each node's memory, on an idle machine and beside a program that uses its bandwidth. It changes nothing on the machine.
//!
//! The figures are printed, and not judged: they belong to the machine, and mean nothing where processors are emulated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernel::latency::{LOADS, Probe, TIME_MAX};
use kernel::{Roots, numa};
use units::Bytes;

use crate::{Check, ensure};

/// Measurements of each kind.
const MEASUREMENTS: usize = 200;

/// What the other program copies: more than any cache holds.
const COPIED: usize = 256 << 20;

pub(crate) fn latency(roots: &Roots) -> Check {
    let nodes = numa::nodes(roots)?;
    ensure(Probe::open(1000).is_err_and(|error| error.is_unsupported()), || "a node that does not exist was accepted".into())?;
    let cpus: usize = nodes.iter().map(|node| node.cpus.len()).sum();
    for node in nodes.iter().filter(|node| node.total > Bytes::ZERO) {
        let mut probe = Probe::open(node.id)?;
        println!("live: node {}, {LOADS} loads each, {cpus} processors; HMAT: {:?} ns", node.id, node.read_latency_ns());
        measure("idle", &mut probe)?;
        for threads in 1..=cpus.max(1) {
            beside(threads, || measure(&format!("beside {threads} copying"), &mut probe))?;
        }
        measure("idle again", &mut probe)?;
    }
    Ok(())
}

fn measure(what: &str, probe: &mut Probe) -> Check {
    let (mut found, mut took) = (Vec::new(), Vec::new());
    let mut refused = 0;
    while found.len() < MEASUREMENTS && refused < MEASUREMENTS {
        let begin = Instant::now();
        match probe.measure() {
            Ok(ns) => found.push(ns),
            Err(error) if error.is_unsupported() => refused += 1,
            Err(error) => return Err(error.into()),
        }
        took.push(begin.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    ensure(!found.is_empty(), || format!("{what}: none of {refused} measurements had a figure"))?;
    found.sort_unstable();
    took.sort_unstable();
    let at = |percent: usize| found.get(found.len() * percent / 100).copied().unwrap_or_default();
    let (low, median, high, highest) = (at(5), at(50), at(95), found.last().copied().unwrap_or_default());
    println!("live:   {what}: median {median} ns, 5 to 95 % {low} to {high} ns, highest {highest} ns, {refused} refused");
    println!(
        "live:     a measurement took {:?}, 95 % {:?}; loads are limited to {TIME_MAX:?}",
        took[took.len() / 2],
        took[took.len() * 95 / 100]
    );
    Ok(())
}

/// Runs `measure` while threads copy memory.
fn beside(threads: usize, measure: impl FnOnce() -> Check) -> Check {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let (from, mut to) = (vec![1u8; COPIED / 2], vec![2u8; COPIED / 2]);
                while !done.load(Ordering::Relaxed) {
                    to.copy_from_slice(std::hint::black_box(&from));
                    std::hint::black_box(&mut to);
                }
            });
        }
        // The threads have allocated their memory by then.
        std::thread::sleep(Duration::from_secs(1));
        let measured = measure();
        done.store(true, Ordering::Relaxed);
        measured
    })
}
