//! The screen: the machine's lines, a page, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use units::Bytes;

use super::state::{Page, State};
use super::view::as_f64;
use super::{job, jobs};

const HELP: &str = " up, down, j, k      select a job          Enter, right   its page: ages over time, decisions
 PgUp, PgDn          ten jobs              Esc, left, q   back
 s, >, <, F6         order by the next or previous column
 r, I                reverse the order
 /, F4               show only jobs that contain a text; Enter keeps it, Esc removes it
 space               pause, continue
 q, F10, Ctrl-C      quit

 memory      charged to the job            cold    idle for two scans or longer, far included
 far         in far memory, uncompressed   saved   DRAM that the machine gained
 older       age from which memory goes    promo   promotions per minute, as a share of the
             to far memory                         working set; ! over the objective
 stall       share of time in which a task waited for memory";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let top = machine(state);
    let height = u16::try_from(top.len()).unwrap_or(1);
    let [head, body, keys] = Layout::vertical([Constraint::Length(height), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(top), head);
    match &state.page {
        Page::Jobs => jobs::draw(frame, body, state),
        Page::Job(path) => job::draw(frame, body, state, path),
        Page::Help => frame.render_widget(Paragraph::new(HELP), body),
    }
    last_line(frame, keys, state);
}

/// The machine: its memory, what was gained, its tiers, and what is wrong.
fn machine(state: &State) -> Vec<Line<'static>> {
    let (view, theme) = (&state.view, state.theme);
    let machine = &view.machine;
    let far: u64 = view.jobs.iter().map(|job| job.far_bytes.0).sum();
    let share = |part: f64, whole: Bytes| if whole == Bytes::ZERO { 0.0 } else { part / as_f64(whole.0) * 100.0 };
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    let saved = (signed(view.saved_bytes), share(view.saved_bytes as f64, machine.total_bytes));
    let mode = if view.dry_run { ", dry run" } else { "" };
    let paused = if state.is_paused() { ", paused" } else { "" };
    let mut lines = vec![
        Line::from(vec![
            Span::raw(format!("thermocline {} on {}{mode}{paused}   saved ", view.version, view.kernel)),
            Span::styled(format!("{} ({:.1}%)", saved.0, saved.1), theme.figure().add_modifier(Modifier::BOLD)),
        ]),
        Line::from(format!(
            "DRAM {}, {} available   far {} in {} of DRAM ({:.0}%)",
            machine.total_bytes,
            machine.available_bytes,
            Bytes(far),
            machine.pool_bytes,
            share(as_f64(machine.pool_bytes.0), machine.stored_bytes),
        )),
        Line::from(format!(
            "swap {}, {} free   jobs {}   agent {}, {} of a CPU",
            machine.swap_total_bytes,
            machine.swap_free_bytes,
            view.jobs.len(),
            view.costs.rss_bytes,
            state.cpu_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1}%", ratio * 100.0)),
        )),
    ];
    lines.extend(view.tiers.rows.iter().map(|tier| {
        let read = tier.read_us.map_or_else(|| "latency not measured yet".to_owned(), |us| format!("{us} us a page"));
        let free = tier.free_bytes.map(|free| format!(", {free} free")).unwrap_or_default();
        let writable = tier.writable_bytes.map(|bytes| format!(", {bytes} may be written")).unwrap_or_default();
        let occupies = if tier.memory_bytes > Bytes::ZERO { format!(", occupies {}", tier.memory_bytes) } else { String::new() };
        Line::from(format!("tier {}: {read}{occupies}{free}{writable}", tier.name))
    }));
    let wrong = machine.no_far_memory.iter().map(|why| format!("no far memory: {why}"));
    let wrong = wrong.chain(machine.troubles.iter().map(|trouble| format!("error: {trouble}"))).chain(state.trouble.iter().cloned());
    lines.extend(wrong.map(|text| Line::styled(text, theme.alarm())));
    lines
}

/// The keys of the page, or the filter while it is typed.
fn last_line(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let text = match &state.page {
        _ if state.typing => format!("filter: {}_", state.filter),
        Page::Jobs if !state.filter.is_empty() => {
            format!("jobs with \"{}\"   / filter  Esc all  Enter job  s order  ? help  q quit", state.filter)
        }
        Page::Jobs => "Enter job  s order  r reverse  / filter  space pause  ? help  q quit".to_owned(),
        Page::Job(_) | Page::Help => "Esc back  space pause  ? help".to_owned(),
    };
    frame.render_widget(Paragraph::new(text).style(Style::new().add_modifier(Modifier::REVERSED)), area);
}

/// A size that may be negative.
fn signed(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "-" } else { "" }, Bytes(bytes.unsigned_abs()))
}
