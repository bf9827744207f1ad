//! What the user chose, and what was seen since the start.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use anyhow::Result;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use units::Bytes;

use super::theme::Theme;
use super::view::{Job, View};

/// Updates whose ages are kept for each job.
const SEEN_MAX: usize = 256;

/// The jobs whose ages are kept; a machine may have thousands.
const JOBS_MAX: usize = 4096;

/// What happens after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Quit,
    /// Ask the agent at once.
    Ask,
    Draw,
}

/// What is on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    #[default]
    Jobs,
    /// One job, by its path.
    Job(String),
    Help,
}

/// The column that orders the table; all but the name from the largest down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Job,
    Memory,
    Cold,
    Far,
    Saved,
    Older,
    Promotions,
    Stall,
}

impl Column {
    pub(super) const ALL: [Self; 8] =
        [Self::Job, Self::Memory, Self::Cold, Self::Far, Self::Saved, Self::Older, Self::Promotions, Self::Stall];

    fn compare(self, a: &Job, b: &Job) -> Ordering {
        let known = |a: Option<f64>, b: Option<f64>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
        match self {
            Self::Job => a.job.cmp(&b.job),
            Self::Memory => b.memory_bytes.cmp(&a.memory_bytes),
            Self::Cold => b.cold_bytes.cmp(&a.cold_bytes),
            Self::Far => b.far_bytes.cmp(&a.far_bytes),
            Self::Saved => b.saved_bytes.cmp(&a.saved_bytes),
            Self::Older => known(a.threshold_seconds, b.threshold_seconds),
            Self::Promotions => known(a.promotion_rate_ratio_per_min, b.promotion_rate_ratio_per_min),
            Self::Stall => known(a.stall_ratio, b.stall_ratio),
        }
    }
}

/// Bytes of a job that are at least as old as each age, youngest age first, at one update.
pub(super) type Ages = Vec<(f64, Bytes)>;

#[derive(Debug)]
pub(super) struct State {
    pub(super) theme: Theme,
    pub(super) view: View,
    /// Why the last update failed.
    pub(super) trouble: Option<String>,
    pub(super) page: Page,
    pub(super) column: Column,
    pub(super) reversed: bool,
    /// The text that jobs must contain.
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) typing: bool,
    paused: bool,
    /// The selected job, by its path: it stays selected when the order changes.
    selected: Option<String>,
    /// Ages at the last updates, by job, oldest first.
    seen: HashMap<String, VecDeque<Ages>>,
    /// The agent's CPU time as a share of one CPU between the last two updates.
    pub(super) cpu_ratio: Option<f64>,
    updated: Instant,
}

impl State {
    pub(super) fn new(theme: Theme, view: View) -> Self {
        let mut state = Self {
            theme,
            view: View::default(),
            trouble: None,
            page: Page::default(),
            column: Column::Saved,
            reversed: false,
            filter: String::new(),
            typing: false,
            paused: false,
            selected: None,
            seen: HashMap::new(),
            cpu_ratio: None,
            updated: Instant::now(),
        };
        state.accept(view);
        state
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether the page shows decisions, which are by far the largest part of an answer.
    pub(super) fn wants_decisions(&self) -> bool {
        matches!(self.page, Page::Job(_))
    }

    /// Takes in an answer, or why there is none: then the last one stays on the screen.
    pub(super) fn update(&mut self, answer: Result<View>) {
        match answer {
            Ok(view) => {
                let elapsed = self.updated.elapsed().as_secs_f64();
                let cpu = view.costs.cpu_seconds - self.view.costs.cpu_seconds;
                // After a restart of the agent its time begins again.
                self.cpu_ratio = (elapsed > 0.0 && cpu >= 0.0).then(|| cpu / elapsed);
                self.accept(view);
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(format!("{error:#}")),
        }
    }

    fn accept(&mut self, view: View) {
        self.updated = Instant::now();
        self.seen.retain(|path, _| view.jobs.iter().any(|job| job.job == *path));
        for job in view.jobs.iter().take(JOBS_MAX) {
            let seen = self.seen.entry(job.job.clone()).or_default();
            if seen.len() == SEEN_MAX {
                seen.pop_front();
            }
            seen.push_back(job.cold_age.clone());
        }
        self.view = view;
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

    /// The position of the selected job in [`State::jobs`]; the first one if it is not among them.
    pub(super) fn selected(&self) -> usize {
        let selected = self.selected.as_deref();
        self.jobs().iter().position(|job| Some(job.job.as_str()) == selected).unwrap_or(0)
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
        match (&self.page, key.code) {
            (Page::Jobs, KeyCode::Char('q') | KeyCode::F(10)) => return Next::Quit,
            (Page::Jobs, KeyCode::Esc) => self.filter.clear(),
            (_, KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::F(10)) => self.page = Page::Jobs,
            (_, KeyCode::Char('h' | '?') | KeyCode::F(1)) => self.page = Page::Help,
            (_, KeyCode::Char(' ')) => {
                self.paused = !self.paused;
                return Next::Ask;
            }
            (Page::Jobs, code) => return self.in_table(code),
            _ => {}
        }
        Next::Draw
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
            KeyCode::Char('<') => self.order(Column::ALL.len() - 1),
            KeyCode::Char('r' | 'I') => self.reversed = !self.reversed,
            KeyCode::Char('/' | '\\') | KeyCode::F(4) => self.typing = true,
            KeyCode::Enter | KeyCode::Right => {
                let path = self.jobs().get(self.selected()).map(|job| job.job.clone());
                if let Some(path) = path {
                    self.page = Page::Job(path);
                    return Next::Ask;
                }
            }
            _ => {}
        }
        Next::Draw
    }

    fn select(&mut self, by: isize) {
        let jobs = self.jobs();
        let at = self.selected().saturating_add_signed(by).min(jobs.len().saturating_sub(1));
        self.selected = jobs.get(at).map(|job| job.job.clone());
    }

    fn order(&mut self, by: usize) {
        let at = Column::ALL.iter().position(|column| *column == self.column).unwrap_or(0);
        self.column = Column::ALL[(at + by) % Column::ALL.len()];
    }
}
