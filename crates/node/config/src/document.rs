//! One configuration file: a function of its text.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use units::quantity::{self, Invalid};

use crate::job::{JOB_KNOBS, JobRule};
use crate::knob::{Form, Knob, Raw, Value};
use crate::nearest;
use crate::problem::Problem;
use crate::table::{Config, KNOBS, knob};
use crate::{Class, Kind, Policy, Tier, Tracker};

/// How many problems of form one file may add: after so many the rest is noise.
const SYNTAX_PROBLEMS_MAX: usize = 10;

/// Sets in `config` what `text` sets, and returns what is wrong with it, by line. Its rules for jobs go before those
/// that are there, so that they are the first to match.
pub(crate) fn apply(config: &mut Config, file: &Path, text: &str) -> Vec<Problem> {
    let table = match parse(file, text) {
        Ok(table) => table,
        Err(problems) => return problems,
    };
    let mut reader = Reader::new(config, file, text);
    reader.top(table.get_ref());
    let Reader { jobs, mut problems, .. } = reader;
    config.jobs.splice(0..0, jobs.into_iter().map(|(_, rule)| rule));
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// Sets in `config` what one table of `text` sets of its knobs. Returns which, each with its line, and what is wrong.
pub(crate) fn apply_knobs(config: &mut Config, file: &Path, text: &str, table: &DeTable) -> (Vec<(usize, &'static Knob)>, Vec<Problem>) {
    let mut reader = Reader::new(config, file, text);
    for (key, value) in table {
        reader.entry(key.get_ref(), line(text, key.span().start), value.get_ref());
    }
    (reader.set, reader.problems)
}

/// A text as TOML, or what of it is none.
pub(crate) fn parse<'a>(file: &Path, text: &'a str) -> Result<Spanned<DeTable<'a>>, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table);
    }
    // What follows an error may have been read as part of another table, so only the errors themselves are sure.
    let problem = |error: &toml::de::Error| Problem {
        file: file.to_owned(),
        line: error.span().map(|span| line(text, span.start)),
        key: None,
        value: None,
        message: format!("not TOML: {}", quantity::excerpt(error.message())),
        remedy: "lines look like `[agent]` and `scan_period = \"120s\"`".to_owned(),
    };
    Err(errors.iter().take(SYNTAX_PROBLEMS_MAX).map(problem).collect())
}

