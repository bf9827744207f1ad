//! What the user chose, and what was seen since the start.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use anyhow::Result;
use pool_host::host::{Line, List};
use pool_host::vm::Record;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use units::Bytes;

use super::columns::{GuestColumn, JobColumn};
use super::recorded::Position;
use super::theme::Theme;
use super::view::{Job, View};

/// Updates whose ages are kept for each job.
pub(super) const SEEN_MAX: usize = 256;

/// Periods of a journal that `{` and `}` go.
const MANY_PERIODS: isize = 30;

/// The jobs whose ages are kept; a machine may have thousands.
const JOBS_MAX: usize = 4096;

/// What happens after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Quit,
    /// Ask at once.
    Ask,
    /// Go so many periods of a journal forward, or back.
    Go(isize),
    Draw,
}

/// What is on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    #[default]
    Jobs,
    /// One job, by its path.
    Job(String),
    /// The guests of the pool host on this machine.
    Guests,
    /// One guest, by its name.
    Guest(String),
    /// The keys, and the page to go back to.
    Help(Box<Page>),
}

impl Page {
    /// Whether the page is about a pool host.
    pub(super) fn is_of_host(&self) -> bool {
        match self {
            Self::Guests | Self::Guest(_) => true,
            Self::Jobs | Self::Job(_) => false,
            Self::Help(before) => before.is_of_host(),
        }
    }

    /// The page that `Esc` leads to; `None` from the tables.
    fn before(&self) -> Option<Self> {
        match self {
            Self::Jobs | Self::Guests => None,
            Self::Job(_) => Some(Self::Jobs),
            Self::Guest(_) => Some(Self::Guests),
            Self::Help(before) => Some((**before).clone()),
        }
    }
}

/// What was asked for, and why there is no answer.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) agent: Option<Result<View>>,
    pub(super) host: Option<Result<List>>,
    pub(super) guest: Option<Result<Record>>,
}

/// Bytes of a job that are at least as old as each age, youngest age first, at one update.
pub(super) type Ages = Vec<(f64, Bytes)>;

#[derive(Debug)]
pub(super) struct State {
    pub(super) theme: Theme,
    pub(super) view: View,
    /// Why the last update failed.
    pub(super) trouble: Option<String>,
    /// The pool host, once it was asked for.
    pub(super) host: Option<List>,
    /// The guest of the page, or why there is nothing to say of it.
    pub(super) guest: Option<Result<Record, String>>,
    /// Where in a journal the screen is; `None` beside a running agent.
    pub(super) position: Option<Position>,
    pub(super) page: Page,
    pub(super) column: JobColumn,
    pub(super) guest_column: GuestColumn,
    pub(super) reversed: bool,
    /// The text that jobs must contain.
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) typing: bool,
    paused: bool,
    /// The selected job by its path, or guest by its name: it stays selected when the order changes.
    selected: Option<String>,
    /// Ages at the last updates, by job, oldest first.
    seen: HashMap<String, VecDeque<Ages>>,
    /// The agent's CPU time as a share of one CPU between the last two updates.
    pub(super) cpu_ratio: Option<f64>,
    updated: Instant,
}

