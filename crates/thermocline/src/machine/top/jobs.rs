//! The table of jobs.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use units::Bytes;

use super::columns::JobColumn;
use super::state::State;
use super::view::Job;

/// From this width on, class, tier and tracker are shown as well.
const WIDE: u16 = 120;

/// Widths of the columns with figures.
const FIGURES: [u16; 7] = [7, 7, 7, 7, 6, 8, 6];

/// Widths of class, tier and tracker.
const WORDS: [u16; 3] = [12, 9, 9];

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let jobs = state.jobs();
    if jobs.is_empty() {
        let why = if state.view.kernel.is_empty() {
            // Why is on the screen already.
            ""
        } else if state.view.jobs.is_empty() {
            "The agent has no job yet: no cgroup with a process matches a [[job]] rule of its configuration."
        } else {
            "No job contains this text. Esc shows all."
        };
        frame.render_widget(Paragraph::new(why), area);
        return;
    }
    let wide = area.width >= WIDE;
    let mut widths = vec![Constraint::Fill(1)];
    if wide {
        widths.extend(WORDS.map(Constraint::Length));
    }
    widths.extend(FIGURES.map(Constraint::Length));
    let others: u16 = FIGURES.iter().chain(WORDS.iter().filter(|_| wide)).map(|width| width + 1).sum();
    let room = usize::from(area.width.saturating_sub(others));
    let table = Table::new(jobs.iter().map(|job| row(job, state, wide, room)), widths)
        .header(header(state, wide))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut position = TableState::new().with_selected(Some(state.selected()));
    frame.render_stateful_widget(table, area, &mut position);
}

fn header<'a>(state: &State, wide: bool) -> Row<'a> {
    let titles = ["job", "memory", "cold", "far", "saved", "older", "promo", "stall"];
    let mut cells = Vec::new();
    for (column, title) in JobColumn::ALL.into_iter().zip(titles) {
        let mark = if column == state.column { state.mark(column == JobColumn::Job) } else { "" };
        let text = Text::from(format!("{title}{mark}"));
        if column == JobColumn::Job {
            cells.push(Cell::from(text));
            cells.extend(["class", "tier", "tracker"].into_iter().filter(|_| wide).map(Cell::from));
        } else {
            cells.push(Cell::from(text.alignment(Alignment::Right)));
        }
    }
    Row::new(cells).style(state.theme.head())
}

fn row<'a>(job: &Job, state: &State, wide: bool, room: usize) -> Row<'a> {
    let mut cells = vec![Cell::from(end_of(&job.job, room))];
    if wide {
        let tier = job.tier.clone().unwrap_or_else(|| "-".to_owned());
        cells.extend([job.class.clone(), tier, job.tracker.clone()].map(Cell::from));
    }
    let right = |text: String| Cell::from(Text::from(text).alignment(Alignment::Right));
    let percent = |ratio: Option<f64>, digits: usize| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.digits$}%", ratio * 100.0));
    cells.extend([job.memory_bytes, job.cold_bytes, job.far_bytes].map(|bytes| right(short(bytes))));
    cells.push(right(short(job.saved_bytes)).style(state.theme.figure()));
    cells.push(right(job.threshold_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.0}s"))));
    // The mark is seen without colours, too.
    let over = if job.is_over() { "!" } else { "" };
    let promotions = right(percent(job.promotion_rate_ratio_per_min, 2) + over);
    cells.push(if job.is_over() { promotions.style(state.theme.alarm()) } else { promotions });
    cells.push(right(percent(job.stall_ratio, 1)));
    Row::new(cells)
}

/// A path that fits `room` characters: its end distinguishes jobs.
pub(super) fn end_of(path: &str, room: usize) -> String {
    let length = path.chars().count();
    if length <= room { path.to_owned() } else { ['~'].into_iter().chain(path.chars().skip(length + 1 - room.max(1))).collect() }
}

/// A size without the space and the last two letters of its unit: `1.5G`.
pub(super) fn short(bytes: Bytes) -> String {
    bytes.to_string().replace("iB", "").replace(' ', "")
}
