//! Parameter bundles: values of knobs that a rollout distributes to the machines of a fleet.
//!
//! ```toml
//! schema = 1
//! version = 7                       # higher than every version published before
//! id = "2026-11-k98"
//! created = 2026-11-21T18:00:00Z
//! expires = 2026-12-21T18:00:00Z    # afterwards machines use their configuration file
//!
//! [provenance]                      # where the values come from; each key is optional
//! study = "week-46"
//! trace = "5be1f3..."
//! margin = "0.03%"
//!
//! [knobs.cold_age]
//! percentile = "98%"
//! ```
//!
//! A bundle for the hosts of a pool names models in place of knobs, by their SHA-256; they are files beside it:
//!
//! ```toml
//! [models]
//! untouched = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! ```
//!
//! A bundle may set parameters of the controllers. The configuration file of each machine sets what belongs to the machine (paths,
//! devices, names), what starts or stops whole parts of the agent, and the units of the ages and thresholds in its history.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;
use settings::{Document, Group, Invalid, Knob, Problem, Problems, Schema, Section, Unit, Value, toml_string};

use crate::config::{self, Config, knobs};

/// The version of the format. A reader refuses every other version.
pub const FORMAT: u32 = 1;

/// The largest bundle that is read, in bytes.
pub const BYTES_MAX: usize = 64 << 10;

/// The longest id, study, fingerprint or margin, in bytes.
const WORD_BYTES_MAX: usize = 128;

/// Tables whose knobs a bundle may set.
const TABLES: [&str; 8] =
    ["cold_age", "pressure", "background", "tier", "slow", "incompressible", "class.conservative", "class.aggressive"];

/// Knobs of these tables that belong to each machine.
const LOCAL: [&str; 6] = ["cold_age.thresholds", "slow.node", "slow.latency", "slow.measure_latency", "slow.manage", "slow.split"];

settings::tables! {
    /// What identifies a bundle.
    pub(crate) struct Header = "", Always {
        schema: u32 = Unit::Count, required "1",
            "The version of the format.";
        version: u64 = Unit::Count, required "1",
            "The number of the bundle, higher than that of every bundle published before.";
        id: String = Unit::Text, required "2026-11-k98",
            "The name of the bundle.";
        created: String = Unit::Time, required "2026-11-21T18:00:00Z",
            "When it was made.";
        expires: String = Unit::Time, required "2026-12-21T18:00:00Z",
            "When machines stop following it.";
    }

    /// Where the values of a bundle come from.
    pub(crate) struct Origin = "provenance", Optional {
        study: Option<String> = Unit::Text, "", "The study that found them.";
        trace: Option<String> = Unit::Text, "", "A fingerprint of the traces that the study read.";
        margin: Option<String> = Unit::Text, "", "The margin left under the objective in the evaluation.";
    }

    /// The models of a bundle for the hosts of a pool.
    pub(crate) struct ModelTable = "models", Optional {
        untouched: Option<String> = Unit::Text, "", "The SHA-256 of the model of untouched memory.";
        insensitive: Option<String> = Unit::Text, "", "The SHA-256 of the model of insensitivity to latency.";
    }
}

/// A bundle, except for its knobs.
static SCHEMA: Schema = Schema { name: "bundle", tables: &[Header::TABLE, Origin::TABLE, ModelTable::TABLE], lists: &[], remedy };

/// A checked bundle: every value is in its range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bundle {
    /// Its number, from 1. A later bundle has a higher one.
    pub version: u64,
    /// Its name.
    pub id: String,
    /// When it was made, in seconds since the epoch.
    pub created_unix_s: u64,
    /// When machines stop following it, in seconds since the epoch.
    pub expires_unix_s: u64,
    /// Where its values come from.
    pub provenance: Provenance,
    /// The models that it distributes.
    #[serde(skip_serializing_if = "Models::is_empty")]
    pub models: Models,
    /// The keys and values that it sets.
    pub knobs: BTreeMap<&'static str, Value>,
}

/// The models of a bundle, each by its SHA-256 in lower-case hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Models {
    /// The model of untouched memory.
    pub untouched: Option<String>,
    /// The model of insensitivity to latency.
    pub insensitive: Option<String>,
}

