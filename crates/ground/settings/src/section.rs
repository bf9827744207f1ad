//! One table of a file with the values that the file sets.

use crate::knob::Knob;
use crate::schema::Table;
use crate::value::{Setting, Value};

/// A structure whose fields are the knobs of a table. [`crate::tables!`] implements it.
pub trait Group: Sized {
    /// The table.
    const TABLE: Table;

    /// Reads the values that a file sets; the others are the defaults.
    #[must_use]
    fn read(section: &Section) -> Self;

    /// Returns the value of the knob with this name, or `None` if the table has no such knob.
    fn get(&self, name: &str) -> Option<Value>;

    /// Sets the knob with this name. Returns whether the table has such a knob and its type holds the value.
    fn set(&mut self, name: &str, value: Value) -> bool;

    /// The defaults of all knobs; of required knobs, the examples.
    #[must_use]
    fn defaults() -> Self {
        Self::read(&Section::empty(Self::TABLE))
    }
}

/// One table of a file with the values that the file sets. All values are in their ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    table: Table,
    line: Option<usize>,
    entries: Vec<Entry>,
}

/// One key that a file sets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The knob.
    pub(crate) knob: &'static Knob,
    /// The line of the key, from 1.
    pub(crate) line: usize,
    /// The value as the file has it, shortened for messages.
    pub(crate) shown: String,
    /// The value; `None` if it is invalid, which has been reported.
    pub(crate) value: Option<Value>,
}

/// The position of a problem that concerns a table or one of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub(crate) line: Option<usize>,
    /// The full key.
    pub(crate) key: String,
    /// The value as the file has it.
    pub(crate) value: Option<String>,
}

impl Place {
    /// The same without a line: the problem concerns the whole file.
    #[must_use]
    pub fn without_line(self) -> Self {
        Self { line: None, ..self }
    }

    /// The same without a value: the key is the cause, whatever its value.
    #[must_use]
    pub fn without_value(self) -> Self {
        Self { value: None, ..self }
    }
}

impl Section {
    /// A table of which nothing is set.
    pub(crate) const fn empty(table: Table) -> Self {
        Self { table, line: None, entries: Vec::new() }
    }

    /// A table that begins in a line of a file.
    pub(crate) const fn at(table: Table, line: usize) -> Self {
        Self { table, line: Some(line), entries: Vec::new() }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Returns the table.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the line in which the table begins, from 1; `None` if the file does not contain it.
    #[must_use]
    pub const fn line(&self) -> Option<usize> {
        self.line
    }

    /// Whether the file sets the knob with this name, to a valid value or not.
    #[must_use]
    pub fn sets(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// Returns the knobs that the file sets to valid values, with their lines.
    pub fn values(&self) -> impl Iterator<Item = (usize, &'static Knob, &Value)> {
        self.entries.iter().filter_map(|entry| Some((entry.line, entry.knob, entry.value.as_ref()?)))
    }

    /// Returns the position of the knob with this name: its line if the file sets it, else the line of the table. An empty name
    /// means the table itself.
    #[must_use]
    pub fn place(&self, name: &str) -> Place {
        let key = match (self.table.name, name) {
            (table, "") => table.to_owned(),
            ("", name) => name.to_owned(),
            (table, name) => format!("{table}.{name}"),
        };
        match self.entry(name) {
            Some(entry) => Place { line: Some(entry.line), key, value: Some(entry.shown.clone()) },
            None => Place { line: self.line, key, value: None },
        }
    }

    /// Returns the value of the knob with this name as the type of its field: the value set, or the default.
    ///
    /// # Panics
    /// If the declaration of the table is wrong: no such knob, an invalid default, or a type that does not hold the unit.
    #[must_use]
    #[expect(clippy::panic, reason = "a wrong declaration fails in every test that reads any file of its schema")]
    pub fn typed<T: Setting>(&self, name: &str) -> T {
        if let Some(value) = self.entry(name).and_then(|entry| entry.value.clone()) {
            let Some(value) = T::from_value(value) else { panic!("the type of {}.{name} does not hold its unit", self.table.name) };
            return value;
        }
        let Some(knob) = self.table.knobs.iter().find(|knob| knob.name() == name) else { panic!("no knob {}.{name}", self.table.name) };
        if knob.default.is_empty()
            && let Some(unset) = T::unset()
        {
            return unset;
        }
        match knob.parse_default().map(T::from_value) {
            Ok(Some(value)) => value,
            Ok(None) => panic!("the type of {} does not hold its unit, {}", knob.key, knob.unit.name()),
            Err(invalid) => panic!("the default of {} is invalid: {}", knob.key, invalid.message),
        }
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.knob.name() == name)
    }
}
