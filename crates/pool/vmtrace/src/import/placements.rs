//! The log of a pool's scheduler: `scheduler.log` of `thermocline pool scheduler`, one event per line.
//!
//! A VM is what was requested and placed, with the pool memory that it got. Its id is the number of its request, and the numbers of
//! its events are those of the log, so that a simulation handles them in the same order. Requests that no host could hold have no
//! lifetime, and are left out.

use std::collections::HashMap;

use serde::Deserialize;
use units::{Bytes, Slices};

use super::rows::Rows;
use super::sink::Sink;
use crate::error::Result;
use crate::vm::{Recorded, Vm};

/// What a trace takes of a line.
#[derive(Deserialize)]
struct Line {
    sequence: u64,
    time_ms: u64,
    event: Event,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    Topology {
        slice_bytes: Bytes,
    },
    Drained(serde::de::IgnoredAny),
    Grantable(serde::de::IgnoredAny),
    /// A VM of an earlier log: its arrival is not known, and is taken to be the beginning of this one.
    Kept {
        id: u64,
        request: Request,
        on: Host,
    },
    Decided {
        id: u64,
        request: Request,
        on: Option<Host>,
    },
    Ended {
        vm: String,
    },
}

#[derive(Deserialize)]
struct Request {
    vm: String,
    cores: u32,
    memory_bytes: Bytes,
    pool_bytes: Bytes,
}

#[derive(Deserialize)]
struct Host {
    slices: Slices,
}

/// Returns whether a line has this format.
pub(super) fn is_line(line: &str) -> bool {
    line.starts_with("{\"sequence\":") && line.contains("\"event\":{\"topology\"")
}

/// Reads the lines.
pub(super) fn read(path: &std::path::Path, sink: &mut Sink<'_>) -> Result<()> {
    let mut running: HashMap<String, Vm> = HashMap::new();
    let first_id = sink.next_id;
    let (mut now, mut slice) = (0, Bytes::ZERO);
    Rows::open(path, b',')?.each_line(sink, |line, _| {
        let Line { sequence, time_ms, event } = serde_json::from_slice(line).map_err(|error| format!("the line is damaged: {error}"))?;
        // A clock that is set back must not change the order.
        now = now.max(i64::try_from(time_ms / 1_000).unwrap_or(i64::MAX));
        match event {
            Event::Topology { slice_bytes } => slice = slice_bytes,
            Event::Kept { id, request, on } | Event::Decided { id, request, on: Some(on) } => {
                let Request { vm, cores, memory_bytes, pool_bytes } = request;
                let pool = Recorded {
                    pool_bytes: on.slices.bytes(slice),
                    requested_bytes: pool_bytes,
                    arrival_event: sequence,
                    departure_event: None,
                };
                let recorded = Some(Box::new(pool));
                let id = first_id.checked_add(id).ok_or_else(|| format!("the number of the request, {id}, is too large"))?;
                running.insert(vm, Vm { id, arrival: now, cores, memory_bytes, recorded, ..Vm::default() });
            }
            Event::Ended { vm } => {
                let mut vm = running.remove(&vm).ok_or_else(|| format!("{vm} ended and was not placed"))?;
                vm.departure = Some(now);
                if let Some(recorded) = &mut vm.recorded {
                    recorded.departure_event = Some(sequence);
                }
                return Ok(Some((vm, now)));
            }
            Event::Drained(_) | Event::Grantable(_) | Event::Decided { on: None, .. } => {}
        }
        Ok(None)
    })?;
    let mut rest: Vec<(String, Vm)> = running.into_iter().collect();
    rest.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, vm) in rest {
        sink.vm(&|| format!("{}: {name}", path.display()), vm, now)?;
    }
    Ok(())
}