impl Models {
    /// The models by name.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, Option<&str>); 2] {
        [("untouched", self.untouched.as_deref()), ("insensitive", self.insensitive.as_deref())]
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where the values of a bundle come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// The study that found them.
    pub study: Option<String>,
    /// A fingerprint of the traces that the study read.
    pub trace: Option<String>,
    /// The margin left under the objective in the evaluation.
    pub margin: Option<String>,
}

/// Whether a bundle may set a knob.
#[must_use]
pub fn rolls_out(knob: &Knob) -> bool {
    TABLES.contains(&knob.table()) && !LOCAL.contains(&knob.key)
}

impl Bundle {
    /// Reads a bundle; `name` is its file name in messages.
    ///
    /// # Errors
    /// All problems together.
    pub fn parse(name: &str, text: &str) -> Result<Self, Problems> {
        let file = Path::new(name);
        if text.len() > BYTES_MAX {
            let invalid = Invalid::new(format!("larger than {BYTES_MAX} bytes"), "remove everything that is not a knob");
            return Err(Problems(vec![Problem::of_file(file, invalid)]));
        }
        let (mut document, nested) = Document::read_nested(&SCHEMA, ("knobs", &config::SCHEMA), file, text);
        let header = document.section(&Header::TABLE);
        let Header { schema, version, id, created, expires } = Header::read(&header);
        if schema != FORMAT {
            let message = format!("this program reads schema {FORMAT}");
            document.report(header.place("schema"), Invalid::new(message, "use the program that wrote it"));
        }
        if version == 0 {
            let remedy = "write a number above that of the last bundle";
            document.report(header.place("version"), Invalid::new("versions begin with 1", remedy));
        }
        let created_unix_s = read_time(&mut document, &header, "created", &created);
        let expires_unix_s = read_time(&mut document, &header, "expires", &expires);
        if header.sets("created") && header.sets("expires") && created_unix_s.zip(expires_unix_s).is_some_and(|(c, e)| e <= c) {
            let remedy = "write the time at which machines stop following it";
            document.report(header.place("expires"), Invalid::new("not after `created`", remedy));
        }
        check_lengths(&mut document);
        let Origin { study, trace, margin } = document.get();
        let models = read_models(&mut document);
        let mut nested = nested;
        let knobs = match nested.as_mut() {
            None if !models.is_empty() => BTreeMap::new(),
            nested => read_knobs(&mut document, nested),
        };
        let problems = nested.map(Document::into_problems).unwrap_or_default();
        let bundle = Self {
            version,
            id,
            created_unix_s: created_unix_s.unwrap_or_default(),
            expires_unix_s: expires_unix_s.unwrap_or_default(),
            provenance: Provenance { study, trace, margin },
            models,
            knobs,
        };
        document.extend(problems);
        document.finish(bundle)
    }

    /// Returns the bundle as a file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "schema = {FORMAT}\nversion = {}\nid = {}\ncreated = {}\nexpires = {}\n",
            self.version,
            toml_string(&self.id),
            rfc3339(self.created_unix_s),
            rfc3339(self.expires_unix_s),
        );
        let Provenance { study, trace, margin } = &self.provenance;
        if self.provenance != Provenance::default() {
            text += "\n[provenance]\n";
        }
        for (key, value) in [("study", study), ("trace", trace), ("margin", margin)] {
            if let Some(value) = value {
                text += &format!("{key} = {}\n", toml_string(value));
            }
        }
        if !self.models.is_empty() {
            text += "\n[models]\n";
        }
        for (name, digest) in self.models.by_name() {
            if let Some(digest) = digest {
                text += &format!("{name} = {}\n", toml_string(digest));
            }
        }
        let mut table = "";
        for (knob, value) in knobs().filter_map(|knob| Some((knob, self.knobs.get(knob.key)?))) {
            if knob.table() != table {
                table = knob.table();
                text += &format!("\n[knobs.{table}]\n");
            }
            text += &format!("{} = {}\n", knob.name(), knob.to_toml(value));
        }
        text
    }

    /// Returns the configuration of a machine that follows this bundle: its own configuration with the bundle's values.
    #[must_use]
    pub fn over(&self, own: &Config) -> Config {
        let mut config = own.clone();
        for knob in knobs().filter(|knob| rolls_out(knob)) {
            if let Some(value) = self.knobs.get(knob.key) {
                config.set(knob, value.clone());
            }
        }
        config
    }

    /// Whether the bundle has expired.
    #[must_use]
    pub fn expired(&self, now_unix_s: u64) -> bool {
        now_unix_s >= self.expires_unix_s
    }
}

