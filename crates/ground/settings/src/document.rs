//! One file, read against its schema. Parsing is a function of the text.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use units::quantity::{Invalid, excerpt};

use crate::knob::{Form, Knob, Raw};
use crate::nearest;
use crate::problem::{Problem, Problems};
use crate::schema::{Presence, Schema, Table};
use crate::section::{Entry, Group, Place, Section};

/// How many syntax errors of one file are reported; later ones are usually consequences of earlier ones.
const SYNTAX_PROBLEMS_MAX: usize = 10;

/// A file: the tables that it contains, and its problems.
#[derive(Clone, Debug)]
pub struct Document {
    schema: &'static Schema,
    file: PathBuf,
    sections: Vec<Section>,
    problems: Vec<Problem>,
}

impl Document {
    /// Reads the text of a file; `file` is its name in messages.
    #[must_use]
    pub fn read(schema: &'static Schema, file: &Path, text: &str) -> Self {
        let mut document = Self::new(schema, file);
        match parse_toml(file, text) {
            Ok(table) => document.fill(text, table.get_ref().iter()),
            Err(problems) => document.problems = problems,
        }
        document
    }

    /// Reads a file of which one top-level table contains a file of another schema. Returns both documents; the second is `None`
    /// if the file lacks that table. Problems of syntax are those of the first.
    #[must_use]
    pub fn read_nested(schema: &'static Schema, (name, inner): (&str, &'static Schema), file: &Path, text: &str) -> (Self, Option<Self>) {
        let mut outer = Self::new(schema, file);
        let table = match parse_toml(file, text) {
            Ok(table) => table,
            Err(problems) => {
                outer.problems = problems;
                return (outer, None);
            }
        };
        outer.fill(text, table.get_ref().iter().filter(|(key, _)| key.get_ref() != name));
        let Some((key, value)) = table.get_ref().iter().find(|(key, _)| key.get_ref() == name) else { return (outer, None) };
        let mut nested = Self::new(inner, file);
        match value.get_ref().as_table() {
            Some(table) => nested.fill(text, table.iter()),
            None => {
                let place = Place { line: Some(line(text, key.span().start)), key: name.to_owned(), value: Some(shown(value.get_ref())) };
                nested.report(place, Invalid::new("not a table", format!("write [{name}.TABLE] on a line of its own")));
            }
        }
        (outer, Some(nested))
    }

    fn new(schema: &'static Schema, file: &Path) -> Self {
        Self { schema, file: file.to_owned(), sections: Vec::new(), problems: Vec::new() }
    }

    fn fill<'k, 'a: 'k>(
        &mut self,
        text: &str,
        entries: impl Iterator<Item = (&'k Spanned<std::borrow::Cow<'a, str>>, &'k Spanned<DeValue<'a>>)>,
    ) {
        for (key, value) in entries {
            self.entry(text, key.get_ref(), line(text, key.span().start), value.get_ref());
        }
        self.report_missing();
    }

    /// Returns the section of a table that is no list: what the file sets of it.
    #[must_use]
    pub fn section(&self, table: &Table) -> Section {
        self.list(table.name).next().cloned().unwrap_or(Section::empty(*table))
    }

    /// Returns the sections of a list, in the order of the file.
    pub fn list(&self, table: &str) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(move |section| section.table().name == table)
    }

    /// Returns all sections, in the order of the file.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Returns a table as its type; defaults if the file does not contain it.
    #[must_use]
    pub fn get<G: Group>(&self) -> G {
        G::read(&self.section(&G::TABLE))
    }

    /// Returns a table as its type; `None` if the file does not contain it.
    #[must_use]
    pub fn optional<G: Group>(&self) -> Option<G> {
        self.list(G::TABLE.name).next().map(G::read)
    }

    /// Returns a path that the file contains; a relative one starts at the directory of the file.
    #[must_use]
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Returns the position of a key that is not in a list: its line if the file sets it, else the line of its table.
    #[must_use]
    pub fn place(&self, key: &str) -> Place {
        let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
        match self.schema.table(table) {
            Some(table) => self.section(table).place(name),
            None => Place { line: None, key: key.to_owned(), value: None },
        }
    }

    /// Adds a problem that the caller found.
    pub fn report(&mut self, place: Place, invalid: Invalid) {
        self.problems.push(Problem {
            file: self.file.clone(),
            line: place.line,
            key: Some(excerpt(&place.key)),
            value: place.value,
            message: invalid.message,
            remedy: invalid.remedy,
        });
    }

    /// Adds problems of another part of the same file.
    pub fn extend(&mut self, problems: Vec<Problem>) {
        self.problems.extend(problems);
    }

    /// Returns the problems found so far.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the problems in the order of their lines.
    #[must_use]
    pub fn into_problems(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| problem.line);
        self.problems
    }

    /// Returns `value` if there is no problem, else all problems in the order of their lines.
    ///
    /// # Errors
    /// The problems that [`Self::read`] found and those that [`Self::report`] added.
    pub fn finish<T>(self, value: T) -> Result<T, Problems> {
        let problems = self.into_problems();
        if problems.is_empty() { Ok(value) } else { Err(Problems(problems)) }
    }

    /// Reads one key with everything below it. The TOML parser limits the depth.
    fn entry(&mut self, text: &str, key: &str, line: usize, value: &DeValue) {
        if let Some(table) = self.schema.table(key).filter(|table| table.presence == Presence::List) {
            return self.list_of_tables(text, table, line, value);
        }
        if let Some(knob) = self.schema.single_knobs().find(|knob| knob.key == key) {
            let at = self.section_index(knob, line);
            let entry = self.checked(knob, line, value);
            self.sections[at].push(entry);
            return;
        }
        let here = |value| Place { line: Some(line), key: key.to_owned(), value: Some(shown(value)) };
        match value {
            DeValue::Table(table) if !table.is_empty() || self.schema.is_table(key) => {
                if let Some(table) = self.schema.table(key)
                    && self.list(key).next().is_none()
                {
                    self.sections.push(Section::at(*table, line));
                }
                for (name, value) in table {
                    let line = self::line(text, name.span().start);
                    self.entry(text, &format!("{key}.{}", name.get_ref()), line, value.get_ref());
                }
            }
            other if self.schema.is_table(key) => {
                let remedy = format!("write [{key}] on a line of its own and its keys below");
                self.report(here(other), Invalid::new("a table, not a key", remedy));
            }
            other => self.report(here(other), nearest::unknown_key(self.schema, key)),
        }
    }

    fn list_of_tables(&mut self, text: &str, table: &'static Table, line: usize, value: &DeValue) {
        let name = table.name;
        let items = value.as_array().filter(|items| items.iter().all(|item| item.get_ref().is_table()));
        let Some(items) = items else {
            let place = Place { line: Some(line), key: name.to_owned(), value: Some(shown(value)) };
            let remedy = format!("write [[{name}]], in double brackets, above the keys of each");
            return self.report(place, Invalid::new("not a list of tables", remedy));
        };
        for item in items {
            let mut section = Section::at(*table, self::line(text, item.span().start));
            for (key, value) in item.get_ref().as_table().into_iter().flatten() {
                let (line, key) = (self::line(text, key.span().start), key.get_ref());
                if let Some(knob) = table.knobs.iter().find(|knob| knob.name() == key.as_ref()) {
                    section.push(self.checked(knob, line, value.get_ref()));
                } else {
                    let key = format!("{name}.{key}");
                    let remedy = nearest::remedy_in_table(&key, table.knobs);
                    let place = Place { line: Some(line), key, value: Some(shown(value.get_ref())) };
                    self.report(place, Invalid::new("unknown key", remedy));
                }
            }
            self.sections.push(section);
        }
    }

    /// Returns the index of the section that a knob belongs to, and adds the section if it is the first knob of its table.
    fn section_index(&mut self, knob: &Knob, line: usize) -> usize {
        let name = knob.table();
        if let Some(at) = self.sections.iter().position(|section| section.table().name == name) {
            return at;
        }
        let table = self.schema.table(name).copied();
        self.sections.extend(table.map(|table| Section::at(table, line)));
        self.sections.len() - 1
    }

    fn checked(&mut self, knob: &'static Knob, line: usize, value: &DeValue) -> Entry {
        let shown = shown(value);
        let value = match knob.check(&raw(value)) {
            Ok(value) => Some(value),
            Err(invalid) => {
                self.report(Place { line: Some(line), key: knob.key.to_owned(), value: Some(shown.clone()) }, invalid);
                None
            }
        };
        Entry { knob, line, shown, value }
    }

    fn report_missing(&mut self) {
        let mut missing = Vec::new();
        for table in self.schema.tables.iter().filter(|table| table.knobs.iter().any(|knob| knob.required)) {
            let absent = Section::empty(*table);
            let present: Vec<&Section> = self.list(table.name).collect();
            let default = [&absent];
            let sections = if present.is_empty() && table.presence == Presence::Always { &default[..] } else { &present };
            for section in sections {
                for knob in table.knobs.iter().filter(|knob| knob.required && !section.sets(knob.name())) {
                    let remedy = format!("write {} = {}", knob.name(), knob.default_toml().unwrap_or_default());
                    missing.push((section.place(knob.name()), Invalid::new("missing", remedy)));
                }
            }
        }
        for (place, invalid) in missing {
            self.report(place, invalid);
        }
    }
}

