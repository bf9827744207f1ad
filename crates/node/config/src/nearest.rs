//! Which known key was probably meant by an unknown one.

use crate::knob::Knob;

/// A key longer than this, in characters, resembles none.
const KEY_CHARS_MAX: usize = 100;

/// What to tell a user who wrote `key`: the one of `knobs` that was probably meant, or else which keys there are.
pub(crate) fn remedy<'a>(key: &str, knobs: impl Iterator<Item = &'a Knob> + Clone) -> String {
    if let Some(meant) = meant(key, knobs.clone()) {
        return format!("perhaps {} is meant", meant.key);
    }
    let table = key.rsplit_once('.').map_or("", |(table, _)| table);
    let names: Vec<&str> = knobs.clone().filter(|knob| knob.table() == table).map(Knob::name).collect();
    if !names.is_empty() {
        return format!("[{table}] has the keys {}", names.join(", "));
    }
    let mut tables: Vec<&str> = knobs.map(Knob::table).collect();
    tables.dedup();
    format!("there are the tables {} and job", tables.join(", "))
}

/// A knob of the same name in another table, or the one that differs least, in at most a third of its letters.
fn meant<'a>(key: &str, knobs: impl Iterator<Item = &'a Knob> + Clone) -> Option<&'a Knob> {
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
    let nearest = knobs.min_by_key(distance)?;
    (distance(&nearest) <= nearest.name().len().div_ceil(3)).then_some(nearest)
}

/// The fewest single-letter insertions, deletions and substitutions that turn `a` into `b` (Levenshtein 1966), one
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
    use crate::KNOBS;

    #[test]
    fn the_key_that_was_meant() {
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
            assert_eq!(meant(key, KNOBS.iter()).map(|knob| knob.key), expected, "{key}");
        }
        assert_eq!(meant(&"x".repeat(1 << 20), KNOBS.iter()), None);
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