impl State {
    /// Before the first answer.
    pub(super) fn new(theme: Theme) -> Self {
        Self {
            theme,
            view: View::default(),
            trouble: None,
            host: None,
            guest: None,
            position: None,
            page: Page::default(),
            column: JobColumn::Saved,
            guest_column: GuestColumn::Pool,
            reversed: false,
            filter: String::new(),
            typing: false,
            paused: false,
            selected: None,
            seen: HashMap::new(),
            cpu_ratio: None,
            updated: Instant::now(),
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// The job of the page, whose decisions are wanted: they are by far the largest part of an answer.
    pub(super) fn job_of_page(&self) -> Option<&str> {
        match &self.page {
            Page::Job(path) => Some(path),
            _ => None,
        }
    }

    /// Takes in answers. What was on the screen stays there if there is none.
    pub(super) fn update(&mut self, answers: Answers) {
        self.trouble = None;
        let mut trouble = |error: anyhow::Error| self.trouble = Some(format!("{error:#}"));
        let agent = answers.agent.and_then(|answer| answer.map_err(&mut trouble).ok());
        if let Some(list) = answers.host.and_then(|answer| answer.map_err(&mut trouble).ok()) {
            self.host = Some(list);
        }
        self.guest = answers.guest.map(|answer| answer.map_err(|error| format!("{error:#}")));
        if let Some(view) = agent {
            let elapsed = self.updated.elapsed().as_secs_f64();
            let cpu = view.costs.cpu_seconds - self.view.costs.cpu_seconds;
            // After a restart of the agent its time begins again; the first answer has nothing before it.
            let known = elapsed > 0.0 && cpu >= 0.0 && !self.view.kernel.is_empty();
            self.cpu_ratio = known.then(|| cpu / elapsed);
            self.updated = Instant::now();
            self.forget_ended(&view);
            self.see(view.jobs.iter());
            self.view = view;
        }
    }

    /// Takes in a period of a journal, with the jobs of the periods before it if these were not shown last.
    pub(super) fn show<'a>(&mut self, view: View, position: Position, before: Option<impl Iterator<Item = Vec<&'a Job>>>) {
        match before {
            Some(periods) => {
                self.seen.clear();
                for jobs in periods {
                    self.see(jobs.into_iter());
                }
            }
            None => self.see(view.jobs.iter()),
        }
        self.forget_ended(&view);
        (self.view, self.position) = (view, Some(position));
    }

    fn forget_ended(&mut self, view: &View) {
        self.seen.retain(|path, _| view.jobs.iter().any(|job| job.job == *path));
    }

    fn see<'a>(&mut self, jobs: impl Iterator<Item = &'a Job>) {
        for job in jobs.take(JOBS_MAX) {
            let seen = self.seen.entry(job.job.clone()).or_default();
            if seen.len() == SEEN_MAX {
                seen.pop_front();
            }
            seen.push_back(job.cold_age.clone());
        }
    }

    /// The jobs that the filter lets through, in order.
    pub(super) fn jobs(&self) -> Vec<&Job> {
        let filter = self.filter.to_lowercase();
        let mut jobs: Vec<_> = self.view.jobs.iter().filter(|job| job.job.to_lowercase().contains(&filter)).collect();
        jobs.sort_by(|a, b| self.column.compare(a, b).then_with(|| a.job.cmp(&b.job)));
        if self.reversed {
            jobs.reverse();
        }
        jobs
    }

    /// The guests that the filter lets through, in order.
    pub(super) fn guests(&self) -> Vec<&Line> {
        let filter = self.filter.to_lowercase();
        let all = self.host.iter().flat_map(|host| &host.guests);
        let mut guests: Vec<_> = all.filter(|guest| guest.name.to_lowercase().contains(&filter)).collect();
        guests.sort_by(|a, b| self.guest_column.compare(a, b).then_with(|| a.name.cmp(&b.name)));
        if self.reversed {
            guests.reverse();
        }
        guests
    }

    /// The names of the table's rows, in order.
    fn rows(&self) -> Vec<&str> {
        if self.page.is_of_host() {
            self.guests().into_iter().map(|guest| guest.name.as_str()).collect()
        } else {
            self.jobs().into_iter().map(|job| job.job.as_str()).collect()
        }
    }

    /// The position of the selected row; the first one if it is not among them.
    pub(super) fn selected(&self) -> usize {
        let selected = self.selected.as_deref();
        self.rows().iter().position(|name| Some(*name) == selected).unwrap_or(0)
    }

