//! The control socket: `status` and `explain` of a running agent, hints to it, and the holds of trials. A request is a line of words, the answer a line
//! of JSON.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use config::Policy;
use daemon::socket::Limits;
use policy::background::Hint;
use policy::trial::Kept;
use serde_json::json;
use units::UnixMillis;

use crate::scheduler::Message;
use crate::view::{Published, View};

/// The name of the socket in the runtime directory.
const NAME: &str = "agent.sock";

/// Requests are short and answered from the published view.
const LIMITS: Limits = Limits { request_bytes: 4096, request_timeout: Duration::from_secs(5), clients: 16 };

/// How long a client waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest hold. A trial renews it for each half of a block.
const HOLD_MAX: Duration = Duration::from_hours(24);

/// The hints by name; `None` withdraws an earlier hint.
const HINTS: [(&str, Option<Hint>); 3] = [("background", Some(Hint::Background)), ("foreground", Some(Hint::Foreground)), ("auto", None)];

/// The names of the hints, in the order in which they are shown.
pub const HINT_WORDS: [&str; 3] = [HINTS[0].0, HINTS[1].0, HINTS[2].0];

/// Serves the control socket in threads of its own until the process exits, and sends hints to the loop through `messages`.
///
/// # Errors
/// As [`daemon::socket::serve`].
pub fn serve(runtime_dir: &Path, view: Published, messages: SyncSender<Message>) -> daemon::Result<()> {
    daemon::socket::serve(&runtime_dir.join(NAME), LIMITS, move |line| answer(line, &view, &messages))
}

/// The answer to a request, a line of JSON: what the view shows, or `{"ok": true}`, or `{"error": REASON}`.
pub fn answer(request: &str, view: &Published, messages: &SyncSender<Message>) -> String {
    let view = view.get();
    let answer = match request.trim() {
        "explain" => serde_json::to_string(&*view),
        "status" => serde_json::to_string(&view.brief()),
        other => serde_json::to_string(&order(other, &view, messages)),
    };
    answer.unwrap_or_else(daemon::socket::error)
}

/// A request that changes something.
fn order(request: &str, view: &View, messages: &SyncSender<Message>) -> serde_json::Value {
    let done = match request.split_once(' ') {
        Some(("hint", rest)) => hint(rest, view, messages),
        Some(("hold", rest)) => hold(rest, view, messages),
        Some(("keep", rest)) => keep(rest, view, messages),
        Some(("forget", path)) => send(messages, Message::Forget { job: path.to_owned() }),
        _ => Err("unknown request; known are: status, explain, hint JOB WORD, hold JOB SECONDS, keep JOB FIGURES, forget JOB".to_owned()),
    };
    done.map_or_else(|error| json!({ "error": error }), |()| json!({ "ok": true }))
}

