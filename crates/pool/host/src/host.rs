//! The daemon of one host.
//!
//! Guests are kept in a table under one lock, which is held briefly. An operation first claims its guest
//! ([`table::Claim`]): a guest has one operation at a time, and operations on other guests do not wait for it.

mod adopt;
mod home;
pub mod lives;
mod models;
mod release;
mod run;
mod settings;
mod start;
mod stop;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod watch;

pub use models::{ModelId, Models, Outcome};
pub use run::run;
pub use settings::{Refused, Settings, Tolerated, Totals};
pub use store::Store;
pub use table::Host;
pub use view::{Line, List, ModelView};
