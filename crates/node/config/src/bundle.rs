//! Parameter bundles: values of knobs that are brought to the machines of a fleet, with what is to be known about them.
//!
//! ```toml
//! schema = 1
//! version = 7                       # above all that were published before
//! id = "2026-11-k98"
//! created = 2026-11-21T18:00:00Z
//! expires = 2026-12-21T18:00:00Z    # from then on machines go by their configuration file
//!
//! [provenance]                      # where the values come from; each key may be left out
//! study = "week-46"
//! trace = "5be1f3..."
//! margin = "0.03%"
//!
//! [knobs.cold_age]
//! percentile = "98%"
//! ```
//!
//! A bundle may set what controllers go by. What belongs to a machine (paths, devices, names), what starts or ends
//! whole parts of the agent, and what the ages and thresholds in its histories count is set in its configuration file.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};
use units::quantity::{self, Invalid};

use crate::document;
use crate::knob::{Knob, Value, toml_string};
use crate::problem::{Problem, Problems};
use crate::table::{Config, KNOBS};

/// The version of the format. A reader refuses any other by name.
pub const SCHEMA: u32 = 1;

/// The largest bundle that is read, in bytes.
pub const BYTES_MAX: usize = 64 << 10;

/// The longest id, study, fingerprint or margin, in bytes.
const WORD_BYTES_MAX: usize = 128;

/// Tables whose knobs a bundle may set.
const TABLES: [&str; 8] =
    ["cold_age", "pressure", "background", "tier", "slow", "incompressible", "class.conservative", "class.aggressive"];

/// Knobs of these tables that it may not.
const OWN: [&str; 5] = ["cold_age.thresholds", "slow.node", "slow.latency", "slow.manage", "slow.split"];

/// A checked bundle: every value is in its range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bundle {
    /// Its number, from 1. A later bundle has a higher one.
    pub version: u64,
    /// Its name, for people.
    pub id: String,
    /// When it was made, in seconds since the epoch.
    pub created_unix_s: u64,
    /// From when on nobody follows it, in seconds since the epoch.
    pub expires_unix_s: u64,
    /// Where its values come from.
    pub provenance: Provenance,
    /// What it sets: keys and values.
    pub knobs: BTreeMap<&'static str, Value>,
}

/// Where the values of a bundle come from, in its maker's words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// The study that found them.
    pub study: Option<String>,
    /// A fingerprint of the traces that the study read.
    pub trace: Option<String>,
    /// What was left under the objective in the evaluation.
    pub margin: Option<String>,
}

/// What a machine is told to follow: the values of its assignment, fetched and checked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Guidance {
    /// The rollout's id.
    pub rollout: String,
    /// The stage that it is in.
    pub stage: String,
    /// Which part of the fleet the machine belongs to.
    pub arm: Arm,
    /// The bundle to follow; none is the configuration file.
    pub bundle: Option<Bundle>,
    /// Where to go back to from it; none is the configuration file.
    pub previous: Option<Bundle>,
}

/// What one look at the store of bundles brought. Counts are since the agent started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// What to follow from now on, where that is news.
    pub guidance: Option<Guidance>,
    /// Looks.
    pub polls: u64,
    /// Requests to the store.
    pub requests: u64,
    /// What was refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Why nothing could be learned this time.
    pub trouble: Option<String>,
    /// When something was last learned, in seconds since the epoch.
    pub checked_unix_s: Option<u64>,
}

/// A part of a fleet in a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// Follows the bundle that is rolled out.
    Bundle,
    /// Its turn has not come.
    Previous,
    /// Held back, to be compared with.
    Control,
}

impl Arm {
    /// As in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bundle => "bundle",
            Self::Previous => "previous",
            Self::Control => "control",
        }
    }
}

impl Knob {
    /// Whether a bundle may set it.
    #[must_use]
    pub fn rolls_out(&self) -> bool {
        TABLES.contains(&self.table()) && !OWN.contains(&self.key)
    }
}

impl Bundle {
    /// Reads a bundle, with `name` for its file.
    ///
    /// # Errors
    /// Everything that is wrong with it, together.
    pub fn parse(name: &str, text: &str) -> Result<Self, Problems> {
        let file = Path::new(name);
        let whole = |invalid: Invalid| Problem {
            file: file.to_owned(),
            line: None,
            key: None,
            value: None,
            message: invalid.message,
            remedy: invalid.remedy,
        };
        if text.len() > BYTES_MAX {
            return Err(Problems(vec![whole(Invalid::new(format!("larger than {BYTES_MAX} bytes"), "leave out what is no knob"))]));
        }
        let table = document::parse(file, text).map_err(Problems)?;
        let mut reader = Reader { file, text, problems: Vec::new() };
        let bundle = reader.bundle(table.get_ref());
        reader.problems.sort_by_key(|problem| problem.line);
        match bundle {
            Some(bundle) if reader.problems.is_empty() => Ok(bundle),
            _ => Err(Problems(reader.problems)),
        }
    }

