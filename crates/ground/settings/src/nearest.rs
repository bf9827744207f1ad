//! Finds the known key that an unknown one was probably meant to be.

use units::quantity::Invalid;

use crate::knob::Knob;
use crate::schema::Schema;

/// A key longer than this, in characters, is not compared.
const KEY_CHARS_MAX: usize = 100;

/// Returns the problem of a key that a schema does not have.
#[must_use]
pub fn unknown_key(schema: &Schema, key: &str) -> Invalid {
    Invalid::new("unknown key", remedy(schema, key))
}

/// Returns the remedy for an unknown key of a file: the known key that was probably meant, or which keys exist.
fn remedy(schema: &Schema, key: &str) -> String {
    if let Some(remedy) = (schema.remedy)(key) {
        return remedy;
    }
    let knobs = schema.single_knobs();
    if let Some(remedy) = remedy_in(key, knobs) {
        return remedy;
    }
    let tables: Vec<&str> = schema.tables.iter().map(|table| table.name).filter(|name| !name.is_empty()).collect();
    match tables.split_last() {
        Some((last, others)) if !others.is_empty() => format!("the tables are {} and {last}", others.join(", ")),
        _ => "remove it".to_owned(),
    }
}

/// Returns the remedy for an unknown key of a table: the key of the table that was probably meant, or its keys.
pub(crate) fn remedy_in_table(key: &str, knobs: &'static [Knob]) -> String {
    remedy_in(key, knobs.iter()).unwrap_or_else(|| "remove it".to_owned())
}

/// Returns the key among `knobs` that was probably meant, or the keys of the same table; `None` if neither exists.
fn remedy_in<'a>(key: &str, knobs: impl Iterator<Item = &'a Knob> + Clone) -> Option<String> {
    if let Some(nearest) = nearest(key, knobs.clone()) {
        return Some(format!("perhaps {} is meant", nearest.key));
    }
    let table = key.rsplit_once('.').map_or("", |(table, _)| table);
    let names: Vec<&str> = knobs.filter(|knob| knob.table() == table).map(Knob::name).collect();
    let place = if table.is_empty() { "the file".to_owned() } else { format!("[{table}]") };
    (!names.is_empty()).then(|| format!("{place} has the keys {}", names.join(", ")))
}

/// Returns the knob that `key` was probably meant to be: of the same name in another table, or with the fewest edits, at most a third
/// of the letters of its name.
fn nearest<'a>(key: &str, knobs: impl Iterator<Item = &'a Knob> + Clone) -> Option<&'a Knob> {
    let written: Vec<char> = key.chars().take(KEY_CHARS_MAX + 1).collect();
    if written.len() > KEY_CHARS_MAX {
        return None;
    }
    let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
    let distance = |knob: &&Knob| {
        let letters: Vec<char> = knob.key.chars().collect();
        edits(&written, &letters)
    };
    let known_table = knobs.clone().any(|knob| knob.table() == table);
    if !known_table && let Some(same) = knobs.clone().filter(|knob| knob.name() == name).min_by_key(distance) {
        return Some(same);
    }
    let closest = knobs.min_by_key(distance)?;
    (distance(&closest) <= closest.name().len().div_ceil(3)).then_some(closest)
}

/// Returns the fewest single-letter insertions, deletions and substitutions that turn `a` into `b` (Levenshtein 1966). Computes one
/// row of the table at a time.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::section::Group;
    use crate::unit::Unit;

    crate::tables! {
        /// The agent.
        struct Agent = "agent", Always {
            scan_period: bool = Unit::Bool, "true", "A test.";
            jobs_max: u32 = Unit::Count, "1", "A test.";
        }

        /// A controller.
        struct ColdAge = "cold_age", Always {
            percentile: bool = Unit::Bool, "true", "A test.";
        }

        /// The same for a class.
        struct Aggressive = "class.aggressive", Always {
            percentile: bool = Unit::Bool, "true", "A test.";
        }

        /// The guard.
        struct Guard = "guard", Always {
            enabled: bool = Unit::Bool, "true", "A test.";
        }
    }

    static SCHEMA: Schema =
        Schema { name: "test", tables: &[Agent::TABLE, ColdAge::TABLE, Aggressive::TABLE, Guard::TABLE], lists: &[], remedy: |_| None };

    #[test]
    fn the_key_that_was_nearest() {
        for (key, expected) in [
            ("agent.scan_perod", Some("agent.scan_period")),
            ("agent.scanperiod", Some("agent.scan_period")),
            ("agnet.scan_period", Some("agent.scan_period")),
            ("scan_period", Some("agent.scan_period")),
            ("class.agressive.percentile", Some("class.aggressive.percentile")),
            ("percentile", Some("cold_age.percentile")),
            ("guard.enable", Some("guard.enabled")),
            ("guard.colour", None),
            ("foo", None),
            ("", None),
        ] {
            assert_eq!(nearest(key, SCHEMA.knobs()).map(|knob| knob.key), expected, "{key}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), SCHEMA.knobs()), None);
    }

    #[test]
    fn distances() {
        let check = |a: &str, b: &str, expected| {
            let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            assert_eq!((edits(&a, &b), edits(&b, &a)), (expected, expected));
        };
        check("", "", 0);
        check("", "abc", 3);
        check("kitten", "sitting", 3);
        check("abc", "abc", 0);
    }
}