    /// The mark of the column that orders the table, which begins with the smallest (`by_name`) or largest unless it is reversed.
    pub(super) fn mark(&self, by_name: bool) -> &'static str {
        if self.reversed == by_name { "v" } else { "^" }
    }

    /// The job whose page is shown; `None` if it has ended.
    pub(super) fn shown(&self, path: &str) -> Option<&Job> {
        self.view.jobs.iter().find(|job| job.job == path)
    }

    /// Ages of a job at the last updates, oldest first.
    pub(super) fn seen(&self, path: &str) -> impl Iterator<Item = &Ages> {
        self.seen.get(path).into_iter().flatten()
    }

    /// Takes in a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Next::Quit } else { Next::Draw };
        }
        if self.typing {
            self.typed(key.code);
            return Next::Draw;
        }
        match (self.page.before(), key.code) {
            (_, KeyCode::Char('h' | '?') | KeyCode::F(1)) => self.help(),
            (_, KeyCode::Char(' ')) => {
                self.paused = !self.paused;
                return Next::Ask;
            }
            (_, KeyCode::Char(code @ ('[' | ']' | '{' | '}' | 'b' | 'e'))) => return self.go(code),
            (None, KeyCode::Char('q') | KeyCode::F(10)) => return Next::Quit,
            (None, KeyCode::Esc) => self.filter.clear(),
            (Some(before), KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::F(10)) => {
                self.page = before;
                return Next::Ask;
            }
            (None, KeyCode::Tab | KeyCode::Char('g')) if self.position.is_none() => {
                self.page = if self.page == Page::Jobs { Page::Guests } else { Page::Jobs };
                return Next::Ask;
            }
            (None, code) => return self.in_table(code),
            _ => {}
        }
        Next::Draw
    }

    fn help(&mut self) {
        if !matches!(self.page, Page::Help(_)) {
            self.page = Page::Help(Box::new(std::mem::take(&mut self.page)));
        }
    }

    /// Periods that a key goes in a journal; the screen stays there.
    fn go(&mut self, key: char) -> Next {
        if self.position.is_none() {
            return Next::Draw;
        }
        self.paused = true;
        Next::Go(match key {
            '[' => -1,
            ']' => 1,
            '{' => -MANY_PERIODS,
            '}' => MANY_PERIODS,
            'b' => isize::MIN / 2,
            _ => isize::MAX / 2,
        })
    }

    fn typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    fn in_table(&mut self, code: KeyCode) -> Next {
        const PAGE: isize = 10;
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-PAGE),
            KeyCode::PageDown => self.select(PAGE),
            KeyCode::Home => self.select(isize::MIN / 2),
            KeyCode::End => self.select(isize::MAX / 2),
            KeyCode::Char('s' | '>') | KeyCode::F(6) => self.order(1),
            KeyCode::Char('<') => self.order(-1),
            KeyCode::Char('r' | 'I') => self.reversed = !self.reversed,
            KeyCode::Char('/' | '\\') | KeyCode::F(4) => self.typing = true,
            KeyCode::Enter | KeyCode::Right => return self.open_selected(),
            _ => {}
        }
        Next::Draw
    }

    fn open_selected(&mut self) -> Next {
        let Some(name) = self.rows().get(self.selected()).map(|name| (*name).to_owned()) else { return Next::Draw };
        self.guest = None;
        self.page = if self.page.is_of_host() { Page::Guest(name) } else { Page::Job(name) };
        Next::Ask
    }

    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let at = self.selected().saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(at).map(|name| (*name).to_owned());
    }

    /// Orders the table by the column after this one, or as many columns on as `by`.
    fn order(&mut self, by: isize) {
        if self.page.is_of_host() {
            self.guest_column = after(&GuestColumn::ALL, self.guest_column, by);
        } else {
            self.column = after(&JobColumn::ALL, self.column, by);
        }
    }
}

fn after<C: Copy + PartialEq>(all: &[C], column: C, by: isize) -> C {
    let at = all.iter().position(|other| *other == column).unwrap_or(0);
    all[(at + all.len()).saturating_add_signed(by) % all.len()]
}