/// Passes a hint, `JOB HINT`, to the loop.
fn hint(request: &str, view: &View, messages: &SyncSender<Message>) -> Result<(), String> {
    // The path of a cgroup may contain spaces, the hints do not.
    let (path, word) = request.rsplit_once(' ').unwrap_or((request, ""));
    let Some((_, hint)) = HINTS.iter().find(|(known, _)| *known == word) else {
        return Err(format!("unknown hint; use one of: {}", HINT_WORDS.join(", ")));
    };
    let takes_hints = |policy: &str| [Policy::Background, Policy::Auto].iter().any(|known| known.as_str() == policy);
    let Some(job) = view.jobs.iter().find(|job| job.job == path) else {
        let known: Vec<_> = view.jobs.iter().filter(|job| takes_hints(job.policy)).map(|job| job.job.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(format!("the agent watches no job {path}; jobs that take hints: {known}"));
    };
    if !takes_hints(job.policy) {
        return Err(format!("{path} is under policy {}, which takes no hints; set policy = \"background\" or \"auto\"", job.policy));
    }
    send(messages, Message::Hint { job: path.to_owned(), hint: *hint })
}

/// Passes the hold of a trial, `JOB SECONDS`, to the loop. It ends by itself, so that a trial that dies leaves nothing behind.
fn hold(request: &str, view: &View, messages: &SyncSender<Message>) -> Result<(), String> {
    let (path, seconds) = request.rsplit_once(' ').unwrap_or((request, ""));
    let time = seconds.parse().map(Duration::from_secs).ok().filter(|time| *time <= HOLD_MAX);
    let time = time.ok_or_else(|| format!("{seconds:?} is no time; write whole seconds, at most {}", HOLD_MAX.as_secs()))?;
    let Some(job) = view.jobs.iter().find(|job| job.job == path) else {
        return Err(format!("the agent watches no job {path}; see thermocline status"));
    };
    if job.policy == Policy::Slowdown.as_str() {
        return Err(format!("{path} is under policy slowdown: a trial cannot promote what is in a slow node"));
    }
    send(messages, Message::Hold { job: path.to_owned(), time })
}

/// Passes the result of a trial to the loop: `JOB`, then slowdown and the ends of its interval in millionths, then promotions and
/// refaults in 1,000 s.
fn keep(request: &str, view: &View, messages: &SyncSender<Message>) -> Result<(), String> {
    let mut words = request.rsplitn(6, ' ');
    let trial = (|| {
        let mut next = || words.next();
        let (refaulted, promoted) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let (upper, lower, slowdown) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
        Some(Kept {
            slowdown_ppm: slowdown,
            lower_ppm: lower,
            upper_ppm: upper,
            promoted_per_1000_s: promoted,
            refaulted_per_1000_s: refaulted,
            at_unix_ms: UnixMillis(0),
        })
    })();
    let trial = trial.filter(Kept::is_consistent).ok_or("not the result of a trial; write keep JOB and its five figures")?;
    let path = words.next().unwrap_or_default();
    let Some(job) = view.jobs.iter().find(|job| job.job == path) else {
        return Err(format!("the agent watches no job {path}; see thermocline status"));
    };
    if ![Policy::ColdAge, Policy::Auto].iter().any(|known| known.as_str() == job.policy) {
        return Err(format!("{path} is under policy {}, which no trial limits; set policy = \"auto\" or \"cold_age\"", job.policy));
    }
    send(messages, Message::Keep { job: path.to_owned(), trial })
}

fn send(messages: &SyncSender<Message>, message: Message) -> Result<(), String> {
    match messages.try_send(message) {
        Ok(()) => Ok(()),
        Err(TrySendError::Full(_)) => Err("the agent has many messages to process first; try again in a second".to_owned()),
        Err(TrySendError::Disconnected(_)) => Err("the agent is about to stop".to_owned()),
    }
}

/// Why no agent answers.
#[derive(Debug, thiserror::Error)]
#[error("no agent answers at {path}: {source}; start one with `thermocline agent`, or read its journal with `thermocline replay`")]
pub struct NoAgent {
    path: PathBuf,
    source: std::io::Error,
}

/// Sends a request to the agent of a runtime directory: `status`, `explain`, or `hint JOB HINT` with one of [`HINT_WORDS`].
///
/// # Errors
/// [`NoAgent`] if none answers, or if the answer is not JSON.
pub fn ask(runtime_dir: &Path, request: &str) -> Result<serde_json::Value, NoAgent> {
    let path = runtime_dir.join(NAME);
    let talk = || {
        let answer = daemon::socket::ask(&path, request, ANSWER_TIMEOUT)?;
        Ok(serde_json::from_str(&answer)?)
    };
    talk().map_err(|source| NoAgent { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::View;

    #[test]
    fn an_agent_answers_and_its_absence_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let refused = ask(dir.path(), "status").unwrap_err().to_string();
        assert!(refused.contains("agent.sock") && refused.contains("thermocline agent"), "{refused}");
        let view = Published::default();
        view.set(View { kernel: "6.12".to_owned(), ..View::default() });
        let (messages, received) = std::sync::mpsc::sync_channel(1);
        serve(dir.path(), view.clone(), messages.clone()).unwrap();
        assert_eq!(ask(dir.path(), "status").unwrap()["kernel"], "6.12");
        // A dead agent's socket is replaced.
        serve(dir.path(), view, messages).unwrap();
        assert_eq!(ask(dir.path(), "explain").unwrap()["jobs"], json!([]));
        assert!(ask(dir.path(), "").unwrap()["error"].as_str().unwrap().contains("status, explain, hint"));
        drop(received);
    }

    #[test]
    fn a_hold_reaches_the_loop_or_is_refused() {
        let job = |path: &str, policy| crate::view::JobView { job: path.to_owned(), policy, ..Default::default() };
        let view = View { jobs: vec![job("/a b", "auto"), job("/s", "slowdown")], ..View::default() };
        let (messages, received) = std::sync::mpsc::sync_channel(2);
        for (request, piece) in [
            ("/a b", "is no time"),
            ("/a b soon", "is no time"),
            ("/a b 86401", "at most 86400"),
            ("/z 9", "no job /z"),
            ("/s 9", "policy slowdown"),
        ] {
            let error = hold(request, &view, &messages).unwrap_err();
            assert!(error.contains(piece), "{request}: {error}");
        }
        hold("/a b 90", &view, &messages).unwrap();
        assert_eq!(received.recv(), Ok(Message::Hold { job: "/a b".to_owned(), time: Duration::from_secs(90) }));
    }

    #[test]
    fn the_result_of_a_trial_reaches_the_loop_or_is_refused() {
        let job = |path: &str, policy| crate::view::JobView { job: path.to_owned(), policy, ..Default::default() };
        let view = View { jobs: vec![job("/a b", "cold_age"), job("/p", "pressure")], ..View::default() };
        let (messages, received) = std::sync::mpsc::sync_channel(2);
        for (request, piece) in [
            ("/a b", "not the result"),
            ("/a b 1 2 3 4", "not the result"),
            ("/a b 50000 60000 70000 9 4", "not the result"),
            ("/a b 5e4 4e4 7e4 9 4", "not the result"),
            ("/z 50000 -40000 70000 9 4", "no job /z"),
            ("/p 50000 -40000 70000 9 4", "policy pressure"),
        ] {
            let error = keep(request, &view, &messages).unwrap_err();
            assert!(error.contains(piece), "{request}: {error}");
        }
        keep("/a b 50000 -40000 70000 9 4", &view, &messages).unwrap();
        assert!(order("forget /a b", &view, &messages)["ok"] == true);
        let trial = Kept {
            slowdown_ppm: 50_000,
            lower_ppm: -40_000,
            upper_ppm: 70_000,
            promoted_per_1000_s: 9,
            refaulted_per_1000_s: 4,
            at_unix_ms: UnixMillis(0),
        };
        let taken: Vec<_> = received.try_iter().collect();
        assert_eq!(taken, [Message::Keep { job: "/a b".to_owned(), trial }, Message::Forget { job: "/a b".to_owned() }]);
    }

    #[test]
    fn a_hint_reaches_the_loop_or_is_refused_with_the_remedy() {
        let machine = crate::testing::Machine::new();
        for job in ["/a", "/b b", "/c"] {
            machine.cgroup(job);
        }
        let rule = |job: &str, policy: &str| format!("[[job]]\ncgroup = \"{job}\"\npolicy = \"{policy}\"\n");
        let text = rule("/a", "background") + &rule("/b b", "auto") + &rule("/c", "cold_age");
        let options = crate::Options { ephemeral: true, ..Default::default() };
        let mut agent = crate::Agent::new(machine.roots.clone(), machine.config(&text), options).unwrap();
        let (messages, received) = std::sync::mpsc::sync_channel(2);
        messages.send(Message::Stop).unwrap();
        agent.run(&received, None, &mut |_, _| ()).unwrap();
        let view = agent.view().get();
        let check = |request: &str, want: Result<(), &str>| match (hint(request, &view, &messages), want) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(want)) => assert!(found.contains(want), "{request}: {found}"),
            (found, _) => panic!("{request}: {found:?}"),
        };
        check("/a background", Ok(()));
        check("/b b foreground", Ok(()));
        check("/a auto", Err("try again"));
        check("/a asleep", Err("background, foreground, auto"));
        check("/a", Err("background, foreground, auto"));
        check("/z background", Err("jobs that take hints: /a, /b b"));
        check("/c background", Err("policy cold_age, which takes no hints"));
        let message = |job: &str, hint| Message::Hint { job: job.to_owned(), hint };
        let taken: Vec<_> = received.try_iter().collect();
        assert_eq!(taken, [message("/a", Some(Hint::Background)), message("/b b", Some(Hint::Foreground))]);
        check("/a auto", Ok(()));
        assert_eq!(received.recv(), Ok(message("/a", None)));
        drop(received);
        check("/a auto", Err("about to stop"));
    }
}
