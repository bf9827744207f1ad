//! One job's page: its figures, its ages over time, its last decisions.

use std::time::{SystemTime, UNIX_EPOCH};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::state::{Ages, State};
use super::view::{Job, as_f64};

/// Rows of the heat map at most.
const BANDS_MAX: usize = 8;

/// Cells of the heat map by the share of the job's memory: none, up to 2 %, 10 %, 30 %, and more.
const SHARES: [f64; 3] = [0.02, 0.1, 0.3];
const SHADES: [&str; 5] = [" ", "░", "▒", "▓", "█"];
const LETTERS: [&str; 5] = [" ", ".", ":", "*", "#"];
const COLORS: [Color; 5] = [Color::Reset, Color::Blue, Color::Cyan, Color::Yellow, Color::Red];

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, path: &str) {
    let Some(job) = state.shown(path) else {
        frame.render_widget(Paragraph::new(format!("{path} has ended, or no rule names it any more.")), area);
        return;
    };
    let figures = figures(job, state);
    let bands = bands(&job.cold_age).len();
    let heights = [figures.len(), bands + 1].map(|rows| u16::try_from(rows).unwrap_or(u16::MAX));
    let [top, map, below] =
        Layout::vertical([Constraint::Length(heights[0]), Constraint::Length(heights[1]), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(figures), top);
    heat(frame, map, state, job);
    decisions(frame, below, state, job);
}

fn figures<'a>(job: &'a Job, state: &State) -> Vec<Line<'a>> {
    let percent = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.3}%", ratio * 100.0));
    let promotions = percent(job.promotion_rate_ratio_per_min);
    let style = if job.is_over() { state.theme.alarm() } else { Style::new() };
    let tier = match &job.tier {
        None if job.tier_reason.is_empty() => "no choice of its tier is recorded until now".to_owned(),
        tier => format!("tier {}: {}", tier.as_deref().unwrap_or("none"), job.tier_reason),
    };
    let protected = job.protection_bytes.map(|bytes| format!(", protected {bytes}")).unwrap_or_default();
    vec![
        Line::styled(job.job.as_str(), Style::new().add_modifier(Modifier::BOLD)),
        Line::from(format!("policy {}, class {}, tracker {}", job.policy, job.class, job.tracker)),
        Line::from(tier),
        Line::from(format!("memory {}, working set {}{protected}", job.memory_bytes, job.working_set_bytes)),
        Line::from(format!("cold {}, far {}, saved {}", job.cold_bytes, job.far_bytes, job.saved_bytes)),
        Line::from(vec![
            Span::raw("promotions "),
            Span::styled(promotions, style),
            Span::raw(format!(
                " a minute of {} allowed{}, stall {}",
                percent(Some(job.slo_ratio_per_min)),
                if job.is_over() { ": over" } else { "" },
                percent(job.stall_ratio)
            )),
        ]),
        Line::from(job.explanation.as_str()),
    ]
}

/// The ages that get a row, in seconds: at most [`BANDS_MAX`] of those that the agent distinguishes.
fn bands(ages: &Ages) -> Vec<f64> {
    let step = ages.len().div_ceil(BANDS_MAX).max(1);
    ages.iter().step_by(step).map(|(seconds, _)| *seconds).collect()
}

/// A row for each band of ages, a column for each update, the newest on the right.
fn heat(frame: &mut Frame<'_>, area: Rect, state: &State, job: &Job) {
    let bands = bands(&job.cold_age);
    let block = Block::new().borders(Borders::TOP).title(" swap-backed memory by idle time, now on the right ");
    let block = if state.theme.ascii { block.border_set(ascii()) } else { block };
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let label = 9;
    let width = usize::from(inner.width).saturating_sub(label);
    let seen: Vec<_> = state.seen(&job.job).collect();
    let shown = &seen[seen.len().saturating_sub(width)..];
    let lines = bands.iter().enumerate().rev().map(|(row, &from)| {
        let mut line = vec![Span::raw(format!("{:>7}  ", seconds(from)))];
        line.extend(shown.iter().map(|ages| cell(state, share(ages, from, bands.get(row + 1).copied()))));
        Line::from(line)
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), inner);
}

/// The share of a job's aged memory that is as old as `from`, and younger than `to`.
fn share(ages: &Ages, from: f64, to: Option<f64>) -> f64 {
    let at_least = |age: f64| ages.iter().find(|(seconds, _)| *seconds >= age).map_or(0, |(_, bytes)| bytes.0);
    let whole = ages.first().map_or(0, |(_, bytes)| bytes.0);
    if whole == 0 {
        return 0.0;
    }
    as_f64(at_least(from).saturating_sub(to.map_or(0, at_least))) / as_f64(whole)
}

fn cell(state: &State, share: f64) -> Span<'static> {
    let shade = if share <= 0.0 { 0 } else { 1 + SHARES.iter().filter(|least| share > **least).count() };
    let symbol = if state.theme.ascii { LETTERS[shade] } else { SHADES[shade] };
    let style = if state.theme.color { Style::new().fg(COLORS[shade]) } else { Style::new() };
    Span::styled(symbol, style)
}

fn seconds(age: f64) -> String {
    if age < 120.0 {
        format!("{age:.0} s")
    } else if age < 7200.0 {
        format!("{:.0} min", age / 60.0)
    } else {
        format!("{:.0} h", age / 3600.0)
    }
}

/// The last decisions of each controller, newest first. Repeated ones are shown once.
fn decisions(frame: &mut Frame<'_>, area: Rect, state: &State, job: &Job) {
    let block = Block::new().borders(Borders::TOP).title(" last decisions ");
    let block = if state.theme.ascii { block.border_set(ascii()) } else { block };
    let of_clock = || units::millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let now = state.position.map_or_else(of_clock, |position| position.unix_ms.0);
    let mut lines = Vec::new();
    for controller in &job.recent {
        let mut decisions: Vec<_> = controller.decisions.iter().collect();
        decisions.dedup_by(|later, earlier| later.text == earlier.text);
        for decision in decisions.iter().rev() {
            let ago = now.saturating_sub(decision.unix_ms) / 1000;
            lines.push((decision.unix_ms, Line::from(format!("{ago:>6} s ago  {:<10} {}", controller.controller, decision.text))));
        }
    }
    lines.sort_by_key(|(unix_ms, _)| std::cmp::Reverse(*unix_ms));
    let lines: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

pub(super) fn ascii() -> ratatui::symbols::border::Set<'static> {
    ratatui::symbols::border::Set { horizontal_top: "-", ..ratatui::symbols::border::PLAIN }
}
