//! Ages of single pages by DAMON's trace event.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use kernel::damon::{Damon, PageSession, PageState, Points, reap_trace};
use kernel::{Error, Roots};

use crate::job::Job;
use crate::{Check, ensure, free_damon};

const INTERVAL: Duration = Duration::from_millis(500);

/// Pages of each process, every fourth one.
const PAGES: usize = 50;

/// Reads the last state of each page, by slot and address.
fn latest(session: &mut PageSession) -> kernel::Result<HashMap<(usize, u64), PageState>> {
    let mut states = HashMap::new();
    session.drain(&mut |state| {
        states.insert((state.slot, state.address), state);
    })?;
    Ok(states)
}

/// Touches the first half of the job's pages every 100 ms for a while.
fn touch_half(job: &mut Job, time: Duration) -> Check {
    let begin = Instant::now();
    while begin.elapsed() < time {
        job.touch(0, 4 * PAGES / 2)?;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Pages that are touched are young, others as old as the session; a commit keeps the ages; a dead process does no harm.
pub(crate) fn pages(roots: &Roots) -> Check {
    let damon = free_damon(roots)?;
    let mut job = Job::start(roots, "/live-pages")?;
    let mut ending = Job::start(roots, "/live-pages-ending")?;
    let points = |job: &Job| Points { pid: job.pid(), addresses: (0..PAGES).map(|at| job.range(4 * at, 4 * at + 1).start).collect() };
    let slots = vec![points(&job), points(&ending)];
    let mut session = damon.watch_pages(roots, INTERVAL, 1000, &slots)?;
    touch_half(&mut job, INTERVAL * 9)?;
    let states = latest(&mut session)?;
    ensure(states.len() == 2 * PAGES, || format!("{} pages were reported", states.len()))?;
    let age = |at: usize, slot: usize| {
        states.get(&(slot, slots[slot].addresses[at])).map_or(0, |state| if state.accessed { 0 } else { state.age })
    };
    let touched = (0..PAGES / 2).filter(|&at| age(at, 0) <= 1).count();
    let idle = (PAGES / 2 + 1..PAGES).filter(|&at| age(at, 0) >= 5).count();
    println!("live: {touched} of {} touched pages are young, {idle} of {} others old", PAGES / 2, PAGES / 2 - 1);
    ensure(touched * 10 >= PAGES / 2 * 9 && idle == PAGES / 2 - 1, || "ages are wrong".into())?;

    // Half of the pages stay; their ages must too. The other process ends.
    ending.child.kill()?;
    ending.child.wait()?;
    let mut kept = slots.clone();
    kept[0].addresses.drain(..PAGES / 2);
    kept[1].addresses.truncate(1);
    session.replace(kept)?;
    touch_half(&mut job, INTERVAL * 4)?;
    let states = latest(&mut session)?;
    let old = (PAGES / 2 + 1..PAGES).filter(|&at| states.get(&(0, slots[0].addresses[at])).is_some_and(|state| state.age >= 10)).count();
    ensure(old == PAGES / 2 - 1, || format!("{old} pages kept their age over a commit: {states:?}"))?;

    // The agent dies here: nothing of it runs any more that could take the kdamond down.
    let pids: Vec<i32> = slots.iter().map(|slot| slot.pid).collect();
    std::mem::forget(session);
    ensure(matches!(Damon::probe(roots), Err(Error::Busy { .. })), || "a busy DAMON passes for free".into())?;
    ensure(Damon::reap(roots, &pids)? == 1, || "our kdamond was not reaped".into())?;
    // The forgotten session still has the trace open in this process, which a dead one would not.
    ensure(matches!(reap_trace(roots), Err(Error::Busy { .. })), || "an open trace was removed".into())?;
    Ok(())
}