/// The line, from 1, of a byte of a text.
pub(crate) fn line(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// What to say of a key that is none.
pub(crate) fn unknown_key(key: &str) -> Invalid {
    let parts: Vec<&str> = key.split('.').collect();
    let remedy = match parts.as_slice() {
        ["class", "standard", ..] => "class standard is what [cold_age] says: set it there".to_owned(),
        ["class", "observe" | "off", ..] => "classes observe and off have no parameters: leave it out".to_owned(),
        ["job", ..] => "jobs are rules of a file, written as a [[job]] table each".to_owned(),
        _ => nearest::remedy(key, KNOBS.iter()),
    };
    Invalid::new("unknown key", remedy)
}

struct Reader<'a> {
    config: &'a mut Config,
    file: &'a Path,
    text: &'a str,
    /// Each rule with its line.
    jobs: Vec<(usize, JobRule)>,
    /// Each knob that was set, with its line.
    set: Vec<(usize, &'static Knob)>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    fn new(config: &'a mut Config, file: &'a Path, text: &'a str) -> Self {
        Self { config, file, text, jobs: Vec::new(), set: Vec::new(), problems: Vec::new() }
    }

    fn line(&self, offset: usize) -> usize {
        line(self.text, offset)
    }

    fn report(&mut self, line: Option<usize>, key: Option<&str>, value: Option<String>, invalid: Invalid) {
        self.problems.push(Problem {
            file: self.file.to_owned(),
            line,
            key: key.map(quantity::excerpt),
            value,
            message: invalid.message,
            remedy: invalid.remedy,
        });
    }

    fn top(&mut self, table: &DeTable) {
        for (key, value) in table {
            let line = self.line(key.span().start);
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("job", DeValue::Array(rules)) if rules.iter().all(|rule| rule.get_ref().is_table()) => {
                    for rule in rules {
                        let line = self.line(rule.span().start);
                        if let Some(table) = rule.get_ref().as_table() {
                            self.job(line, table);
                        }
                    }
                }
                ("job", other) => {
                    let invalid = Invalid::new("not a list of rules", "write [[job]], in double brackets, above each rule");
                    self.report(Some(line), Some("job"), Some(shown(other)), invalid);
                }
                (name, value) => self.entry(name, line, value),
            }
        }
    }

    /// One key with all that is below it. Tables in tables are bounded by the TOML parser.
    fn entry(&mut self, key: &str, line: usize, value: &DeValue) {
        if let Some(knob) = knob(key) {
            if let Some(value) = self.checked(knob, key, line, value) {
                self.config.set(knob, value);
                self.set.push((line, knob));
            }
            return;
        }
        match value {
            DeValue::Table(table) if !table.is_empty() || is_table(key) => {
                for (name, value) in table {
                    let line = self.line(name.span().start);
                    self.entry(&format!("{key}.{}", name.get_ref()), line, value.get_ref());
                }
            }
            other if is_table(key) => {
                let invalid = Invalid::new("a table, not a key", format!("write [{key}] on a line of its own and its keys below"));
                self.report(Some(line), Some(key), Some(shown(other)), invalid);
            }
            other => self.report(Some(line), Some(key), Some(shown(other)), unknown_key(key)),
        }
    }

    fn checked(&mut self, knob: &Knob, key: &str, line: usize, value: &DeValue) -> Option<Value> {
        match knob.check(&raw(value)) {
            Ok(value) => Some(value),
            Err(invalid) => {
                self.report(Some(line), Some(key), Some(shown(value)), invalid);
                None
            }
        }
    }

    fn job(&mut self, line: usize, table: &DeTable) {
        let (mut cgroup, mut container, mut annotation) = (None, None, None);
        let (mut class, mut kind) = (None, Kind::Application);
        let (mut policy, mut tier, mut tracker) = (None, None, None);
        for (name, value) in table {
            let line = self.line(name.span().start);
            let key = format!("job.{}", name.get_ref());
            let Some(knob) = JOB_KNOBS.iter().find(|knob| knob.key == key) else {
                let invalid = Invalid::new("unknown key", nearest::remedy(&key, JOB_KNOBS.iter()));
                self.report(Some(line), Some(&key), Some(shown(value.get_ref())), invalid);
                continue;
            };
            match self.checked(knob, &key, line, value.get_ref()) {
                Some(Value::Text(text)) => match knob.name() {
                    "container" => container = Some(text),
                    "annotation" => annotation = Some(text),
                    _ => cgroup = Some(text),
                },
                Some(Value::Choice(name)) => match knob.name() {
                    "class" => class = Class::from_name(name),
                    "kind" => kind = Kind::from_name(name).unwrap_or(kind),
                    "policy" => policy = Policy::from_name(name),
                    "tier" => tier = Tier::from_name(name),
                    _ => tracker = Tracker::from_name(name),
                },
                _ => {}
            }
        }
        let named = |wanted: &str| table.iter().any(|(name, _)| name.get_ref() == wanted);
        if !named("cgroup") && (container.is_some() || annotation.is_some()) {
            cgroup = Some("/**".to_owned());
        } else if !named("cgroup") {
            let invalid = Invalid::new("missing", "write which cgroups the rule is for: cgroup = \"/system.slice/*.service\"");
            self.report(Some(line), Some("job.cgroup"), None, invalid);
        }
        let Some(cgroup) = cgroup else { return };
        let class = class.unwrap_or(if kind == Kind::Application { Class::Observe } else { Class::Aggressive });
        if let Some((first, _)) =
            self.jobs.iter().find(|(_, rule)| rule.cgroup == cgroup && rule.container == container && rule.annotation == annotation)
        {
            let invalid = Invalid::new(
                "never reached: the first rule that matches holds",
                format!("merge it with the rule for the same cgroups in line {first}"),
            );
            self.report(Some(line), Some("job.cgroup"), Some(quoted(&cgroup)), invalid);
        }
        self.jobs.push((line, JobRule { cgroup, container, annotation, class, policy, tier, kind, tracker }));
    }
}

/// Whether knobs lie below this key.
fn is_table(key: &str) -> bool {
    KNOBS.iter().any(|knob| knob.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
}

fn raw(value: &DeValue) -> Raw {
    let (text, form) = match value {
        DeValue::String(text) => (text.to_string(), Form::Quoted),
        DeValue::Integer(number) => {
            let decimal = u128::from_str_radix(number.as_str(), number.radix());
            (decimal.map_or_else(|_| number.to_string(), |n| n.to_string()), Form::Number)
        }
        DeValue::Float(number) => (number.as_str().to_owned(), Form::Number),
        DeValue::Boolean(on) => (on.to_string(), Form::Bool),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => (String::new(), Form::Other),
    };
    Raw { text, form }
}

pub(crate) fn shown(value: &DeValue) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Datetime(date) => quantity::excerpt(&date.to_string()),
        DeValue::Array(_) => "[...]".to_owned(),
        DeValue::Table(_) => "{...}".to_owned(),
        _ => quantity::excerpt(&raw(value).text),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", quantity::excerpt(text))
}