/// Returns a time in seconds since the epoch as a bundle has it.
#[must_use]
pub fn rfc3339(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn read_time(document: &mut Document, header: &Section, name: &str, text: &str) -> Option<u64> {
    let time = text.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_second()).ok());
    if time.is_none() {
        let remedy = "write a date with its time and offset, such as 2026-11-21T18:00:00Z";
        document.report(header.place(name), Invalid::new("not a time", remedy));
    }
    time
}

fn check_lengths(document: &mut Document) {
    let mut long = Vec::new();
    for section in document.sections() {
        for (_, knob, value) in section.values() {
            if matches!(value, Value::Text(text) if text.len() > WORD_BYTES_MAX) {
                long.push(section.place(knob.name()));
            }
        }
    }
    for place in long {
        document.report(place, Invalid::new("not a short text", format!("write at most {WORD_BYTES_MAX} bytes")));
    }
}

/// Returns the models that the bundle names, and reports what is no SHA-256.
fn read_models(document: &mut Document) -> Models {
    let ModelTable { untouched, insensitive } = document.get();
    let models = Models { untouched, insensitive };
    let section = document.section(&ModelTable::TABLE);
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    for (name, digest) in models.by_name() {
        if digest.is_some_and(|digest| digest.len() != 64 || !digest.bytes().all(digit)) {
            let remedy = "write what sha256sum prints, or publish the file by `thermocline pool models publish`";
            document.report(section.place(name), Invalid::new("not a SHA-256", remedy));
        }
    }
    models
}

/// Returns what the bundle sets, and reports knobs that it may not set.
fn read_knobs(document: &mut Document, nested: Option<&mut Document>) -> BTreeMap<&'static str, Value> {
    let root = document.section(&Header::TABLE);
    let whole = Section::place(&root, "knobs").without_line();
    let Some(nested) = nested else {
        let remedy = "write a table such as [knobs.cold_age] with the values that the bundle sets";
        document.report(whole, Invalid::new("missing", remedy));
        return BTreeMap::new();
    };
    let sections = nested.sections().to_vec();
    for section in &sections {
        if section.table().name == "job" {
            nested.report(section.place(""), Invalid::new("belongs to each machine", "remove it: a bundle sets knobs only"));
            continue;
        }
        for (_, knob, _) in section.values().filter(|(_, knob, _)| !rolls_out(knob)) {
            let remedy = "remove it, and set it in the machines' configuration files";
            nested.report(section.place(knob.name()).without_value(), Invalid::new("belongs to each machine", remedy));
        }
    }
    if sections.iter().all(|section| section.values().next().is_none()) && nested.problems().is_empty() {
        let remedy = "write [knobs.cold_age] and percentile = \"98%\" below it, or another knob";
        document.report(whole, Invalid::new("sets nothing", remedy));
    }
    sections.iter().flat_map(Section::values).map(|(_, knob, value)| (knob.key, value.clone())).collect()
}

