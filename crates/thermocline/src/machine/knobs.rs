//! `thermocline config knobs`: every knob with its range and the tuner's search range.

use anyhow::Result;
use config::{Config, Knob, Scale, Unit};
use serde::Serialize;

use crate::options::Format;
use crate::output::print;
use crate::table::Table;

/// One knob. Values are written as in a configuration file; `number` and `search` are in seconds, bytes, shares of one, or counts.
#[derive(Debug, Serialize)]
struct Row {
    key: &'static str,
    unit: &'static str,
    value: String,
    default: &'static str,
    low: Option<&'static str>,
    high: Option<&'static str>,
    choices: &'static [&'static str],
    meaning: &'static str,
    number: Option<f64>,
    search: Option<Bounds>,
}

/// A tuner's search range.
#[derive(Debug, Serialize)]
struct Bounds {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Row {
    fn new(knob: &'static Knob, config: &Config) -> Self {
        let value = config.get(knob.key);
        let number = |text| knob.parse(text).ok().and_then(|value| value.as_number());
        let search =
            knob.search.and_then(|search| Some(Bounds { low: number(search.low)?, high: number(search.high)?, scale: search.scale }));
        let choices = if let Unit::Choice(names) = knob.unit { names } else { &[] };
        Self {
            key: knob.key,
            unit: knob.unit.name(),
            number: value.as_ref().and_then(config::Value::as_number),
            value: value.map(|value| value.to_string()).unwrap_or_default(),
            default: knob.default,
            low: knob.range.map(|(low, _)| low),
            high: knob.range.map(|(_, high)| high),
            choices,
            meaning: knob.meaning,
            search,
        }
    }

    fn add_to(&self, table: &mut Table) {
        let allowed = match (self.low, self.high, self.choices) {
            (Some(low), Some(high), _) => format!("{low} to {high}"),
            (_, _, []) => self.unit.to_owned(),
            (_, _, choices) => choices.join(", "),
        };
        let searched = config::knobs().find(|knob| knob.key == self.key).and_then(|knob| knob.search);
        let searched = searched.map(|search| format!("{} to {}", search.low, search.high)).unwrap_or_default();
        table.row(&[&self.key, &self.value, &allowed, &searched]);
    }
}

/// Prints all knobs.
pub(crate) fn knobs(config: &Config, format: Format) -> Result<()> {
    let rows: Vec<Row> = config::knobs().map(|knob| Row::new(knob, config)).collect();
    print(format, &rows, || {
        let mut table = Table::new(&["<key", "<value", "<allowed", "<tuner searches"]);
        rows.iter().for_each(|row| row.add_to(&mut table));
        table.to_string()
    })
}
