//! The declaration of a kind of file: its tables, and the macro that declares them with their Rust types.

use crate::knob::Knob;

/// A table of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name, such as `agent` or `class.conservative`; empty for the keys at the top level of the file.
    pub name: &'static str,
    /// Its purpose, in a sentence or two.
    pub meaning: &'static str,
    /// Whether and how often a file contains it.
    pub presence: Presence,
    /// Its knobs, in the order of the documentation.
    pub knobs: &'static [Knob],
}

/// Whether and how often a file contains a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Once; without it, its defaults apply and its required knobs are missing.
    Always,
    /// Once or not at all; absence has a meaning of its own. The example file shows it as a comment.
    Optional,
    /// As [`Self::Optional`], but active in the example file.
    Recommended,
    /// Any number of times, as `[[name]]`.
    List,
}

/// A kind of file that users write.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// Its name in messages and options, such as `pool-manager`.
    pub name: &'static str,
    /// Its tables in the order of the documentation. The table of the top level, if there is one, is the first.
    pub tables: &'static [Table],
    /// For each table that is a list: an excerpt of a file that shows it.
    pub lists: &'static [ListExample],
    /// Returns the remedy for an unknown key that users may expect to exist; `None` for other keys.
    pub remedy: fn(&str) -> Option<String>,
}

/// An excerpt of a file that shows a table that is a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListExample {
    /// The table.
    pub table: &'static str,
    /// The excerpt, in TOML.
    pub toml: &'static str,
    /// Whether it is active in the example file rather than a comment.
    pub active: bool,
}

impl Schema {
    /// Returns all knobs, table by table.
    pub fn knobs(&self) -> impl Iterator<Item = &'static Knob> + Clone + use<> {
        self.tables.iter().flat_map(|table| table.knobs)
    }

    /// Returns the knobs outside of lists: those that are set at most once in a file.
    pub fn single_knobs(&self) -> impl Iterator<Item = &'static Knob> + Clone + use<> {
        self.tables.iter().filter(|table| table.presence != Presence::List).flat_map(|table| table.knobs)
    }

    /// Returns the knob with this key, or `None`.
    #[must_use]
    pub fn knob(&self, key: &str) -> Option<&'static Knob> {
        self.knobs().find(|knob| knob.key == key)
    }

    /// Returns the table with this name, or `None`.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&'static Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Whether tables or knobs exist below this key.
    pub(crate) fn is_table(&self, key: &str) -> bool {
        let below = |name: &str| name.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        !key.is_empty() && self.tables.iter().any(|table| below(table.name))
    }

    /// Whether the schema has this key at the top level of a file, as a knob or as a table.
    pub(crate) fn has_top_level(&self, key: &str) -> bool {
        self.is_table(key) || self.knobs().any(|knob| knob.key == key)
    }
}

/// Joins lists of tables, for a [`Schema`] whose parts are declared apart. `N` is the number of all tables.
///
/// # Panics
/// If `N` is not that number, which fails the compilation of a constant.
#[must_use]
pub const fn join<const N: usize>(lists: &[&[Table]]) -> [Table; N] {
    let mut joined = [Table { name: "", meaning: "", presence: Presence::Always, knobs: &[] }; N];
    let (mut list, mut count) = (0, 0);
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            joined[count] = lists[list][at];
            count += 1;
            at += 1;
        }
        list += 1;
    }
    assert!(count == N, "N is not the number of tables");
    joined
}

/// Declares tables: for each a structure with one documented field per knob, which implements [`crate::Group`].
///
/// ```
/// use std::time::Duration;
/// use settings::{Group, Unit};
///
/// settings::tables! {
///     /// The service.
///     pub struct Service = "service", Always {
///         listen: String = Unit::Text, required "0.0.0.0:80", "The address on which it listens.";
///         period: Duration = Unit::Duration, "10s" in "1s" ..= "1h", search "2s" ..= "1m" Log, "How often it samples.";
///         label: Option<String> = Unit::Text, "", "A label for its metrics.";
///     }
/// }
/// assert_eq!(Service::TABLE.knobs[1].key, "service.period");
/// ```
///
/// A field of type `Option` with an empty default is `None` if the key is not set. A table with an empty name holds the keys at
/// the top level of the file.
#[macro_export]
macro_rules! tables {
    ($(
        $(#[doc = $about:literal])+
        $vis:vis struct $group:ident = $table:tt, $presence:ident {
            $($name:ident: $type:ty = $unit:expr, $($required:ident)? $default:literal $(in $low:literal ..= $high:literal)?,
                $(search $from:literal ..= $to:literal $scale:ident,)? $meaning:literal;)*
        }
    )*) => {$(
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $group {
            $(#[doc = $meaning] $vis $name: $type,)*
        }

        impl $crate::Group for $group {
            const TABLE: $crate::Table = $crate::Table {
                name: $table,
                meaning: concat!($($about),+).trim_ascii(),
                presence: $crate::Presence::$presence,
                knobs: &[$($crate::Knob {
                    key: $crate::tables!(@key $table $name),
                    unit: $unit,
                    required: $crate::tables!(@required $($required)?),
                    default: $default,
                    range: $crate::tables!(@range $($low, $high)?),
                    search: $crate::tables!(@search $($from, $to, $scale)?),
                    meaning: $meaning,
                },)*],
            };

            fn read(section: &$crate::Section) -> Self {
                Self { $($name: section.typed(stringify!($name)),)* }
            }

            fn get(&self, name: &str) -> Option<$crate::Value> {
                match name {
                    $(stringify!($name) => Some($crate::Setting::to_value(&self.$name, $unit)),)*
                    _ => None,
                }
            }

            fn set(&mut self, name: &str, value: $crate::Value) -> bool {
                match name {
                    $(stringify!($name) => $crate::Setting::from_value(value).map(|value| self.$name = value).is_some(),)*
                    _ => false,
                }
            }
        }
    )*};
    (@key "" $name:ident) => { stringify!($name) };
    (@key $table:tt $name:ident) => { concat!($table, ".", stringify!($name)) };
    (@required) => { false };
    (@required required) => { true };
    (@range) => { None };
    (@range $low:literal, $high:literal) => { Some(($low, $high)) };
    (@search) => { None };
    (@search $from:literal, $to:literal, $scale:ident) => {
        Some($crate::Search { low: $from, high: $to, scale: $crate::Scale::$scale })
    };
}
