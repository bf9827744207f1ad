//! The settings engine: every file that a user writes is declared as tables of knobs, and read, checked and documented here.
//!
//! [`tables!`] declares a table: for each knob its name, Rust type, unit, default, range and meaning. A [`Schema`] lists the
//! tables of one kind of file. [`Document::read`] reads a file against its schema, [`Group::read`] makes the typed structures,
//! [`reference()`] and [`example()`] print the reference page and the example file.
//!
//! # Invariants
//! - The declaration is the only place where a key, unit, default, range or meaning is written. Everything else is derived from
//!   it, and tests compare the generated files with it.
//! - All problems of a file are reported together, each with its line, the value found and a remedy.
//! - No input text causes a panic.

#![deny(missing_docs)]

mod choice;
mod document;
mod file;
pub mod generated;
mod knob;

mod nearest;
mod number;
mod parse;
mod patterns;
mod problem;
mod recognize;
mod render;
mod schema;
mod section;

mod unit;
mod value;

pub use document::{Document, parse_toml};
pub use file::{FILE_BYTES_MAX, read_file, unreadable};
pub use knob::{Knob, Scale, Search};
pub use nearest::unknown_key;
pub use number::Number;
pub use problem::{Problem, Problems};
pub use recognize::recognize;
pub use render::{example, example_tables, reference};
pub use schema::{ListExample, Presence, Schema, Table, join};
pub use section::{Group, Place, Section};
pub use unit::Unit;
pub use units::quantity::Invalid;
pub use value::{Setting, Value, toml_string};