/// Parses a text as TOML.
///
/// # Errors
/// The syntax errors, at most ten.
pub fn parse_toml<'a>(file: &Path, text: &'a str) -> Result<Spanned<DeTable<'a>>, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table);
    }
    // The parser may have assigned what follows an error to a wrong table, so only the errors themselves are reported.
    let problem = |error: &toml::de::Error| Problem {
        file: file.to_owned(),
        line: error.span().map(|span| line(text, span.start)),
        key: None,
        value: None,
        message: format!("not TOML: {}", excerpt(error.message())),
        remedy: "write lines such as `[agent]` and `scan_period = \"120s\"`".to_owned(),
    };
    Err(errors.iter().take(SYNTAX_PROBLEMS_MAX).map(problem).collect())
}

/// Returns the line, from 1, of a byte of a text.
fn line(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// Returns the text of a number; `None` for other values.
fn number(value: &DeValue) -> Option<String> {
    matches!(value, DeValue::Integer(_) | DeValue::Float(_)).then(|| raw(value).text)
}

fn raw(value: &DeValue) -> Raw {
    let raw = |text: String, form| Raw { text, items: Vec::new(), form };
    match value {
        DeValue::String(text) => raw(text.to_string(), Form::Quoted),
        DeValue::Integer(number) => {
            let decimal = u128::from_str_radix(number.as_str(), number.radix());
            raw(decimal.map_or_else(|_| number.to_string(), |n| n.to_string()), Form::Number)
        }
        DeValue::Float(number) => raw(number.as_str().to_owned(), Form::Number),
        DeValue::Boolean(on) => raw(on.to_string(), Form::Bool),
        DeValue::Datetime(time) => raw(time.to_string(), Form::Time),
        DeValue::Array(items) => {
            let texts = items.iter().map(|item| item.get_ref().as_str().map(ToOwned::to_owned)).collect();
            let numbers = items.iter().map(|item| number(item.get_ref())).collect();
            match (texts, numbers) {
                (Some(items), _) => Raw { text: String::new(), items, form: Form::Texts },
                (None, Some(items)) => Raw { text: String::new(), items, form: Form::Numbers },
                (None, None) => raw(String::new(), Form::Other),
            }
        }
        DeValue::Table(entries) => {
            let named = |(name, item): (&Spanned<_>, &Spanned<_>)| Some(format!("{}={}", name.get_ref(), number(item.get_ref())?));
            match entries.iter().map(named).collect() {
                Some(items) => Raw { text: String::new(), items, form: Form::NamedNumbers },
                None => raw(String::new(), Form::Other),
            }
        }
    }
}

/// Returns a value as a message shows it.
fn shown(value: &DeValue) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", excerpt(text)),
        DeValue::Datetime(date) => excerpt(&date.to_string()),
        DeValue::Array(_) => "[...]".to_owned(),
        DeValue::Table(_) => "{...}".to_owned(),
        _ => excerpt(&raw(value).text),
    }
}
