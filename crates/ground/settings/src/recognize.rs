//! Recognizes which kind of file a text is.

use toml::de::DeTable;

use crate::schema::Schema;

/// Returns the schema that a file follows: the one with the most of the file's top-level keys, or, if several have equally many,
/// the one whose name is part of the file's name. `None` if neither decides.
#[must_use]
pub fn recognize(schemas: &[&'static Schema], file_name: &str, text: &str) -> Option<&'static Schema> {
    let keys = top_level_keys(text);
    let known = |schema: &Schema| keys.iter().filter(|key| schema.has_top_level(key)).count();
    let most = schemas.iter().map(|schema| known(schema)).max()?;
    let best: Vec<_> = schemas.iter().filter(|schema| known(schema) == most).collect();
    match best.as_slice() {
        [only] => Some(only),
        several => several.iter().find(|schema| file_name.contains(schema.name)).map(|schema| **schema),
    }
}

/// Returns the keys at the top level of a text; none if it is not TOML.
fn top_level_keys(text: &str) -> Vec<String> {
    let (table, _) = DeTable::parse_recoverable(text);
    table.get_ref().iter().map(|(key, _)| key.get_ref().to_string()).collect()
}
