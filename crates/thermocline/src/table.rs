//! Tables as all commands print them: plain text without borders, the same on a terminal and in a pipe.

use std::fmt::{self, Display};

use comfy_table::{CellAlignment, presets};

/// Rows in aligned columns, two spaces apart; other lines may follow each row.
pub(crate) struct Table {
    rows: comfy_table::Table,
    /// What follows the header and each row.
    remarks: Vec<String>,
}

impl Table {
    /// Columns are right-aligned, as for numbers. A `<` before a heading, as in a format string, aligns its column to the left.
    /// If no heading has a text, there is no header.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self::with_gap(headings, 2)
    }

    /// The same with so many spaces between columns, for a table whose widest row must fit a terminal.
    pub(crate) fn with_gap(headings: &[&str], gap: u16) -> Self {
        let mut rows = comfy_table::Table::new();
        rows.load_style(presets::NOTHING).set_header(headings.iter().map(|heading| heading.trim_start_matches('<')));
        for (column, heading) in rows.column_iter_mut().zip(headings) {
            let alignment = if heading.starts_with('<') { CellAlignment::Left } else { CellAlignment::Right };
            column.set_padding((0, gap)).set_cell_alignment(alignment);
        }
        Self { rows, remarks: vec![String::new()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: &[&dyn Display]) {
        // Names of cgroups and files may contain newlines, which would split the row.
        self.rows.add_row(cells.iter().map(|cell| cell.to_string().replace(char::is_control, "?")));
        self.remarks.push(String::new());
    }

    /// Adds whole lines below the last row.
    pub(crate) fn remark(&mut self, lines: &str) {
        if let Some(remark) = self.remarks.last_mut() {
            remark.push_str(lines);
        }
    }

    /// Returns a job's name as a cell of the next row. A name of more than `most` characters has a line of its own above that row
    /// and an empty cell, because names of containers leave no space for figures.
    pub(crate) fn job<'a>(&mut self, name: &'a str, most: usize) -> &'a str {
        if name.chars().count() <= most {
            return name;
        }
        self.remark(&format!("{name}\n"));
        ""
    }
}

impl Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, remark) in self.rows.lines().zip(&self.remarks) {
            let line = line.trim_end();
            let end = if line.is_empty() { "" } else { "\n" };
            write!(out, "{line}{end}{remark}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["<job", "memory", "<state"]);
        table.row(&[&"/a", &"1.0 GiB", &"online"]);
        table.remark("  settling\n");
        table.row(&[&"/a long name", &7, &""]);
        let long = table.job("/kubepods.slice", 12);
        table.row(&[&long, &1.5, &"two\nlines"]);
        let expected = "job            memory  state\n\
                        /a            1.0 GiB  online\n  settling\n\
                        /a long name        7\n\
                        /kubepods.slice\n                  1.5  two?lines\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_table_without_headings_has_no_header() {
        let mut table = Table::new(&["", "<"]);
        table.row(&[&0.25, &"a"]);
        assert_eq!(table.to_string(), "0.25  a\n");
    }
}
