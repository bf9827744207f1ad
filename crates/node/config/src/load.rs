//! Which files make up a configuration, and in which order: the main file, then `conf.d/*.toml` beside it by name,
//! then what the command line sets. What comes later wins.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use units::quantity::{self, Invalid};

use crate::document;
use crate::problem::{Problem, Problems};
use crate::table::{Config, knob};

/// The main file where none is named.
pub const MAIN_FILE: &str = "/etc/thermocline/thermocline.toml";

/// What stands for the file in problems with overrides.
const COMMAND_LINE: &str = "command line";

/// The largest file that is read, in bytes; a configuration is a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How many files `conf.d` may hold.
const DROP_INS_MAX: usize = 256;

impl Config {
    /// The configuration of this machine: `main`, or [`MAIN_FILE`] if it exists; then the files of [`Self::drop_ins`];
    /// then `overrides`, keys and values as a user writes them, without quotes. What comes later wins; rules for jobs
    /// of later files are tried before those of earlier ones.
    ///
    /// # Errors
    /// Everything that is wrong with any of it, together.
    pub fn load(main: Option<&Path>, overrides: &[(String, String)]) -> Result<Self, Problems> {
        let mut config = Self::default();
        let mut problems = Vec::new();
        let path = main.unwrap_or(Path::new(MAIN_FILE));
        match read(path) {
            Ok(text) => problems.extend(document::apply(&mut config, path, &text)),
            Err(error) if main.is_none() && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => problems.push(unreadable(path, &error)),
        }
        match Self::drop_ins(main) {
            Ok(files) => {
                for file in files {
                    match read(&file) {
                        Ok(text) => problems.extend(document::apply(&mut config, &file, &text)),
                        Err(error) => problems.push(unreadable(&file, &error)),
                    }
                }
            }
            Err(found) => problems.extend(found.0),
        }
        for (key, value) in overrides {
            let found = match knob(key) {
                Some(knob) => knob.parse(value).map(|value| config.set(knob, value)),
                None => Err(document::unknown_key(key)),
            };
            if let Err(invalid) = found {
                problems.push(Problem {
                    key: Some(quantity::excerpt(key)),
                    value: Some(quantity::excerpt(value)),
                    ..problem(Path::new(COMMAND_LINE), invalid)
                });
            }
        }
        if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
    }

    /// The configuration that one text makes, with `name` for its file.
    ///
    /// # Errors
    /// Everything that is wrong with it, together.
    pub fn from_str(name: &str, text: &str) -> Result<Self, Problems> {
        let mut config = Self::default();
        let problems = document::apply(&mut config, Path::new(name), text);
        if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
    }

    /// The files `conf.d/*.toml` beside the main file, by name in byte order. Hidden files are passed over. None is
    /// read from a directory that belongs to somebody else: the agent runs as root, and a main file named by hand may
    /// lie where others can put a `conf.d`.
    ///
    /// # Errors
    /// A directory that cannot be read or trusted, or that holds more than 256 such files.
    pub fn drop_ins(main: Option<&Path>) -> Result<Vec<PathBuf>, Problems> {
        let main = main.unwrap_or(Path::new(MAIN_FILE));
        let directory = main.parent().unwrap_or(Path::new("/")).join("conf.d");
        let found = match fs::read_dir(&directory) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Problems(vec![unreadable(&directory, &error)])),
        };
        trusted(main, &directory).map_err(|invalid| Problems(vec![problem(&directory, invalid)]))?;
        let mut files = Vec::new();
        for entry in found {
            let path = entry.map_err(|error| Problems(vec![unreadable(&directory, &error)]))?.path();
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if hidden || path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            if files.len() == DROP_INS_MAX {
                let invalid = Invalid::new(format!("more than {DROP_INS_MAX} files"), "merge some of them");
                return Err(Problems(vec![problem(&directory, invalid)]));
            }
            files.push(path);
        }
        files.sort();
        Ok(files)
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > FILE_BYTES_MAX) {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("not UTF-8: the byte at offset {} belongs to no character", error.utf8_error().valid_up_to()),
        )
    })
}

/// Whether only root, whoever runs this, or the owner of the main file can have filled `directory`.
fn trusted(main: &Path, directory: &Path) -> Result<(), Invalid> {
    let cannot = |error: io::Error| Invalid::new(format!("its owner cannot be read: {error}"), "make it readable to whoever runs this");
    let found = fs::metadata(directory).map_err(cannot)?;
    // The directory of our own process in /proc belongs to the effective user; without /proc only the others count.
    let owners = [Path::new("/proc/self"), main].map(|path| fs::metadata(path).ok().as_ref().map(Metadata::uid));
    check_owner(found.uid(), found.mode(), &[Some(0), owners[0], owners[1]])
}

fn check_owner(uid: u32, mode: u32, trusted: &[Option<u32>]) -> Result<(), Invalid> {
    const WRITABLE_BY_ANYONE: u32 = 0o002;
    if !trusted.contains(&Some(uid)) {
        return Err(Invalid::new(
            format!("belongs to user {uid}, who did not write the main file"),
            "give it to root, or move the main file elsewhere",
        ));
    }
    if mode & WRITABLE_BY_ANYONE != 0 {
        return Err(Invalid::new("anyone may write into it", "take that right away with chmod o-w"));
    }
    Ok(())
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "name a file that exists",
        io::ErrorKind::PermissionDenied => "make it readable to whoever runs this, or run as root",
        io::ErrorKind::InvalidData => "save it in UTF-8",
        _ => "name a readable file of TOML",
    };
    problem(path, Invalid::new(format!("cannot be read: {error}"), remedy))
}

fn problem(file: &Path, invalid: Invalid) -> Problem {
    Problem { file: file.to_owned(), line: None, key: None, value: None, message: invalid.message, remedy: invalid.remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_somebody_else_is_not_read() {
        let ours = [Some(0), None, Some(1000)];
        for (uid, mode, hint) in
            [(0, 0o755, None), (1000, 0o775, None), (1001, 0o755, Some("root")), (0, 0o777, Some("o-w")), (1000, 0o1777, Some("o-w"))]
        {
            let found = check_owner(uid, mode, &ours);
            assert_eq!(found.is_ok(), hint.is_none(), "{uid} {mode:o}");
            if let (Err(invalid), Some(hint)) = (found, hint) {
                assert!(invalid.remedy.contains(hint), "{invalid:?}");
            }
        }
    }
}
