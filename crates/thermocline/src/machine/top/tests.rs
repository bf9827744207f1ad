//! Screens as text. `UPDATE_SCREENS=1` writes them; inspect them afterwards.

use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::guest::ranges;
use super::screen;
use super::source::Source;
use super::state::{Answers, Next, State};
use super::theme::Theme;
use super::view::View;

const MIB: u64 = 1 << 20;

fn job(path: &str, memory: u64, far: u64, rate: Option<f64>) -> Value {
    let ages: Vec<_> = (0..8).map(|step| (f64::from(1 << step) * 120.0, (memory / 2) >> step)).collect();
    json!({
        "job": path, "class": "standard", "policy": "cold_age", "tier": "zswap", "tier_reason": "its cold pages compress to 35 %",
        "tracker": "sampled", "memory_bytes": memory, "working_set_bytes": memory / 2, "cold_bytes": memory / 2, "far_bytes": far,
        "saved_bytes": far / 3 * 2, "protection_bytes": 0, "threshold_seconds": 480.0, "promotion_rate_ratio_per_min": rate,
        "slo_ratio_per_min": 0.002, "stall_ratio": null, "explanation": "pages idle for 480 s or longer are offloaded",
        "cold_age": ages,
        "recent": [{ "controller": "cold_age", "decisions": [{ "unix_ms": 4_000_000_000_000_u64, "text": "offload what is idle for 480 s" }] }],
    })
}

fn answer(jobs: &[Value]) -> View {
    serde_json::from_value(json!({
        "version": "0.1.0", "kernel": "6.12.1", "dry_run": false, "saved_bytes": 100 * MIB,
        "machine": {
            "total_bytes": 1024 * MIB, "available_bytes": 512 * MIB, "pool_bytes": 50 * MIB, "stored_bytes": 150 * MIB,
            "swap_total_bytes": 1024 * MIB, "swap_free_bytes": 874 * MIB, "no_far_memory": null, "troubles": [],
        },
        "tiers": { "rows": [{ "name": "zswap", "read_us": 40, "free_bytes": null, "memory_bytes": 50 * MIB, "writable_bytes": null }] },
        "costs": { "rss_bytes": 10 * MIB, "cpu_seconds": 1.5 },
        "jobs": jobs,
    }))
    .unwrap()
}

fn state() -> State {
    let jobs = [
        job("/system.slice/redis-server.service", 300 * MIB, 120 * MIB, Some(0.0012)),
        job("/system.slice/postgresql@17-main.service", 200 * MIB, 30 * MIB, Some(0.0031)),
        job("/batch", 40 * MIB, 0, None),
    ];
    let mut state = State::new(Theme { ascii: true, color: false });
    agent_answers(&mut state, Ok(answer(&jobs)));
    state
}

fn agent_answers(state: &mut State, answer: anyhow::Result<View>) {
    state.update(Answers { agent: Some(answer), ..Answers::default() });
}

fn press(state: &mut State, keys: &[KeyCode]) -> Vec<Next> {
    keys.iter().map(|code| state.key(KeyEvent::new(*code, KeyModifiers::NONE))).collect()
}

/// Draws a screen and compares it with the file of this name.
fn check(name: &str, state: &State, width: u16, height: u16) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, state)).unwrap();
    let found = format!("{}\n", terminal.backend());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/machine/top/screens").join(name);
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &found).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap();
    assert!(found == want, "{name} was\n{want}\nand is\n{found}");
}

#[test]
fn the_table_fits_a_small_terminal_and_uses_a_wide_one() {
    check("jobs-80x24.txt", &state(), 80, 24);
    check("jobs-140x12.txt", &state(), 140, 12);
}

#[test]
fn a_job_has_a_page_with_its_ages_over_time_and_its_decisions() {
    let mut state = state();
    for used in [60, 30, 10] {
        let jobs = [job("/system.slice/redis-server.service", used * 5 * MIB, 20 * MIB, None)];
        agent_answers(&mut state, Ok(answer(&jobs)));
    }
    assert_eq!(press(&mut state, &[KeyCode::Enter]), [Next::Ask]);
    assert_eq!(state.job_of_page(), Some("/system.slice/redis-server.service"));
    check("job-80x24.txt", &state, 80, 24);
    agent_answers(&mut state, Ok(answer(&[])));
    check("job-ended.txt", &state, 80, 8);
    press(&mut state, &[KeyCode::Esc]);
    check("no-jobs.txt", &state, 80, 8);
}

