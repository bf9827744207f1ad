//! Which files make up a configuration, and in which order: the main file, then `conf.d/*.toml` beside it sorted by name,
//! then the options of the command line. Later values win.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use settings::{Document, Invalid, Problem, Problems, read_file, unknown_key, unreadable};
use units::quantity::excerpt;

use crate::config::{Config, SCHEMA, knob};
use crate::job::JobRule;

/// The main file if the user names none.
pub const MAIN_FILE: &str = "/etc/thermocline/thermocline.toml";

/// The file name in problems with options of the command line.
const COMMAND_LINE: &str = "command line";

/// How many files `conf.d` may hold.
const DROP_INS_MAX: usize = 256;

impl Config {
    /// Reads the configuration of this machine: `main`, or [`MAIN_FILE`] if it exists; then the files of [`Self::drop_ins`];
    /// then `overrides`, keys and values as a user writes them, without quotes. Later values win; job rules of later files are
    /// tried before those of earlier ones.
    ///
    /// # Errors
    /// All problems of all sources together.
    pub fn load(main: Option<&Path>, overrides: &[(String, String)]) -> Result<Self, Problems> {
        let mut config = Self::default();
        let mut problems = Vec::new();
        let path = main.unwrap_or(Path::new(MAIN_FILE));
        match read_file(path) {
            Ok(text) => problems.extend(config.apply_text(path, &text)),
            Err(error) if main.is_none() && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => problems.push(unreadable(path, &error)),
        }
        match Self::drop_ins(main) {
            Ok(files) => {
                for file in files {
                    match read_file(&file) {
                        Ok(text) => problems.extend(config.apply_text(&file, &text)),
                        Err(error) => problems.push(unreadable(&file, &error)),
                    }
                }
            }
            Err(found) => problems.extend(found.0),
        }
        for (key, value) in overrides {
            let found = match knob(key) {
                Some(knob) => knob.parse(value).map(|value| config.set(knob, value)),
                None => Err(unknown_key(&SCHEMA, key)),
            };
            if let Err(invalid) = found {
                problems.push(Problem {
                    key: Some(excerpt(key)),
                    value: Some(excerpt(value)),
                    ..Problem::of_file(Path::new(COMMAND_LINE), invalid)
                });
            }
        }
        if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
    }

    /// Reads the configuration from one text; `name` is its file name in messages.
    ///
    /// # Errors
    /// All problems together.
    pub fn from_str(name: &str, text: &str) -> Result<Self, Problems> {
        let mut config = Self::default();
        let problems = config.apply_text(Path::new(name), text);
        if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
    }

    /// Reads job rules that another program wrote; `name` is their file name in messages. They choose how cgroups are treated, and
    /// nothing else: a file that sets a knob is refused.
    ///
    /// # Errors
    /// All problems together.
    pub fn rules_from_str(name: &str, text: &str) -> Result<Vec<JobRule>, Problems> {
        let mut config = Self::from_str(name, text)?;
        let rules = std::mem::take(&mut config.jobs);
        if config == Self::default() {
            return Ok(rules);
        }
        let remedy = "set knobs in the configuration file, and leave [[job]] tables alone in this one";
        Err(Problems(vec![Problem::of_file(Path::new(name), Invalid::new("sets a knob", remedy))]))
    }

    fn apply_text(&mut self, file: &Path, text: &str) -> Vec<Problem> {
        let mut document = Document::read(&SCHEMA, file, text);
        self.apply(&mut document);
        document.into_problems()
    }

    /// Returns the files `conf.d/*.toml` beside the main file, sorted by name in byte order, without hidden files. A directory
    /// that another user owns or may write is refused: the agent runs as root, and a main file named by hand may lie where other
    /// users can create a `conf.d`.
    ///
    /// # Errors
    /// The directory cannot be read or trusted, or holds more than 256 such files.
    pub fn drop_ins(main: Option<&Path>) -> Result<Vec<PathBuf>, Problems> {
        let main = main.unwrap_or(Path::new(MAIN_FILE));
        let directory = main.parent().unwrap_or(Path::new("/")).join("conf.d");
        let refuse = |invalid| Problems(vec![Problem::of_file(&directory, invalid)]);
        let found = match fs::read_dir(&directory) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Problems(vec![unreadable(&directory, &error)])),
        };
        check_trusted(main, &directory).map_err(refuse)?;
        let mut files = Vec::new();
        for entry in found {
            let path = entry.map_err(|error| Problems(vec![unreadable(&directory, &error)]))?.path();
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if hidden || path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            if files.len() == DROP_INS_MAX {
                return Err(refuse(Invalid::new(format!("more than {DROP_INS_MAX} files"), "merge some of them")));
            }
            files.push(path);
        }
        files.sort();
        Ok(files)
    }
}

/// Checks that only root, the user of this process, or the owner of the main file can have written to `directory`.
fn check_trusted(main: &Path, directory: &Path) -> Result<(), Invalid> {
    let unknown =
        |error: io::Error| Invalid::new(format!("its owner cannot be read: {error}"), "make it readable to the user of this program");
    let found = fs::metadata(directory).map_err(unknown)?;
    // The directory of this process in /proc belongs to the effective user; without /proc only root and the file's owner count.
    let owners = [Path::new("/proc/self"), main].map(|path| fs::metadata(path).ok().as_ref().map(Metadata::uid));
    check_owner(found.uid(), found.mode(), &[Some(0), owners[0], owners[1]])
}

fn check_owner(uid: u32, mode: u32, trusted: &[Option<u32>]) -> Result<(), Invalid> {
    const WRITABLE_BY_OTHERS: u32 = 0o002;
    if !trusted.contains(&Some(uid)) {
        return Err(Invalid::new(
            format!("belongs to user {uid}, who does not own the main file"),
            "change its owner to root, or move the main file elsewhere",
        ));
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(Invalid::new("every user may write to it", "remove this permission with chmod o-w"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_rules_sets_nothing_else() {
        let rule = "[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\n";
        let rules = Config::rules_from_str("rules", rule).unwrap();
        assert_eq!((rules.len(), rules[0].cgroup.as_str()), (1, "/a"));
        assert_eq!(crate::rules_to_toml(&rules).trim(), rule.trim());
        assert!(Config::rules_from_str("rules", "").unwrap().is_empty());
        let error = Config::rules_from_str("rules", &format!("agent.cpu_budget = \"50%\"\n{rule}")).unwrap_err().to_string();
        assert!(error.contains("sets a knob"), "{error}");
        assert!(Config::rules_from_str("rules", "[[job]]\nclass = \"standard\"\n").is_err());
    }

    #[test]
    fn a_directory_of_another_user_is_not_read() {
        let trusted = [Some(0), None, Some(1000)];
        for (uid, mode, hint) in
            [(0, 0o755, None), (1000, 0o775, None), (1001, 0o755, Some("root")), (0, 0o777, Some("o-w")), (1000, 0o1777, Some("o-w"))]
        {
            let found = check_owner(uid, mode, &trusted);
            assert_eq!(found.is_ok(), hint.is_none(), "{uid} {mode:o}");
            if let (Err(invalid), Some(hint)) = (found, hint) {
                assert!(invalid.remedy.contains(hint), "{invalid:?}");
            }
        }
    }
}
