//! Generated text: example files and reference pages.

use std::fmt::Write;

use crate::knob::Knob;
use crate::schema::{ListExample, Presence, Schema, Table};
use crate::unit::Unit;
use crate::value::Value;

/// Where comments of a file are wrapped, in characters.
const COMMENT_WIDTH: usize = 100;

/// How values are written: names of units, examples, and notes.
const NOTATION: &[(&[&str], &str, &str)] = &[
    (&["duration"], "`\"120s\"`, `\"1m30s\"`, `\"500ms\"`", "`d`, `h`, `m`, `s`, `ms`, `us`, `ns`, largest first"),
    (&["duration or off"], "`\"5s\"`, `\"off\"`", ""),
    (&["size"], "`\"64MiB\"`", "`B`, `KiB`, `MiB`, `GiB`, `TiB`, `PiB`, each 1024 times the one before"),
    (&["size per second"], "`\"64MiB/s\"`", ""),
    (
        &["ratio", "ratio per minute", "percentile"],
        "`\"0.2%\"` or `0.002`",
        "in steps of 0.0001%; a number without `%` is a fraction of one",
    ),
    (&["whole percent"], "`\"20%\"`", ""),
    (&["number", "whole number", "true or false"], "`1000`, `true`", "without quotes"),
    (&["path or relative path"], "`\"/etc/pool/ca.pem\"`, `\"ca.pem\"`", "a relative path starts at the directory of this file"),
    (&["permissions"], "`\"0600\"`", "octal, as for `chmod`"),
    (&["list of texts"], "`[\"a\", \"b\"]`", ""),
    (&["list of numbers"], "`[0.5, 1]`", ""),
    (&["table of numbers"], "`{ instructions = 1e9 }`", "or a table of its own, with a line for each"),
    (&["address to listen on"], "`\"0.0.0.0:7443\"`", "an IP address and a port"),
    (
        &["choice", "path", "program", "word", "text", "address", "URL", "path or URL", "pattern", "name pattern", "key=pattern"],
        "`\"auto\"`",
        "with quotes",
    ),
];

/// Returns the example file: every knob with its default as a comment, required knobs with an example value.
#[must_use]
pub fn example(schema: &Schema, head: &str) -> String {
    let mut text = head.to_owned();
    for table in schema.tables.iter().filter(|table| table.presence != Presence::List) {
        let (header, required) = if table.presence == Presence::Optional { ("#", "#") } else { ("", "") };
        text.push('\n');
        table_head(&mut text, table, header);
        for knob in table.knobs {
            let mark = if knob.required { required } else { "#" };
            let value = knob.default_toml().unwrap_or_else(|| knob.unit.placeholder().to_owned());
            knob_line(&mut text, knob, mark, &value);
        }
    }
    for list in schema.lists {
        let Some(table) = schema.table(list.table) else { continue };
        text.push('\n');
        comment(&mut text, table.meaning);
        for line in list.toml.trim().lines() {
            let mark = if list.active || line.is_empty() || line.starts_with('#') { "" } else { "#" };
            let _ = writeln!(text, "{mark}{line}");
        }
    }
    text
}

/// Returns the tables of a file that sets every knob for which `value` returns a value. Lists are left out.
#[must_use]
pub fn example_tables(schema: &Schema, value: impl Fn(&Knob) -> Option<Value>) -> String {
    let mut text = String::new();
    for table in schema.tables.iter().filter(|table| table.presence != Presence::List) {
        if !text.is_empty() {
            text.push('\n');
        }
        table_head(&mut text, table, "");
        for knob in table.knobs {
            if let Some(value) = value(knob) {
                knob_line(&mut text, knob, "", &knob.to_toml(&value));
            }
        }
    }
    text
}

/// Returns the reference page of a kind of file: `head`, how values are written, every table with its knobs, and `tail`.
#[must_use]
pub fn reference(schema: &Schema, head: &str, tail: &str) -> String {
    let mut text = head.to_owned();
    text.push_str("\n## How values are written\n\n| unit | example | |\n|---|---|---|\n");
    for (units, example, note) in NOTATION {
        let used: Vec<_> = units.iter().copied().filter(|unit| schema.knobs().any(|knob| knob.unit.name() == *unit)).collect();
        if !used.is_empty() {
            let _ = writeln!(text, "| {} | {example} | {note} |", used.join(", "));
        }
    }
    if schema.knobs().any(|knob| matches!(knob.unit, Unit::Duration | Unit::DurationOrOff | Unit::Bytes)) {
        text.push_str("\nA duration or size without its unit is refused.\n");
    }
    for table in schema.tables {
        let heading = match (table.name, table.presence) {
            ("", _) => "Top level".to_owned(),
            (name, Presence::List) => format!("`[[{name}]]`"),
            (name, _) => format!("`[{name}]`"),
        };
        let presence = if matches!(table.presence, Presence::Optional | Presence::Recommended) { " Optional." } else { "" };
        let _ = write!(text, "\n## {heading}\n\n{}{presence}\n\n", table.meaning);
        for ListExample { toml, .. } in schema.lists.iter().filter(|list| list.table == table.name) {
            for line in toml.trim().lines() {
                let _ = writeln!(text, "{}", format!("    {line}").trim_end());
            }
            text.push('\n');
        }
        text.push_str("| key | default | values | meaning |\n|---|---|---|---|\n");
        for knob in table.knobs {
            let default = match knob.default {
                _ if knob.required => "required".to_owned(),
                "" => String::new(),
                default => format!("`{default}`"),
            };
            let _ = writeln!(text, "| `{}` | {default} | {} | {} |", knob.name(), allowed(knob), knob.meaning);
        }
    }
    text.push_str(tail);
    text
}

fn table_head(text: &mut String, table: &Table, mark: &str) {
    comment(text, table.meaning);
    if !table.name.is_empty() {
        let _ = writeln!(text, "{mark}[{}]", table.name);
    }
}

fn knob_line(text: &mut String, knob: &Knob, mark: &str, value: &str) {
    let default = match knob.default {
        _ if knob.required => "required".to_owned(),
        "" => "default none".to_owned(),
        default => format!("default {default}"),
    };
    text.push('\n');
    comment(text, knob.meaning);
    comment(text, &format!("{}, {default}", allowed(knob)));
    let _ = writeln!(text, "{mark}{} = {value}", knob.name());
}

/// Adds `line` as a comment, wrapped between words.
fn comment(text: &mut String, line: &str) {
    let mut width = 0;
    for word in line.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COMMENT_WIDTH {
            text.push('\n');
            width = 0;
        }
        if width == 0 {
            text.push('#');
            width = 1;
        }
        text.push(' ');
        text.push_str(word);
        width += 1 + length;
    }
    text.push('\n');
}

/// Returns the values that a knob may have.
fn allowed(knob: &Knob) -> String {
    match (knob.unit, knob.range) {
        (Unit::Choice(names), _) => names.join(", "),
        (unit, Some((low, high))) => format!("{} from {low} to {high}", unit.name()),
        (unit, None) => unit.name().to_owned(),
    }
}
