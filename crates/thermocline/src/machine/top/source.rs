//! Where the screen's answers come from: the agent and the pool host that run on this machine, or a journal.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::socket;
use anyhow::Result;
use pool_host::socket::Request;
use serde::de::DeserializeOwned;
use units::UnixMillis;

use super::recorded::Recorded;
use super::state::{Answers, Page, SEEN_MAX, State};
use super::view::View;

/// How long the pool host may take to answer; the screen waits.
const HOST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) enum Source {
    /// The runtime directories of an agent and of a pool host.
    Live {
        agent: PathBuf,
        host: PathBuf,
    },
    Journal(Recorded),
}

impl Source {
    /// The daemons that run here, with their first answer: the pool host's, if only that one runs.
    pub(super) fn live(agent: &Path, host: &Path, state: &mut State) -> Result<Self> {
        let agent_answer = ask_agent(agent, false);
        if agent_answer.is_err()
            && let Ok(list) = ask_host(host, &Request::List)
        {
            state.page = Page::Guests;
            state.update(Answers { host: Some(Ok(list)), ..Answers::default() });
        } else {
            state.update(Answers { agent: Some(Ok(agent_answer?)), ..Answers::default() });
        }
        Ok(Self::Live { agent: agent.to_owned(), host: host.to_owned() })
    }

    /// A journal, with its first period, or the one at that time.
    pub(super) fn journal(path: &Path, from: Option<UnixMillis>, state: &mut State) -> Result<Self> {
        let mut recorded = Recorded::read(path)?;
        if let Some(from) = from {
            recorded.go_to(from);
        }
        let mut source = Self::Journal(recorded);
        source.go(0, state);
        Ok(source)
    }

    /// Brings the page up to date.
    pub(super) fn ask(&mut self, state: &mut State) {
        match self {
            Self::Live { agent, host } => state.update(answers(agent, host, state)),
            Self::Journal(recorded) => show(recorded, state, false),
        }
    }

    /// Brings the page up to date after an interval: a journal goes on by a period, and stays at its end.
    pub(super) fn next(&mut self, state: &mut State) {
        match self {
            Self::Live { .. } => self.ask(state),
            Self::Journal(recorded) => {
                if recorded.go(1) {
                    show(recorded, state, true);
                }
            }
        }
    }

    /// Goes forward or back in a journal.
    pub(super) fn go(&mut self, periods: isize, state: &mut State) {
        if let Self::Journal(recorded) = self {
            recorded.go(periods);
            show(recorded, state, false);
        }
    }
}

/// Shows the journal's period. `is_next`: the one before it was shown last.
fn show(recorded: &Recorded, state: &mut State, is_next: bool) {
    let view = recorded.view(state.job_of_page());
    let before = (!is_next).then(|| recorded.until_now(SEEN_MAX));
    state.show(view, recorded.position(), before);
}

fn answers(agent: &Path, host: &Path, state: &State) -> Answers {
    let mut answers = Answers::default();
    if state.page.is_of_host() {
        answers.host = Some(ask_host(host, &Request::List));
    } else {
        answers.agent = Some(ask_agent(agent, state.job_of_page().is_some()));
    }
    if let Page::Guest(name) = &state.page {
        answers.guest = Some(ask_host(host, &Request::Explain { name: name.clone() }));
    }
    answers
}

/// Asks the agent for its state, with the jobs' last decisions if they are shown.
fn ask_agent(directory: &Path, decisions: bool) -> Result<View> {
    let request = if decisions { "explain" } else { "status" };
    Ok(serde_json::from_value(socket::ask(directory, request)?)?)
}

fn ask_host<T: DeserializeOwned>(directory: &Path, request: &Request) -> Result<T> {
    Ok(serde_json::from_value(pool_host::socket::request_within(directory, request, HOST_TIMEOUT)?)?)
}
