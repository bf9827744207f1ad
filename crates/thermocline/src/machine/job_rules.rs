//! Job rules that another program writes for the agent, such as `thermocline kubernetes`.
//!
//! The program has fewer privileges than the agent. Its file chooses how cgroups are treated and sets no knob, and nothing in it ends
//! the agent: without a valid file at the start there are no such rules, and later the former ones stay.

use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use agent::Message;
use anyhow::{Result, bail};
use config::{Config, JobRule};

use crate::options::Configuration;

const NO_RULE: &str = "no [[job]] rule is configured, so the agent has no jobs; see `thermocline config show` for examples";

/// How often the file is read. A change that is followed at once would let its writer keep the agent busy.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// The largest file that is read, in bytes: that of a configuration file.
const BYTES_MAX: u64 = 1 << 20;

/// What the agent's configuration is made of.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    configuration: Configuration,
    job_rules: Option<PathBuf>,
}

impl Source {
    pub(crate) fn new(configuration: Configuration, job_rules: Option<PathBuf>) -> Self {
        Self { configuration, job_rules }
    }

    /// The configuration of a start, and the text of the rules in it.
    pub(crate) fn start(&self, mut config: Config) -> Result<(Config, Result<String, String>)> {
        let Some(path) = &self.job_rules else {
            if config.jobs.is_empty() {
                bail!(NO_RULE);
            }
            return Ok((config, Ok(String::new())));
        };
        let text = read(path);
        match text.clone().and_then(|text| rules(path, &text)) {
            Ok(rules) => prepend(&mut config, rules),
            Err(what) => log::error!("the job rules of {} have no effect: {what}", path.display()),
        }
        Ok((config, text))
    }

    /// The configuration, read again.
    pub(crate) fn reload(&self) -> Message {
        Message::Reload(Box::new(self.read(self.job_rules.as_deref().map_or(Ok(String::new()), read))))
    }

    fn read(&self, text: Result<String, String>) -> Result<Config, String> {
        let mut config = self.configuration.checked().map_err(|problems| problems.to_string())?;
        if let Some(path) = &self.job_rules {
            prepend(&mut config, rules(path, &text?)?);
        } else if config.jobs.is_empty() {
            return Err(NO_RULE.to_owned());
        }
        Ok(config)
    }

    /// Starts the thread that reads the rules again each period and sends the agent what changed. `last` are those in effect.
    pub(crate) fn follow(self, mut last: Result<String, String>, sender: SyncSender<Message>, period: Duration) -> Result<()> {
        let Some(path) = self.job_rules.clone() else { return Ok(()) };
        std::thread::Builder::new().name("job-rules".to_owned()).spawn(move || {
            let _member = daemon::watchdog::join("job-rules", Duration::MAX);
            loop {
                std::thread::sleep(period);
                let text = read(&path);
                if text == last {
                    continue;
                }
                last.clone_from(&text);
                if sender.send(Message::Reload(Box::new(self.read(text)))).is_err() {
                    break;
                }
            }
        })?;
        Ok(())
    }
}

/// The text of the rules; none if the file does not exist yet.
fn read(path: &Path) -> Result<String, String> {
    let bytes = daemon::trusted::read_foreign(path, BYTES_MAX).map_err(|error| error.to_string())?;
    String::from_utf8(bytes.unwrap_or_default()).map_err(|_| format!("{} is not UTF-8", path.display()))
}

fn rules(path: &Path, text: &str) -> Result<Vec<JobRule>, String> {
    Config::rules_from_str(&path.display().to_string(), text).map_err(|problems| problems.to_string())
}

fn prepend(config: &mut Config, mut rules: Vec<JobRule>) {
    rules.append(&mut config.jobs);
    config.jobs = rules;
}

#[cfg(test)]
mod tests {
    use config::Class;

    use super::*;

    #[test]
    fn rules_of_another_program_come_first_and_change_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let main = directory.path().join("thermocline.toml");
        std::fs::write(&main, "[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\n").unwrap();
        let path = directory.path().join("rules.toml");
        let source = Source::new(Configuration { config: Some(main), overrides: vec![] }, Some(path.clone()));
        let config = || source.configuration.checked().unwrap();
        let (started, text) = source.start(config()).unwrap();
        assert_eq!((started.jobs.len(), text), (1, Ok(String::new())), "the file does not exist yet");
        std::fs::write(&path, "[[job]]\ncgroup = \"/a\"\nclass = \"off\"\n").unwrap();
        let Message::Reload(read) = source.reload() else { panic!("no reload") };
        assert_eq!((*read).unwrap().jobs.iter().map(|rule| rule.class).collect::<Vec<_>>(), [Class::Off, Class::Standard]);
        for text in ["agent.cpu_budget = \"90%\"\n", "no", "[[job]]\ncgroup = 3\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(source.start(config()).unwrap().0.jobs.len(), 1, "{text}: the agent starts without them");
            let Message::Reload(read) = source.reload() else { panic!("no reload") };
            assert!((*read).is_err(), "{text}: the former rules stay");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        let Message::Reload(read) = source.reload() else { panic!("no reload") };
        assert!((*read).is_err(), "a link is not followed");
    }

    #[test]
    fn a_change_of_the_rules_reaches_the_agent_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.toml");
        let source = Source::new(Configuration { config: Some("/dev/null".into()), overrides: vec![] }, Some(path.clone()));
        let (sender, receiver) = std::sync::mpsc::sync_channel(4);
        source.follow(Ok(String::new()), sender, Duration::from_millis(5)).unwrap();
        let replace = |text: &str| {
            let new = directory.path().join("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(new, &path).unwrap();
        };
        let received = || match receiver.recv_timeout(Duration::from_secs(60)) {
            Ok(Message::Reload(read)) => read.map(|config| config.jobs.iter().map(|rule| rule.class).collect::<Vec<_>>()),
            other => panic!("{other:?}"),
        };
        replace("[[job]]\ncgroup = \"/a\"\nclass = \"conservative\"\n");
        assert_eq!(received(), Ok(vec![Class::Conservative]));
        replace("no");
        assert!(received().is_err());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(received(), Ok(vec![]));
    }

    #[test]
    fn without_any_rule_only_an_agent_with_another_source_starts() {
        let configuration = Configuration { config: Some("/dev/null".into()), overrides: vec![] };
        let config = configuration.checked().unwrap();
        assert!(Source::new(configuration.clone(), None).start(config.clone()).is_err());
        let other = Source::new(configuration, Some("/no/such/file".into()));
        assert!(other.start(config).unwrap().0.jobs.is_empty());
    }
}
