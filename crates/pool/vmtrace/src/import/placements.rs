//! The log of a pool's scheduler: `scheduler.log` of `thermocline pool scheduler`, one event per line.
//!
//! A VM is what was requested and placed; requests that no host could hold have no lifetime, and are left out.

use std::collections::HashMap;

use serde::Deserialize;
use units::Bytes;

use super::rows::Rows;
use super::sink::Sink;
use crate::error::Result;
use crate::vm::Vm;

/// What a trace takes of a line.
#[derive(Deserialize)]
struct Line {
    time_ms: u64,
    event: Event,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    Topology(serde::de::IgnoredAny),
    Drained(serde::de::IgnoredAny),
    Grantable(serde::de::IgnoredAny),
    /// A VM of an earlier log: its arrival is not known, and is taken to be the beginning of this one.
    Kept {
        request: Request,
    },
    Decided {
        request: Request,
        on: Option<serde::de::IgnoredAny>,
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
}

/// Returns whether a line has this format.
pub(super) fn is_line(line: &str) -> bool {
    line.starts_with("{\"sequence\":") && line.contains("\"event\":{\"topology\"")
}

/// Reads the lines.
pub(super) fn read(path: &std::path::Path, sink: &mut Sink<'_>) -> Result<()> {
    let mut running: HashMap<String, Vm> = HashMap::new();
    let mut last = 0;
    Rows::open(path, b',')?.each_line(sink, |line, _| {
        let Line { time_ms, event } = serde_json::from_slice(line).map_err(|error| format!("the line is damaged: {error}"))?;
        let now = i64::try_from(time_ms / 1_000).unwrap_or(i64::MAX);
        last = now;
        match event {
            Event::Kept { request } | Event::Decided { request, on: Some(_) } => {
                let Request { vm, cores, memory_bytes } = request;
                running.insert(vm, Vm { arrival: now, cores, memory_bytes, ..Vm::default() });
            }
            Event::Ended { vm } => {
                let vm = running.remove(&vm).ok_or_else(|| format!("{vm} ended and was not placed"))?;
                return Ok(Some((Vm { departure: Some(now), ..vm }, now)));
            }
            Event::Topology(_) | Event::Drained(_) | Event::Grantable(_) | Event::Decided { on: None, .. } => {}
        }
        Ok(None)
    })?;
    let mut rest: Vec<(String, Vm)> = running.into_iter().collect();
    rest.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, vm) in rest {
        sink.vm(&|| format!("{}: {name}", path.display()), vm, last)?;
    }
    Ok(())
}
