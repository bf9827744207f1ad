//! `thermocline top`: the jobs of a running agent, on a screen that updates itself.
//!
//! | module | what it holds |
//! |---|---|
//! | `source` | where answers come from: running daemons, or a journal |
//! | `recorded` | a journal as a sequence of control periods |
//! | `view` | what is read of the agent's status |
//! | `state` | what the user chose: order, filter, page; and the ages seen so far |
//! | `screen` | the frame of every page, and the machine's lines |
//! | `jobs`, `job` | the table of jobs; one job's page |
//! | `guests`, `guest` | the same for the guests of a pool host |
//! | `columns` | the columns that order these tables |
//! | `theme` | colours and characters |

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use config::Config;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

mod columns;
mod guest;
mod guests;
mod job;
mod jobs;
mod recorded;
mod screen;
mod source;
mod state;
#[cfg(test)]
mod tests;
mod theme;
mod view;

use source::Source;
use state::{Next, State};
use theme::Theme;
use units::UnixMillis;

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Time from one update to the next
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Draw with ASCII characters only; the default where the locale is not UTF-8
    #[arg(long)]
    ascii: bool,
    /// Draw without colours; the default where NO_COLOR is set
    #[arg(long)]
    no_color: bool,
    /// Show what a journal recorded: a file, or a directory with an agent's journal, such as /var/lib/thermocline
    #[arg(long, value_name = "PATH")]
    journal: Option<PathBuf>,
    /// Begin at this time of the journal
    #[arg(long, value_name = "TIME", requires = "journal", value_parser = crate::values::time)]
    from: Option<u64>,
    /// The runtime directory of the pool host's configuration
    #[arg(long, value_name = "DIR", default_value = "/run/thermocline", conflicts_with = "journal")]
    pool_runtime: PathBuf,
}

/// The shortest interval: each update makes the agent write its whole state.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = crate::values::duration(text)?;
    if interval < INTERVAL_MIN { Err("must be at least 100ms".to_owned()) } else { Ok(interval) }
}

/// Runs until the user quits.
pub(crate) fn top(config: &Config, top: &Top) -> Result<()> {
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "`top` needs a terminal; for scripts there is `thermocline status --format json`"
    );
    let theme =
        Theme { ascii: top.ascii || !is_utf8(), color: !top.no_color && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()) };
    let mut state = State::new(theme);
    // Without an answer the reason is printed, and the terminal is left as it is.
    let mut source = match &top.journal {
        Some(journal) => Source::journal(journal, top.from.map(UnixMillis), &mut state)?,
        None => Source::live(&config.agent.runtime_dir, &top.pool_runtime, &mut state)?,
    };
    let mut terminal = ratatui::try_init()?;
    let ended = follow(&mut terminal, &mut source, top.interval, &mut state);
    ratatui::restore();
    ended
}

/// Whether the user's locale has Unicode, by the rules of `locale(7)`.
fn is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os).find(|value| !value.is_empty());
    set.is_some_and(|value| value.to_string_lossy().to_ascii_lowercase().replace('-', "").contains("utf8"))
}

fn follow(terminal: &mut DefaultTerminal, source: &mut Source, interval: Duration, state: &mut State) -> Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen::draw(frame, state))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) => match state.key(key) {
                    Next::Quit => return Ok(()),
                    Next::Ask => source.ask(state),
                    Next::Go(periods) => source.go(periods, state),
                    Next::Draw => {}
                },
                _ => continue,
            }
        }
        if Instant::now() >= next {
            if !state.is_paused() {
                source.next(state);
            }
            next = Instant::now() + interval;
        }
    }
}
