//! The report as a text table.

use std::fmt::Write;

use crate::replay::{Row, Unit};

/// Formats one line per trace, unit and interval, and a legend of the columns.
pub(crate) fn table(rows: &[Row]) -> String {
    let columns = ["estimates", "saturated", "burst", "error", "distinct", "within", "distinct", "next"].map(ToOwned::to_owned);
    let mut text = line("trace", "unit", "interval", &columns);
    for row in rows {
        let unit = match row.unit {
            Unit::Page => "4 KiB",
            Unit::Block => "2 MiB",
            Unit::BlockByParts => "parts",
        };
        let columns = [
            row.estimates.to_string(),
            percent(Some(row.saturated_ratio)),
            format!("{:.1}", row.burst),
            percent(row.median_error_ratio),
            percent(row.median_error_apart_ratio),
            percent(Some(row.within_ratio)),
            percent(Some(row.within_apart_ratio)),
            percent(row.within_next_ratio),
        ];
        text += &line(&row.trace, unit, &format!("{} us", row.interval_us), &columns);
    }
    text += "\nestimates: pages or blocks times windows with any access; saturated: every sample found the bit set\n\
             burst: accesses per page and interval with any access\n\
             error: median of |estimate - true| / true if not saturated; within: the true rate was within the 95 % bound, or \
             saturated\n\
             distinct: accesses to a page within a tenth of the interval are counted once; next: in the following window\n";
    text
}

fn line(trace: &str, unit: &str, interval: &str, columns: &[String; 8]) -> String {
    let mut text = format!("{trace:<14} {unit:<6} {interval:>9}");
    for column in columns {
        let _ = write!(text, " {column:>9}");
    }
    text + "\n"
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1}%", ratio * 100.0))
}
