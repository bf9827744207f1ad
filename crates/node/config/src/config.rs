//! The checked configuration of an agent: all tables, and access to their knobs by key.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use settings::{Document, Group, Knob, ListExample, Schema, Value};

use crate::job::{JobRule, JobTable};
use crate::table::*;

/// The rules that the reference page and the example file show.
const JOB_EXAMPLE: &str = "\
[[job]]
cgroup = \"/system.slice/redis.service\"
class = \"conservative\"

[[job]]
cgroup = \"/system.slice/*.service\"
class = \"standard\"

[[job]]
container = \"istio-proxy\"
kind = \"application_tax\"
";

/// Writes, from one list of tables, [`SCHEMA`], the structure [`Config`], and the access to knobs by key.
macro_rules! config {
    ($($table:literal $($path:ident).+: $group:ident,)*) => {
        /// The agent's configuration file.
        pub static SCHEMA: Schema = Schema {
            name: "agent",
            tables: &[$($group::TABLE,)* JobTable::TABLE],
            lists: &[ListExample { table: "job", toml: JOB_EXAMPLE, active: false }],
            remedy,
        };

        $(
            impl Default for $group {
                fn default() -> Self {
                    Self::defaults()
                }
            }
        )*

        impl Config {
            /// Returns the value of the knob with this key; `None` if there is no such knob.
            #[must_use]
            pub fn get(&self, key: &str) -> Option<Value> {
                let (table, name) = key.rsplit_once('.')?;
                match table {
                    $($table => self.$($path).+.get(name),)*
                    _ => None,
                }
            }

            /// Sets a knob to a value that the knob has checked.
            pub(crate) fn set(&mut self, knob: &Knob, value: Value) {
                match knob.table() {
                    $($table => { self.$($path).+.set(knob.name(), value); })*
                    _ => {}
                }
            }
        }
    };
}

config! {
    "agent" agent: Agent,
    "cold_age" cold_age: ColdAge,
    "pressure" pressure: Pressure,
    "background" background: Background,
    "tier" tier: Tiers,
    "swap" swap: Swap,
    "writeback" writeback: Writeback,
    "slow" slow: Slow,
    "class.conservative" classes.conservative: Conservative,
    "class.aggressive" classes.aggressive: Aggressive,
    "zswap" zswap: Zswap,
    "incompressible" incompressible: Incompressible,
    "trace" trace: Trace,
    "rollout" rollout: Rollout,
    "guard" guard: Guard,
}

/// What the classes change in [`ColdAge`], [`Pressure`], [`Tiers`] and [`Slow`]. Class `standard` changes nothing; `observe` decides as
/// `standard` does and never acts; `off` takes no parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// `[class.conservative]`
    pub conservative: Conservative,
    /// `[class.aggressive]`
    pub aggressive: Aggressive,
}

/// A checked configuration: every value is in its range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `[agent]`
    pub agent: Agent,
    /// `[cold_age]`
    pub cold_age: ColdAge,
    /// `[pressure]`
    pub pressure: Pressure,
    /// `[background]`
    pub background: Background,
    /// `[tier]`
    pub tier: Tiers,
    /// `[swap]`
    pub swap: Swap,
    /// `[writeback]`
    pub writeback: Writeback,
    /// `[slow]`
    pub slow: Slow,
    /// `[class.NAME]`
    pub classes: Classes,
    /// `[zswap]`
    pub zswap: Zswap,
    /// `[incompressible]`
    pub incompressible: Incompressible,
    /// `[trace]`
    pub trace: Trace,
    /// `[rollout]`
    pub rollout: Rollout,
    /// `[guard]`
    pub guard: Guard,
    /// `[[job]]`: which cgroups are jobs, and how each is treated. The first rule that matches a cgroup applies.
    pub jobs: Vec<JobRule>,
}

impl Config {
    /// Sets what a file sets. Its job rules are placed before the present ones, so that they match first.
    pub(crate) fn apply(&mut self, document: &mut Document) {
        for (_, knob, value) in document.sections().iter().flat_map(settings::Section::values) {
            self.set(knob, value.clone());
        }
        let rules = crate::job::read_rules(document);
        self.jobs.splice(0..0, rules);
    }

    /// Returns the whole configuration as a file with comments. Reading it yields the same configuration.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = settings::example_tables(&SCHEMA, |knob| self.get(knob.key));
        text.extend(self.jobs.iter().map(JobRule::to_toml));
        text
    }
}

impl Serialize for Config {
    /// A map of full keys to values as users write them, and `job`, the list of rules.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for knob in knobs() {
            map.serialize_entry(knob.key, &self.get(knob.key))?;
        }
        map.serialize_entry("job", &self.jobs)?;
        map.end()
    }
}

/// Returns every knob outside of `[[job]]`, table by table.
pub fn knobs() -> impl Iterator<Item = &'static Knob> + Clone {
    SCHEMA.single_knobs()
}

/// Returns the knob with this key, or `None`.
#[must_use]
pub fn knob(key: &str) -> Option<&'static Knob> {
    knobs().find(|knob| knob.key == key)
}

/// Remedies for keys that users may expect to exist.
fn remedy(key: &str) -> Option<String> {
    let parts: Vec<&str> = key.split('.').collect();
    match parts.as_slice() {
        ["class", "standard", ..] => Some("class standard uses the values of [cold_age]: set it there".to_owned()),
        ["class", "observe" | "off", ..] => Some("classes observe and off have no parameters: remove it".to_owned()),
        ["job", ..] => Some("jobs are rules of a file, each a table [[job]]".to_owned()),
        _ => None,
    }
}
