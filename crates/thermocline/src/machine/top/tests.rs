//! Screens as text. `UPDATE_SCREENS=1` writes them; inspect them afterwards.

use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::screen;
use super::state::{Next, State};
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
    State::new(Theme { ascii: true, color: false }, answer(&jobs))
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
        state.update(Ok(answer(&jobs)));
    }
    assert_eq!(press(&mut state, &[KeyCode::Enter]), [Next::Ask]);
    assert!(state.wants_decisions());
    check("job-80x24.txt", &state, 80, 24);
    state.update(Ok(answer(&[])));
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
    state.update(Err(anyhow::anyhow!("no agent answers")));
    check("agent-gone.txt", &state, 80, 12);
    press(&mut state, &[KeyCode::Char('?')]);
    check("help.txt", &state, 100, 24);
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
