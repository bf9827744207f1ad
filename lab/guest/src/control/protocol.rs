//! The control channel's wire format: one JSON object per line in each direction.
//!
//! Requests are `{"id":N,"op":NAME,...}`. A reply repeats the id: `{"id":N,"ok":true,...}` or
//! `{"id":N,"ok":false,"error":TEXT}`; replies come in the order in which operations end.
//! `{"event":NAME,...}` lines come unasked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::linux::child::Exit;

/// Longest request line, and most data that one reply carries per field, in bytes.
pub(crate) const DATA_BYTES_MAX: usize = 16 << 20;

/// Fields of a reply, in order of the alphabet.
pub(crate) type Fields = Map<String, Value>;

/// One operation. Unknown operations and unknown fields are refused.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Operation {
    Run(Run),
    Spawn(Spawn),
    Read(Read),
    Write(Write),
    Mkdir(Mkdir),
    Kill(Kill),
    Expect(Expect),
}

/// Run a program to its end; `-> {status, signal, stdout, stderr, cpu_s}`.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) argv: Vec<String>,
    /// Seconds after which the program and its process group are killed and the operation fails.
    pub(crate) timeout_s: f64,
    /// Added to the environment of the control program.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Directory of the cgroup that the program enters before it starts.
    pub(crate) cgroup: Option<PathBuf>,
    /// Text for its standard input, which is empty otherwise.
    #[serde(default)]
    pub(crate) stdin: String,
}

/// Start a program and leave it running; `-> {pid}`, and an `exit` event when it ends.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spawn {
    pub(crate) argv: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cgroup: Option<PathBuf>,
    /// File that its output is appended to; `/dev/null` otherwise.
    pub(crate) stdout: Option<PathBuf>,
    pub(crate) stderr: Option<PathBuf>,
}

/// Read a whole file, at most [`DATA_BYTES_MAX`]; `-> {data}`.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    pub(crate) path: PathBuf,
}

/// Write a file in one `write(2)` where the kernel takes it whole, as its own files need.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    pub(crate) path: PathBuf,
    pub(crate) data: String,
    /// Add to the end; otherwise the file is replaced.
    #[serde(default)]
    pub(crate) append: bool,
}

/// Make a directory with its parents; one that exists is fine.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mkdir {
    pub(crate) path: PathBuf,
}

/// Send a signal, by number, to a process, or to a process group when `pid` is negative.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kill {
    pub(crate) pid: i32,
    pub(crate) signal: i32,
}

/// Wait until a line of a growing file contains a text, from the file's start; `-> {line}`.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    pub(crate) path: PathBuf,
    pub(crate) contains: String,
    pub(crate) timeout_s: f64,
}

/// A line that is not a request: the id to answer under, where one could be read, and why.
#[derive(Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) id: Option<u64>,
    pub(crate) error: String,
}

/// Parses one request line.
///
/// # Errors
/// A [`Refusal`] that names what is wrong with the line.
pub(crate) fn parse(line: &[u8]) -> Result<(u64, Operation), Refusal> {
    let refuse = |id, error| Err(Refusal { id, error });
    let mut fields: Fields = match serde_json::from_slice(line) {
        Ok(fields) => fields,
        Err(error) => return refuse(None, format!("the request is not a JSON object on one line: {error}")),
    };
    let Some(id) = fields.remove("id").as_ref().and_then(Value::as_u64) else {
        return refuse(None, "the request has no \"id\" that is a whole number".to_owned());
    };
    match serde_json::from_value(Value::Object(fields)) {
        Ok(operation) => Ok((id, operation)),
        Err(error) => refuse(Some(id), format!("the request cannot be understood: {error}")),
    }
}

/// The reply to request `id`; without an id, to a line that had none.
pub(crate) fn reply(id: Option<u64>, outcome: Result<Fields, String>) -> Value {
    let mut fields = match outcome {
        Ok(mut fields) => {
            fields.insert("ok".to_owned(), true.into());
            fields
        }
        Err(error) => Fields::from_iter([("ok".to_owned(), false.into()), ("error".to_owned(), error.into())]),
    };
    fields.insert("id".to_owned(), id.into());
    Value::Object(fields)
}

/// The first line on the channel.
pub(crate) fn ready_event(kernel: &str) -> Value {
    json!({"event": "ready", "kernel": kernel})
}

/// A spawned program has ended.
pub(crate) fn exit_event(pid: i32, exit: &Exit) -> Value {
    json!({"event": "exit", "pid": pid, "status": exit.status, "signal": exit.signal})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<(u64, Operation), (Option<u64>, &str)>) {
        match (parse(line.as_bytes()), expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{line}"),
            (Err(got), Err((id, contains))) => {
                assert_eq!(got.id, id, "{line}");
                assert!(got.error.contains(contains), "{line}: {}", got.error);
            }
            (got, expected) => panic!("{line}: got {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn requests() {
        check(r#"{"id":7,"op":"read","path":"/proc/uptime"}"#, Ok((7, Operation::Read(Read { path: "/proc/uptime".into() }))));
        check(r#"{"op":"kill","signal":9,"pid":-5,"id":0}"#, Ok((0, Operation::Kill(Kill { pid: -5, signal: 9 }))));
        check(
            r#"{"id":1,"op":"run","argv":["a","b"],"timeout_s":2,"cgroup":null}"#,
            Ok((
                1,
                Operation::Run(Run {
                    argv: vec!["a".into(), "b".into()],
                    timeout_s: 2.0,
                    env: BTreeMap::new(),
                    cgroup: None,
                    stdin: String::new(),
                }),
            )),
        );
    }

    #[test]
    fn refusals() {
        check("", Err((None, "not a JSON object")));
        check("[1]", Err((None, "not a JSON object")));
        check(r#"{"op":"read"}"#, Err((None, "\"id\"")));
        check(r#"{"id":-1,"op":"read"}"#, Err((None, "\"id\"")));
        check(r#"{"id":3}"#, Err((Some(3), "op")));
        check(r#"{"id":3,"op":"reboot"}"#, Err((Some(3), "reboot")));
        check(r#"{"id":3,"op":"read"}"#, Err((Some(3), "path")));
        check(r#"{"id":3,"op":"read","path":"/a","paht":1}"#, Err((Some(3), "paht")));
        check(r#"{"id":3,"op":"kill","pid":99999999999,"signal":9}"#, Err((Some(3), "99999999999")));
    }
}
