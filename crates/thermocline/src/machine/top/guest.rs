//! One guest's page: its memory, its slices, what happened to it.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use pool_host::accesses::Seen;
use pool_host::vm::Record;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Wrap};

use super::state::State;

/// Lines for the slices at most.
const SLICE_LINES_MAX: usize = 6;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, name: &str) {
    let record = match &state.guest {
        Some(Ok(record)) => record,
        Some(Err(why)) => return frame.render_widget(Paragraph::new(why.as_str()).wrap(Wrap { trim: true }), area),
        None => return frame.render_widget(Paragraph::new(format!("asking for {name}")), area),
    };
    let (figures, slices) = (figures(record), slices(record));
    let heights = [figures.len(), slices.len() + 1].map(|rows| u16::try_from(rows).unwrap_or(u16::MAX));
    let [top, middle, below] =
        Layout::vertical([Constraint::Length(heights[0]), Constraint::Length(heights[1]), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(figures), top);
    frame.render_widget(Paragraph::new(slices).block(block(state, " slices ")), middle);
    frame.render_widget(Paragraph::new(events(record)).block(block(state, " events ")), below);
}

fn block<'a>(state: &State, title: &'a str) -> Block<'a> {
    let block = Block::new().borders(Borders::TOP).title(title);
    if state.theme.ascii { block.border_set(super::job::ascii()) } else { block }
}

fn figures(record: &Record) -> Vec<Line<'_>> {
    let state = format!("{:?}", record.state).to_lowercase();
    let process = record.process.map(|process| format!(", process {}", process.pid)).unwrap_or_default();
    let moved = if record.mitigated { ", moved to local memory" } else { "" };
    let touched = record.pool_touched_bytes.map_or_else(|| "not known yet".to_owned(), |bytes| bytes.to_string());
    let seen = match record.usage.map(|usage| usage.seen) {
        Some(Seen::By(instrument)) => format!("seen by {instrument}"),
        Some(Seen::Not(why)) => format!("not seen: {why}"),
        None => "not sampled yet".to_owned(),
    };
    let verdict = record.verdict.map(|verdict| format!("{verdict:?}").to_lowercase());
    vec![
        Line::styled(record.request.name.as_str(), Style::new().add_modifier(Modifier::BOLD)),
        Line::from(format!("{state}{process}{moved}")),
        Line::from(format!(
            "{} cores, {}: {} local, {} in the pool",
            record.request.vm.cores,
            record.request.memory(),
            record.local_bytes(),
            record.pool_bytes()
        )),
        Line::from(format!("at the start {} slices: {:?}", record.share.slices, record.share.why)),
        Line::from(format!("pool memory touched: {touched}; accesses {seen}")),
        Line::from(format!("the monitor's last verdict: {}", verdict.as_deref().unwrap_or("none yet"))),
    ]
}

/// The slices that the guest maps, a line for each memory controller.
fn slices(record: &Record) -> Vec<Line<'static>> {
    let mut by_controller: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
    for slice in &record.mapped {
        by_controller.entry(slice.emc).or_default().push(slice.index);
    }
    if by_controller.is_empty() {
        return vec![Line::from("none")];
    }
    let more = by_controller.len().saturating_sub(SLICE_LINES_MAX);
    let line = |(emc, indexes): (u16, Vec<u32>)| Line::from(format!("EMC {emc}: {} ({})", indexes.len(), ranges(indexes)));
    let mut lines: Vec<_> = by_controller.into_iter().take(SLICE_LINES_MAX).map(line).collect();
    if more > 0 {
        lines.push(Line::from(format!("and on {more} more EMCs")));
    }
    lines
}

/// Numbers as ranges: `1-3, 7`.
pub(super) fn ranges(mut numbers: Vec<u32>) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

/// The newest first.
fn events(record: &Record) -> Vec<Line<'_>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let line = |event: &pool_host::vm::Event| Line::from(format!("{:>6.0} s ago  {}", (now - event.at).max(0.0), event.what));
    record.events.iter().rev().map(line).collect()
}
