//! Sources that change while the console runs: a rollout and a pool. Each is read by a thread of its own, so that one that does not
//! answer delays no other.

use std::sync::Arc;
use std::time::Duration;

use ::rollout::journal::Record;
use anyhow::{Context, Result};
use serde::Serialize;

use super::data::{Data, Sources, Timed, View, json_of, now_unix_ms};
use super::{pool, rollout};
use crate::fleet::rollout::status::NOT_STARTED;

/// Time between two readings of a rollout, which is evaluated every five minutes, and of a pool, whose leases last seconds.
const ROLLOUT_EVERY: Duration = Duration::from_secs(60);
const POOL_EVERY: Duration = Duration::from_secs(10);
/// The shortest time, whatever was requested: a reading is work for the store and the manager.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Adds the time of a reading to what was read.
#[derive(Serialize)]
struct ReadAt<'a, T> {
    read_unix_ms: u64,
    #[serde(flatten)]
    value: &'a T,
}

fn timed_json(value: &impl Serialize) -> Vec<u8> {
    json_of(&ReadAt { read_unix_ms: now_unix_ms(), value })
}

/// Reads what is named once.
pub(super) fn read_once(data: &Data, sources: &Sources) {
    let absent = || Timed::now(View::Absent("it was not named".to_owned()));
    data.set(|views| (views.rollout, views.pool) = (absent(), absent()));
    read_rollout(data, sources, &mut Vec::new());
    read_pool(data, sources);
}

/// Starts the threads that read what is named, until the process exits.
pub(crate) fn start(data: &Arc<Data>, sources: &Arc<Sources>, refresh: Option<Duration>) -> Result<()> {
    let every = |usual: Duration| refresh.map_or(usual, |refresh| refresh.min(usual)).max(EVERY_MIN);
    let [for_rollout, for_pool] = [every(ROLLOUT_EVERY), every(POOL_EVERY)];
    if sources.rollout.is_some() {
        let (data, sources) = (Arc::clone(data), Arc::clone(sources));
        let mut known = Vec::new();
        repeat("rollout", for_rollout, move || read_rollout(&data, &sources, &mut known))?;
    } else {
        let why = "no rollout is named; start the console with --rollout and a bundle store, such as --rollout /srv/bundles: that of \
                   `thermocline rollout start`";
        data.set(|views| views.rollout = Timed::now(View::Absent(why.to_owned())));
    }
    if sources.pool.is_some() {
        let (data, sources) = (Arc::clone(data), Arc::clone(sources));
        repeat("pool", for_pool, move || read_pool(&data, &sources))?;
    } else {
        let why = "no pool is named; start the console with --pool and the URL of its manager, such as --pool https://localhost:7443, \
                   and with --identity and an operator's certificate";
        data.set(|views| views.pool = Timed::now(View::Absent(why.to_owned())));
    }
    Ok(())
}

/// Reads again and again in a thread of its own. It is not waited for: nothing is left behind.
fn repeat(name: &str, every: Duration, mut read: impl FnMut() + Send + 'static) -> Result<()> {
    let work = move || {
        loop {
            read();
            std::thread::sleep(every);
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(work).context("cannot start a thread").map(drop)
}

fn read_rollout(data: &Data, sources: &Sources, known: &mut Vec<Record>) {
    let Some(source) = &sources.rollout else { return };
    let view = match rollout::read(&sources.config, source, known) {
        Ok(Some(found)) => View::Ready(Arc::new(timed_json(&found))),
        Ok(None) => View::Absent(NOT_STARTED.to_owned()),
        Err(error) => View::of(Err(error)),
    };
    data.set(|views| views.rollout = Timed::now(view));
}

fn read_pool(data: &Data, sources: &Sources) {
    let Some(reach) = &sources.pool else { return };
    let pool = pool::read(reach).map(|pool| timed_json(&pool));
    data.set(|views| views.pool = Timed::now(View::of(pool)));
}