    /// As a file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "schema = {SCHEMA}\nversion = {}\nid = {}\ncreated = {}\nexpires = {}\n",
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
        let mut table = "";
        for (knob, value) in KNOBS.iter().filter_map(|knob| Some((knob, self.knobs.get(knob.key)?))) {
            if knob.table() != table {
                table = knob.table();
                text += &format!("\n[knobs.{table}]\n");
            }
            text += &format!("{} = {}\n", knob.name(), knob.to_toml(value));
        }
        text
    }

    /// What a machine goes by that follows this bundle: its own configuration with what the bundle sets.
    #[must_use]
    pub fn over(&self, own: &Config) -> Config {
        let mut config = own.clone();
        for knob in KNOBS.iter().filter(|knob| knob.rolls_out()) {
            if let Some(value) = self.knobs.get(knob.key) {
                config.set(knob, value.clone());
            }
        }
        config
    }

    /// Whether nobody may follow it any more.
    #[must_use]
    pub fn expired(&self, now_unix_s: u64) -> bool {
        now_unix_s >= self.expires_unix_s
    }
}

/// A time in seconds since the epoch, as in a bundle.
#[must_use]
pub fn rfc3339(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
    problems: Vec<Problem>,
}

/// A key's line and value.
type Found<'a, 'i> = (usize, &'a DeValue<'i>);