#[test]
fn jobs_are_ordered_filtered_and_stay_selected() {
    let mut state = state();
    let order = |state: &State| state.jobs().iter().map(|job| job.job.clone()).collect::<Vec<_>>();
    assert_eq!(order(&state)[0], "/system.slice/redis-server.service", "most saved first");
    press(&mut state, &[KeyCode::Down]);
    let selected = order(&state)[state.selected()].clone();
    press(&mut state, &[KeyCode::Char('r')]);
    assert_eq!((order(&state)[0].as_str(), &order(&state)[state.selected()]), ("/batch", &selected));
    press(&mut state, &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('r')]);
    assert_eq!(order(&state)[0], "/system.slice/postgresql@17-main.service", "most promotions first");
    press(
        &mut state,
        &[KeyCode::Char('/'), KeyCode::Char('R'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Char('e'), KeyCode::Enter],
    );
    assert_eq!(order(&state), ["/system.slice/postgresql@17-main.service", "/system.slice/redis-server.service"]);
    assert_eq!(press(&mut state, &[KeyCode::Esc, KeyCode::Char('q')]), [Next::Draw, Next::Quit]);
    assert_eq!(state.jobs().len(), 3);
}

#[test]
fn an_agent_that_is_gone_is_said_and_the_last_answer_stays() {
    let mut state = state();
    agent_answers(&mut state, Err(anyhow::anyhow!("no agent answers")));
    check("agent-gone.txt", &state, 80, 12);
    press(&mut state, &[KeyCode::Char('?')]);
    check("help.txt", &state, 100, 24);
}

/// What a pool host with three guests answers.
fn host() -> Value {
    let guest = |name: &str, local: u64, pool: u64, accessed: Option<f64>| {
        json!({
            "name": name, "state": "running", "busy": null, "pid": 4711, "cores": 4, "local_bytes": local * MIB, "pool_bytes": pool * MIB,
            "slices": pool / 256, "pool_touched_bytes": accessed.map(|_| 64 * MIB), "pool_accessed_ratio": accessed, "verdict": null,
            "mitigated": false,
        })
    };
    json!({
        "host": "h1", "local_bytes": 65_536 * MIB, "local_used_bytes": 20_480 * MIB, "totals": { "started": 12, "mitigated": 1 },
        "pool_error": "no pool manager answers",
        "guests": [guest("cache", 6144, 2048, Some(0.012)), guest("db", 8192, 0, None), guest("web-1", 6144, 4096, Some(0.0))],
        "damaged": { "old": "its record cannot be read" },
    })
}

fn host_answers(state: &mut State, guest: Option<Value>) {
    let guest = guest.map(|record| Ok(serde_json::from_value(record).unwrap()));
    state.update(Answers { host: Some(Ok(serde_json::from_value(host()).unwrap())), guest, ..Answers::default() });
}

#[test]
fn the_guests_of_a_pool_host_have_a_table_and_pages() {
    let mut state = state();
    assert_eq!(press(&mut state, &[KeyCode::Tab]), [Next::Ask]);
    host_answers(&mut state, None);
    check("guests-100x16.txt", &state, 100, 16);
    let names = |state: &State| state.guests().iter().map(|guest| guest.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&state), ["web-1", "cache", "db"], "most pool memory first");
    press(&mut state, &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('s')]);
    assert_eq!(names(&state), ["cache", "db", "web-1"], "by name");
    press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('e'), KeyCode::Char('b'), KeyCode::Enter]);
    assert_eq!(names(&state), ["web-1"]);
    assert_eq!(press(&mut state, &[KeyCode::Esc, KeyCode::End, KeyCode::Enter]), [Next::Draw, Next::Draw, Next::Ask]);
    host_answers(&mut state, Some(record()));
    check("guest-80x24.txt", &state, 80, 24);
    state.update(Answers { guest: Some(Err(anyhow::anyhow!("there is no guest web-1"))), ..Answers::default() });
    check("guest-ended.txt", &state, 80, 12);
    assert_eq!(press(&mut state, &[KeyCode::Esc, KeyCode::Char('g')]), [Next::Ask, Next::Ask]);
    assert_eq!(state.jobs().len(), 3, "the agent's jobs again");
    assert_eq!(ranges(vec![7, 2, 1, 3]), "1-3, 7");
}

