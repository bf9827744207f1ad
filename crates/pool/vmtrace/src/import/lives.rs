//! Guests of pool hosts that have ended: `lives.jsonl` in the state directory of `thermocline pool host`, one guest per line.

use serde::Deserialize;
use units::Bytes;

use super::rows::Rows;
use super::sink::Sink;
use crate::error::Result;
use crate::vm::Vm;

/// The version of the format.
const VERSION: u32 = 1;

/// What a trace takes of a line.
#[derive(Deserialize)]
struct Life {
    guest_life: u32,
    arrival: i64,
    departure: i64,
    cores: u32,
    memory_bytes: Bytes,
    customer: Option<u64>,
    vm_type: Option<String>,
    guest_os: Option<String>,
    location: Option<String>,
    touched_bytes: Option<Bytes>,
}

/// Returns whether a line has this format.
pub(super) fn is_line(line: &str) -> bool {
    line.starts_with("{\"guest_life\":")
}

/// Reads the lines.
pub(super) fn read(rows: &mut Rows, sink: &mut Sink<'_>) -> Result<()> {
    rows.each_line(sink, |line, sink| {
        let life: Life = serde_json::from_slice(line).map_err(|error| format!("the line is damaged: {error}"))?;
        if life.guest_life != VERSION {
            return Err(format!("guest_life is {}; this program reads {VERSION}", life.guest_life));
        }
        let vm = Vm {
            arrival: life.arrival,
            departure: Some(life.departure),
            cores: life.cores,
            memory_bytes: life.memory_bytes,
            customer: life.customer,
            vm_type: life.vm_type.and_then(|name| sink.vm_type(&name)),
            guest_os: life.guest_os.and_then(|name| sink.guest_os(&name)),
            location: life.location.and_then(|name| sink.location(&name)),
            untouched_ratio: life.touched_bytes.map(|touched| untouched_ratio(touched, life.memory_bytes)),
            ..Vm::default()
        };
        Ok(Some((vm, life.departure)))
    })
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn untouched_ratio(touched: Bytes, memory: Bytes) -> f64 {
    1.0 - touched.min(memory).0 as f64 / memory.0.max(1) as f64
}
