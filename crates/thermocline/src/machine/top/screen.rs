//! The screen: the machine's lines, a page, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use units::{Bytes, UnixMillis};

use super::recorded::Position;
use super::state::{Page, State};
use super::view::as_f64;
use super::{guest, guests, job, jobs};

const HELP: &str = " up, down, j, k      select a row          Enter, right   its page
 PgUp, PgDn          ten rows              Esc, left, q   back
 s, >, <, F6         order by the next or previous column
 r, I                reverse the order
 /, F4               show only rows that contain a text; Enter keeps it, Esc removes it
 Tab, g              the agent's jobs, or the guests of the pool host on this machine
 space               pause, continue
 q, F10, Ctrl-C      quit
 in a journal        [ and ] go a period back or on, { and } thirty, b and e to its begin or end

 memory      charged to the job            cold    idle for two scans or longer, far included
 far         in far memory, uncompressed   saved   DRAM that the machine gained
 older       age from which memory goes    promo   promotions per minute, as a share of the
             to far memory                         working set; ! over the objective
 stall       share of time in which a task waited for memory
 touched     pool memory that the guest    accessed  share of pool memory in the memory that it
             has used at any time                    accessed between the last two samples";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let top = head(state);
    let height = u16::try_from(top.len()).unwrap_or(1);
    let [head, body, keys] = Layout::vertical([Constraint::Length(height), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(top), head);
    match &state.page {
        Page::Jobs => jobs::draw(frame, body, state),
        Page::Job(path) => job::draw(frame, body, state, path),
        Page::Guests => guests::draw(frame, body, state),
        Page::Guest(name) => guest::draw(frame, body, state, name),
        Page::Help(_) => frame.render_widget(Paragraph::new(HELP), body),
    }
    last_line(frame, keys, state);
}

/// The lines above every page: the machine as its agent or a journal knows it, or the pool host, and why there is no answer.
fn head(state: &State) -> Vec<Line<'static>> {
    let mut lines = match &state.host {
        host if state.page.is_of_host() => host.as_ref().map(|host| guests::head(host, state)).unwrap_or_default(),
        _ if state.position.is_some() => recorded(state),
        // Nothing is known before the agent's first answer.
        _ if state.view.kernel.is_empty() => Vec::new(),
        _ => machine(state),
    };
    lines.extend(state.trouble.iter().map(|why| Line::styled(why.clone(), state.theme.alarm())));
    lines
}

/// What was saved, in bytes and as a share of DRAM.
fn saved(state: &State) -> Span<'static> {
    let view = &state.view;
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    let percent = share(view.saved_bytes as f64, view.machine.total_bytes);
    let of_all = if view.machine.total_bytes == Bytes::ZERO { String::new() } else { format!(" ({percent:.1}%)") };
    let text = signed(view.saved_bytes) + &of_all;
    Span::styled(text, state.theme.figure().add_modifier(Modifier::BOLD))
}

fn share(part: f64, whole: Bytes) -> f64 {
    if whole == Bytes::ZERO { 0.0 } else { part / as_f64(whole.0) * 100.0 }
}

fn far(state: &State) -> Bytes {
    state.view.jobs.iter().map(|job| job.far_bytes).sum()
}

/// The machine at the end of one period of a journal.
fn recorded(state: &State) -> Vec<Line<'static>> {
    let (view, machine) = (&state.view, &state.view.machine);
    let Some(Position { number, of, unix_ms }) = state.position else { return Vec::new() };
    let paused = if state.is_paused() { ", paused" } else { "" };
    // Older agents did not record the machine.
    let is_known = machine.total_bytes > Bytes::ZERO;
    let dram = format!("DRAM {}, {} available   ", machine.total_bytes, machine.available_bytes);
    let pool = format!(" in {} of DRAM", machine.pool_bytes);
    let agent = format!("   agent {}", view.costs.rss_bytes);
    let known = |text: String| if is_known { text } else { String::new() };
    let mut lines = vec![
        Line::from(format!("journal of {}   period {number} of {of}{paused}, {}", view.kernel, at(unix_ms))),
        Line::from(vec![Span::raw(known(dram) + "saved "), saved(state)]),
        Line::from(format!("far {}{}   jobs {}{}", far(state), known(pool), view.jobs.len(), known(agent))),
    ];
    lines.extend(view.event.iter().map(|event| Line::from(format!("{}  {}", at(UnixMillis(event.unix_ms)), event.text))));
    lines
}

/// A time, in UTC.
fn at(unix_ms: UnixMillis) -> String {
    let time = i64::try_from(unix_ms.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| "an unknown time".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// The machine: its memory, what was gained, its tiers, and what is wrong.
fn machine(state: &State) -> Vec<Line<'static>> {
    let (view, theme) = (&state.view, state.theme);
    let machine = &view.machine;
    let mode = if view.dry_run { ", dry run" } else { "" };
    let paused = if state.is_paused() { ", paused" } else { "" };
    let mut lines = vec![
        Line::from(vec![Span::raw(format!("thermocline {} on {}{mode}{paused}   saved ", view.version, view.kernel)), saved(state)]),
        Line::from(format!(
            "DRAM {}, {} available   far {} in {} of DRAM ({:.0}%)",
            machine.total_bytes,
            machine.available_bytes,
            far(state),
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
    let wrong = wrong.chain(machine.troubles.iter().map(|trouble| format!("error: {trouble}")));
    lines.extend(wrong.map(|text| Line::styled(text, theme.alarm())));
    lines
}

/// The keys of the page, or the filter while it is typed.
fn last_line(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let (rows, row, other) = if state.page.is_of_host() { ("guests", "guest", "jobs") } else { ("jobs", "job", "guests") };
    let text = match &state.page {
        _ if state.typing => format!("filter: {}_", state.filter),
        Page::Jobs | Page::Guests if !state.filter.is_empty() => {
            format!("{rows} with \"{}\"   / filter  Esc all  Enter {row}  s order  ? help  q quit", state.filter)
        }
        Page::Jobs if state.position.is_some() => {
            "[ ] a period  { } thirty  space play  Enter job  s order  / filter  ? help  q quit".to_owned()
        }
        Page::Jobs | Page::Guests => format!("Enter {row}  s order  r reverse  / filter  Tab {other}  space pause  ? help  q quit"),
        Page::Job(_) if state.position.is_some() => "[ ] a period  { } thirty  space play  Esc back  ? help".to_owned(),
        Page::Job(_) | Page::Guest(_) | Page::Help(_) => "Esc back  space pause  ? help".to_owned(),
    };
    frame.render_widget(Paragraph::new(text).style(Style::new().add_modifier(Modifier::REVERSED)), area);
}

/// A size that may be negative.
fn signed(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "-" } else { "" }, Bytes(bytes.unsigned_abs()))
}