/// The record of guest `web-1`.
fn record() -> Value {
    let slice = |(emc, index): (u16, u32)| json!({ "emc": emc, "index": index, "generation": 3, "path": "/dev/null", "bytes": 256 * MIB });
    let slices: Vec<_> = (0..14).map(|at| (0, at)).chain([(1, 4), (1, 9)]).map(slice).collect();
    let event = |what: &str| json!({ "at": 4e9, "what": what });
    json!({
        "request": { "name": "web-1", "vm": { "cores": 4, "memory_bytes": 10_240 * MIB, "arrival": 0 } },
        "state": "running",
        "share": { "slices": 16, "local_bytes": 6144 * MIB, "why": "untouched", "insensitive": false },
        "machine": { "name": "web-1", "cores": 4, "local_bytes": 6144 * MIB, "slices": slices, "description": null },
        "process": { "pid": 4711, "starttime": 1, "generation": 1 },
        "mapped": slices, "assigned": true, "mitigated": false, "mitigation_failures": 0,
        "pool_touched_bytes": 64 * MIB,
        "usage": { "pool_touched_bytes": 64 * MIB, "pool_accessed_bytes": 0, "local_touched_bytes": 0, "local_accessed_bytes": 0 },
        "samples": { "count": 1, "pool_accessed_bytes": 0, "local_accessed_bytes": 0 },
        "verdict": null, "free_memory": null,
        "events": [event("16 slices: it is predicted to leave them untouched"), event("running, process 4711")],
    })
}

#[test]
fn a_journal_is_shown_period_by_period() {
    let first_journal = Path::new(env!("CARGO_MANIFEST_DIR")).join("../node/agent/tests/journal-6.12-idle.jsonl");
    let mut state = State::new(Theme { ascii: true, color: false });
    let mut source = Source::journal(&first_journal, None, &mut state).unwrap();
    check("journal-begin.txt", &state, 100, 10);
    let first = state.position.unwrap();
    source.next(&mut state);
    assert_eq!(state.position.unwrap().number, first.number + 1);
    assert_eq!(press(&mut state, &[KeyCode::Char('e')]), [Next::Go(isize::MAX / 2)]);
    source.go(isize::MAX / 2, &mut state);
    let last = state.position.unwrap();
    assert!(last.number == last.of && last.unix_ms > first.unix_ms && state.is_paused());
    press(&mut state, &[KeyCode::Enter]);
    source.ask(&mut state);
    check("journal-job.txt", &state, 100, 30);
    // Jobs of all policies, with their tiers, which this agent recorded.
    let journal = Path::new(env!("CARGO_MANIFEST_DIR")).join("../node/agent/tests/journal-6.12-idle-policies.jsonl");
    let mut other = State::new(Theme { ascii: true, color: false });
    Source::journal(&journal, None, &mut other).unwrap().go(isize::MAX / 2, &mut other);
    assert!(other.jobs().iter().all(|job| !job.job.is_empty() && !job.tier_reason.is_empty()), "{:?}", other.jobs());
    // To a time, and back from there: a job's ages are those before that time.
    let mut state = State::new(Theme { ascii: true, color: false });
    let mut source = Source::journal(&first_journal, Some(last.unix_ms), &mut state).unwrap();
    assert_eq!(state.position, Some(last));
    source.go(-3, &mut state);
    assert_eq!(state.position.unwrap().number, last.number - 3);
    let job = state.jobs()[0].job.clone();
    assert_eq!(state.seen(&job).last(), Some(&state.shown(&job).unwrap().cold_age));
}

#[test]
fn a_pool_host_without_an_agent_has_no_zeros_for_it() {
    let mut state = State::new(Theme { ascii: true, color: false });
    agent_answers(&mut state, Err(anyhow::anyhow!("no agent answers")));
    check("no-agent.txt", &state, 80, 6);
}

#[test]
fn any_size_is_drawn() {
    let mut state = state();
    for page in [KeyCode::Esc, KeyCode::Enter, KeyCode::Char('?')] {
        press(&mut state, &[page]);
        for (width, height) in [(1, 1), (10, 3), (40, 5), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| screen::draw(frame, &state)).unwrap();
        }
    }
}