impl Reader<'_> {
    fn report(&mut self, line: Option<usize>, key: &str, value: Option<&DeValue>, invalid: Invalid) {
        let Invalid { message, remedy } = invalid;
        let (file, key) = (self.file.to_owned(), Some(quantity::excerpt(key)));
        self.problems.push(Problem { file, line, key, value: value.map(document::shown), message, remedy });
    }

    fn bundle(&mut self, table: &DeTable) -> Option<Bundle> {
        const KEYS: [&str; 7] = ["schema", "version", "id", "created", "expires", "provenance", "knobs"];
        let mut found: [Option<Found>; KEYS.len()] = [None; KEYS.len()];
        for (key, value) in table {
            let line = document::line(self.text, key.span().start);
            match KEYS.iter().position(|name| name == key.get_ref()) {
                Some(at) => found[at] = Some((line, value.get_ref())),
                None => self.unknown(line, key.get_ref(), value.get_ref()),
            }
        }
        let [schema, version, id, created, expires, provenance, knobs] = found;
        let schema = self.number("schema", schema, "1");
        if schema.is_some_and(|schema| schema != u64::from(SCHEMA)) {
            let invalid = Invalid::new(format!("this program knows schema {SCHEMA}"), "use the program that wrote it");
            self.report(None, "schema", None, invalid);
        }
        let version = self.number("version", version, "a number above that of the last bundle");
        if version == Some(0) {
            self.report(None, "version", None, Invalid::new("versions begin with 1", "write a number above that of the last bundle"));
        }
        let id = self.required("id", id, "id = \"2026-11-k98\"").and_then(|found| self.word("id", found));
        let created_unix_s = self.time("created", created);
        let expires_unix_s = self.time("expires", expires);
        if let (Some(created), Some(expires)) = (created_unix_s, expires_unix_s)
            && expires <= created
        {
            self.report(
                None,
                "expires",
                None,
                Invalid::new("not after `created`", "write the day on which nobody shall follow it any more"),
            );
        }
        let provenance = self.provenance(provenance);
        let knobs = self.knobs(knobs);
        Some(Bundle { version: version?, id: id?, created_unix_s: created_unix_s?, expires_unix_s: expires_unix_s?, provenance, knobs })
    }

    fn unknown(&mut self, line: usize, key: &str, value: &DeValue) {
        let remedy = if KNOBS.iter().any(|knob| knob.key.starts_with(key)) {
            format!("write [knobs.{key}] above what it sets")
        } else {
            "leave it out".to_owned()
        };
        self.report(Some(line), key, Some(value), Invalid::new("unknown key", remedy));
    }

    fn required<'a, 'i>(&mut self, key: &str, found: Option<Found<'a, 'i>>, remedy: &str) -> Option<Found<'a, 'i>> {
        if found.is_none() {
            self.report(None, key, None, Invalid::new("missing", format!("write {remedy}")));
        }
        found
    }

    fn number(&mut self, key: &str, found: Option<Found>, remedy: &str) -> Option<u64> {
        let (line, value) = self.required(key, found, remedy)?;
        let number = value.as_integer().and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
        if number.is_none() {
            self.report(Some(line), key, Some(value), Invalid::new("not a whole number", format!("write {remedy}")));
        }
        number
    }

    /// A text of bounded length without control characters.
    fn word(&mut self, key: &str, (line, value): Found) -> Option<String> {
        let text = value.as_str().filter(|text| (1..=WORD_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control));
        if text.is_none() {
            let remedy = format!("write 1 to {WORD_BYTES_MAX} bytes in quotes, on one line");
            self.report(Some(line), key, Some(value), Invalid::new("not a short text", remedy));
        }
        text.map(ToOwned::to_owned)
    }

    fn time(&mut self, key: &str, found: Option<Found>) -> Option<u64> {
        let (line, value) = self.required(key, found, &format!("{key} = 2026-11-21T18:00:00Z"))?;
        let text = match value {
            DeValue::Datetime(time) => time.to_string(),
            other => other.as_str().unwrap_or_default().to_owned(),
        };
        let time = text.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_second()).ok());
        if time.is_none() {
            let remedy = "write a date with its time and offset, such as 2026-11-21T18:00:00Z";
            self.report(Some(line), key, Some(value), Invalid::new("not a time", remedy));
        }
        time
    }

    fn provenance(&mut self, found: Option<Found>) -> Provenance {
        let mut provenance = Provenance::default();
        let Some((line, value)) = found else { return provenance };
        let Some(table) = value.as_table() else {
            self.report(Some(line), "provenance", Some(value), Invalid::new("not a table", "write [provenance] on a line of its own"));
            return provenance;
        };
        for (key, value) in table {
            let (name, found) = (key.get_ref(), (document::line(self.text, key.span().start), value.get_ref()));
            let place = match name.as_ref() {
                "study" => &mut provenance.study,
                "trace" => &mut provenance.trace,
                "margin" => &mut provenance.margin,
                _ => {
                    let invalid = Invalid::new("unknown key", "write study, trace or margin");
                    self.report(Some(found.0), &format!("provenance.{name}"), Some(found.1), invalid);
                    continue;
                }
            };
            *place = self.word(&format!("provenance.{name}"), found);
        }
        provenance
    }

    fn knobs(&mut self, found: Option<Found>) -> BTreeMap<&'static str, Value> {
        let mut config = Config::default();
        let Some((line, value)) = self.required("knobs", found, "a table such as [knobs.cold_age] with what the bundle sets") else {
            return BTreeMap::new();
        };
        let Some(table) = value.as_table() else {
            self.report(Some(line), "knobs", Some(value), Invalid::new("not a table", "write [knobs.cold_age] on a line of its own"));
            return BTreeMap::new();
        };
        let (set, problems) = document::apply_knobs(&mut config, self.file, self.text, table);
        self.problems.extend(problems);
        for (line, knob) in &set {
            if !knob.rolls_out() {
                let own = Invalid::new("belongs to each machine", "leave it out, and set it in the machines' configuration files");
                self.report(Some(*line), knob.key, None, own);
            }
        }
        if set.is_empty() && self.problems.is_empty() {
            let remedy = "write [knobs.cold_age] and percentile = \"98%\" below, or whatever shall be another";
            self.report(Some(line), "knobs", None, Invalid::new("sets nothing", remedy));
        }
        set.iter().filter_map(|(_, knob)| Some((knob.key, config.get(knob.key)?))).collect()
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
    fn what_it_sets_goes_over_a_machines_own() {
        let bundle = Bundle::parse("7.toml", GOOD).unwrap();
        assert_eq!((bundle.version, bundle.created_unix_s, bundle.expires_unix_s), (7, 1_795_284_000, 1_797_876_000));
        assert!(!bundle.expired(1_797_875_999) && bundle.expired(1_797_876_000));
        let own = Config::from_str("own", "[cold_age]\npromotion_rate = \"0.5%\"\n[agent]\njobs_max = 7").unwrap();
        let over = bundle.over(&own);
        let value = |key: &str| over.get(key).unwrap().to_string();
        for (key, want) in [
            ("cold_age.percentile", "98%"),
            ("cold_age.promotion_rate", "0.5%"),
            ("agent.jobs_max", "7"),
            ("class.aggressive.promotion_rate", "2%"),
        ] {
            assert_eq!(value(key), want, "{key}");
        }
        assert_eq!(Bundle::parse("again", &bundle.to_toml()).unwrap(), bundle);
    }

    /// Changes a line of the good bundle; all of these are told, together.
    fn check(from: &str, to: &str, pieces: &[&str]) {
        assert!(GOOD.contains(from), "{from}");
        let told = Bundle::parse("7.toml", &GOOD.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(pieces.iter().all(|piece| told.contains(piece)), "{told}");
    }

    #[test]
    fn all_that_is_wrong_is_told() {
        check("schema = 1", "schema = 2", &["knows schema 1"]);
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
    fn every_table_and_exception_is_one() {
        for table in TABLES {
            assert!(KNOBS.iter().any(|knob| knob.table() == table), "{table}");
        }
        for key in OWN {
            assert!(KNOBS.iter().any(|knob| knob.key == key && !knob.rolls_out()), "{key}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = Bundle::parse("x", &text);
        }

        #[test]
        fn a_cut_text_is_no_bundle_or_another(cut in 0..GOOD.len()) {
            let _ = Bundle::parse("x", &GOOD[..cut]);
        }
    }
}