/// Remedies for unknown keys of a bundle.
fn remedy(key: &str) -> Option<String> {
    let name = key.split('.').next().unwrap_or(key);
    match key.strip_prefix("provenance.") {
        Some(_) => Some("write study, trace or margin".to_owned()),
        None if name == "models" => Some("write untouched or insensitive".to_owned()),
        None if knobs().any(|knob| knob.key.split('.').next() == Some(name)) => {
            Some(format!("write [knobs.{name}] above the keys that it sets"))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = r#"
schema = 1
version = 7
id = "2026-11-k98"
created = 2026-11-21T18:00:00Z
expires = 2026-12-21T19:00:00+01:00

[provenance]
study = "week-46"
margin = "0.03%"

[knobs.cold_age]
percentile = "98%"
warmup = "10m"
[knobs.class.aggressive]
promotion_rate = "2%"
"#;

    #[test]
    fn a_bundle_overrides_the_configuration_of_a_machine() {
        let bundle = Bundle::parse("7.toml", GOOD).unwrap();
        assert_eq!((bundle.version, bundle.created_unix_s, bundle.expires_unix_s), (7, 1_795_284_000, 1_797_876_000));
        assert!(!bundle.expired(1_797_875_999) && bundle.expired(1_797_876_000));
        let own = Config::from_str("own", "[cold_age]\npromotion_rate = \"0.5%\"\n[agent]\njobs_max = 7").unwrap();
        let over = bundle.over(&own);
        let value = |key: &str| over.get(key).unwrap().to_string();
        for (key, expected) in [
            ("cold_age.percentile", "98%"),
            ("cold_age.promotion_rate", "0.5%"),
            ("agent.jobs_max", "7"),
            ("class.aggressive.promotion_rate", "2%"),
        ] {
            assert_eq!(value(key), expected, "{key}");
        }
        assert_eq!(Bundle::parse("again", &bundle.to_toml()).unwrap(), bundle);
    }

    #[test]
    fn a_bundle_of_models_needs_no_knobs() {
        let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let header = GOOD.split("[provenance]").next().unwrap();
        let parse = |models: &str| Bundle::parse("models.toml", &format!("{header}[models]\n{models}"));
        let bundle = parse(&format!("untouched = \"{digest}\"")).unwrap();
        assert_eq!((bundle.models.untouched.as_deref(), bundle.knobs.len()), (Some(digest), 0));
        assert_eq!(Bundle::parse("again", &bundle.to_toml()).unwrap(), bundle);
        for wrong in [&digest[1..], "../../etc/passwd", &digest.to_uppercase()] {
            let problems = parse(&format!("insensitive = \"{wrong}\"")).unwrap_err().to_string();
            assert!(problems.contains("models.insensitive") && problems.contains("not a SHA-256"), "{problems}");
        }
        assert!(parse("touched = \"x\"").unwrap_err().to_string().contains("write untouched or insensitive"));
        assert!(parse("").unwrap_err().to_string().contains("knobs"), "neither models nor knobs");
    }

    /// Replaces a part of the valid bundle; the problems contain all of `pieces`.
    fn check(from: &str, to: &str, pieces: &[&str]) {
        assert!(GOOD.contains(from), "{from}");
        let problems = Bundle::parse("7.toml", &GOOD.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(pieces.iter().all(|piece| problems.contains(piece)), "{problems}");
    }

    #[test]
    fn all_problems_are_reported_with_remedies() {
        check("schema = 1", "schema = 2", &["reads schema 1"]);
        check("version = 7", "version = 0", &["begin with 1"]);
        check("version = 7", "version = -7", &["line 3", "not a whole number"]);
        check("version = 7", "", &["version: missing"]);
        check("id = \"2026-11-k98\"", "id = \"\"", &["id", "not a short text"]);
        check("2026-12-21T19", "2026-11-21T19", &["not after `created`"]);
        check("created = 2026-11-21T18:00:00Z", "created = \"soon\"", &["created", "not a time"]);
        check("study", "studies", &["write study, trace or margin"]);
        check("\"98%\"", "\"49%\"", &["cold_age.percentile", "out of range"]);
        check("percentile", "percentil", &["unknown key", "perhaps cold_age.percentile is meant"]);
        check("[knobs.cold_age]", "[cold_age]", &["write [knobs.cold_age]"]);
        check(
            "[knobs.cold_age]\npercentile = \"98%\"",
            "[knobs.agent]\nstate_dir = \"/x\"\n[knobs.cold_age]\nthresholds = 8",
            &["agent.state_dir: belongs to each machine", "cold_age.thresholds: belongs to each machine"],
        );
        check("[knobs.cold_age]", "[[knobs.job]]\ncgroup = \"/*\"\n[knobs.cold_age]", &["job"]);
        check("schema = 1", "schema = ", &["not TOML"]);
        check("schema = 1", &format!("# {}\nschema = 1", "x".repeat(BYTES_MAX)), &["larger than"]);
        let bare = GOOD.split("[knobs").next().unwrap();
        assert!(Bundle::parse("7.toml", bare).unwrap_err().to_string().contains("knobs: missing"));
        assert!(Bundle::parse("7.toml", &format!("{bare}[knobs]\n")).unwrap_err().to_string().contains("sets nothing"));
    }

    #[test]
    fn every_listed_table_and_exception_exists() {
        for table in TABLES {
            assert!(knobs().any(|knob| knob.table() == table), "{table}");
        }
        for key in LOCAL {
            assert!(knobs().any(|knob| knob.key == key && !rolls_out(knob)), "{key}");
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in ".{0,200}") {
            let _ = Bundle::parse("x", &text);
        }

        #[test]
        fn a_truncated_text_does_not_panic(cut in 0..GOOD.len()) {
            let _ = Bundle::parse("x", &GOOD[..cut]);
        }
    }
}
