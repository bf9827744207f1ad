//! A tier: a row, with or without the row that it writes back to.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::row::{Accounting, Row, RowId, TooLong};

/// The tier of anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Recorded")]
pub struct Tier {
    /// The row that stores what is offloaded.
    pub first: RowId,
    /// What a byte in the first row costs.
    pub accounting: Accounting,
    /// The row that the first row writes back to what stays cold; `None` if nothing is written back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<RowId>,
}

impl Tier {
    /// A tier of one row.
    #[must_use]
    pub fn of(first: &Row) -> Self {
        Self { first: first.id, accounting: first.accounting, second: None }
    }

    /// A tier whose first row writes back to a second one.
    #[must_use]
    pub fn written_back(first: &Row, second: &Row) -> Self {
        Self { second: Some(second.id), ..Self::of(first) }
    }

    /// Whether a row is part of the tier.
    #[must_use]
    pub fn has(&self, id: RowId) -> bool {
        self.first == id || self.second == Some(id)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.second {
            Some(second) => write!(f, "{}+{second}", self.first),
            None => write!(f, "{}", self.first),
        }
    }
}

/// The recorded forms: until version 5 of the journal, a tier was one of three names.
#[derive(Deserialize)]
#[serde(untagged)]
enum Recorded {
    Name(Name),
    Rows {
        first: RowId,
        accounting: Accounting,
        #[serde(default)]
        second: Option<RowId>,
    },
}

/// The names until version 5.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Name {
    Zswap,
    Swap,
    Both,
}

/// The rows until version 5, by name.
pub const FORMER_ROWS: [&str; 2] = ["zswap", "swap"];

impl TryFrom<Recorded> for Tier {
    type Error = TooLong;

    fn try_from(recorded: Recorded) -> Result<Self, TooLong> {
        let [zswap, swap] = FORMER_ROWS;
        let compressed = |second| Ok(Self { first: zswap.parse()?, accounting: Accounting::Compressed, second });
        match recorded {
            Recorded::Name(Name::Zswap) => compressed(None),
            Recorded::Name(Name::Both) => compressed(Some(swap.parse()?)),
            Recorded::Name(Name::Swap) => Ok(Self { first: swap.parse()?, accounting: Accounting::SwapCost, second: None }),
            Recorded::Rows { first, accounting, second } => Ok(Self { first, accounting, second }),
        }
    }
}
