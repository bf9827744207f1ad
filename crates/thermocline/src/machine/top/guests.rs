//! The pool host's lines, and the table of its guests.

use pool_host::host::{Line as Guest, List};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use units::Bytes;

use super::columns::GuestColumn;
use super::jobs::{end_of, short};
use super::state::State;

/// Widths of the columns with figures.
const FIGURES: [u16; 6] = [6, 7, 7, 7, 8, 9];

/// Width of the state, which is in words.
const STATE: u16 = 24;

/// What is known of the host.
pub(super) fn head(host: &List, state: &State) -> Vec<Line<'static>> {
    let pool: Bytes = host.guests.iter().map(|guest| guest.pool_bytes).sum();
    let with_pool = host.guests.iter().filter(|guest| guest.pool_bytes > Bytes::ZERO).count();
    let slices: u64 = host.guests.iter().map(|guest| guest.slices).sum();
    let paused = if state.is_paused() { ", paused" } else { "" };
    let mut lines = vec![
        Line::from(format!("pool host {}{paused}   local memory {} of {} in use", host.host, host.local_used_bytes, host.local_bytes)),
        Line::from(format!("guests {}, {with_pool} of them with {pool} of pool memory in {slices} slices", host.guests.len())),
        Line::from(format!("{} started so far, {} moved to local memory", host.totals.started, host.totals.mitigated)),
    ];
    let failed = host.model.is_some_and(|model| model.failed);
    let model = failed.then(|| "the model of untouched memory failed: guests get no pool memory by it until there is another".to_owned());
    let damaged = host.damaged.iter().map(|(name, why)| format!("guest {name} is not observed: {why}"));
    let wrong = host.pool_error.clone().into_iter().chain(model).chain(damaged);
    lines.extend(wrong.map(|text| Line::styled(text, state.theme.alarm())));
    lines
}

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let guests = state.guests();
    if guests.is_empty() {
        let why = match &state.host {
            // Why is on the screen already.
            None => "",
            Some(host) if host.guests.is_empty() => "The pool host has no guest: start one with `thermocline pool vm start FILE`.",
            Some(_) => "No guest contains this text. Esc shows all.",
        };
        frame.render_widget(Paragraph::new(why), area);
        return;
    }
    let mut widths = vec![Constraint::Fill(1)];
    widths.extend(FIGURES.map(Constraint::Length));
    widths.push(Constraint::Length(STATE));
    let others: u16 = FIGURES.iter().chain(&[STATE]).map(|width| width + 1).sum();
    let room = usize::from(area.width.saturating_sub(others));
    let table = Table::new(guests.into_iter().map(|guest| row(guest, state, room)), widths)
        .header(header(state))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut position = TableState::new().with_selected(Some(state.selected()));
    frame.render_stateful_widget(table, area, &mut position);
}

fn header<'a>(state: &State) -> Row<'a> {
    let titles = ["guest", "cores", "local", "pool", "slices", "touched", "accessed"];
    let cells = GuestColumn::ALL.into_iter().zip(titles).map(|(column, title)| {
        let by_name = column == GuestColumn::Guest;
        let mark = if column == state.guest_column { state.mark(by_name) } else { "" };
        let text = Text::from(format!("{title}{mark}"));
        Cell::from(if by_name { text } else { text.alignment(Alignment::Right) })
    });
    Row::new(cells.chain([Cell::from("state")])).style(state.theme.head())
}

fn row<'a>(guest: &Guest, state: &State, room: usize) -> Row<'a> {
    let right = |text: String| Cell::from(Text::from(text).alignment(Alignment::Right));
    let touched = guest.pool_touched_bytes.map_or_else(|| "-".to_owned(), short);
    let accessed = guest.pool_accessed_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0));
    Row::new([
        Cell::from(end_of(&guest.name, room)),
        right(guest.cores.to_string()),
        right(short(guest.local_bytes)),
        right(short(guest.pool_bytes)).style(state.theme.figure()),
        right(guest.slices.to_string()),
        right(touched),
        right(accessed),
        Cell::from(words(guest)),
    ])
}

/// A guest's state, what is being done to it, and the monitor's verdict.
fn words(guest: &Guest) -> String {
    let state = format!("{:?}", guest.state).to_lowercase();
    let verdict = guest.verdict.map(|verdict| format!("{verdict:?}").to_lowercase());
    let local = guest.mitigated.then(|| "moved to local memory".to_owned());
    [Some(state), guest.busy.clone(), local.or(verdict)].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
