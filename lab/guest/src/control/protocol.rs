//! The control channel's wire format: one JSON object per line in each direction.
//!
//! Requests are `{"id":N,"op":NAME,...}`. A reply repeats the id: `{"id":N,"ok":true,...}` or
//! `{"id":N,"ok":false,"error":TEXT}`; replies are sent in the order in which operations complete.
//! `{"event":NAME,...}` lines are unsolicited.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::linux::child::Exit;

/// Limit of a request line, and of each field of a reply, in bytes.
pub(crate) const DATA_BYTES_MAX: usize = 16 << 20;

/// Fields of a reply, in alphabetical order.
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

/// Runs a program to completion; `-> {status, signal, stdout, stderr, cpu_s}`.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) argv: Vec<String>,
    /// Seconds after which the program and its process group are killed and the operation fails.
    pub(crate) timeout_s: f64,
    /// Added to the control program's environment.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Directory of the cgroup that the program enters before it executes.
    pub(crate) cgroup: Option<PathBuf>,
    /// Text for its standard input; empty by default.
    #[serde(default)]
    pub(crate) stdin: String,
}

/// Starts a program and leaves it running; `-> {pid}`, and an `exit` event when it exits.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spawn {
    pub(crate) argv: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cgroup: Option<PathBuf>,
    /// File to which its output is appended; `/dev/null` by default.
    pub(crate) stdout: Option<PathBuf>,
    pub(crate) stderr: Option<PathBuf>,
}

/// Reads a whole file, at most [`DATA_BYTES_MAX`]; `-> {data}`.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    pub(crate) path: PathBuf,
}

/// Writes a file, with a single `write(2)` if the kernel accepts it whole, as kernel files require.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    pub(crate) path: PathBuf,
    pub(crate) data: String,
    /// Whether to append; otherwise the file is replaced.
    #[serde(default)]
    pub(crate) append: bool,
}

/// Creates a directory and its parents; existing ones are not an error.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mkdir {
    pub(crate) path: PathBuf,
}

/// Sends a signal, by number, to a process, or to a process group if `pid` is negative.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kill {
    pub(crate) pid: i32,
    pub(crate) signal: i32,
}

/// Waits until a line of a growing file contains a text, from the file's start; `-> {line}`.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    pub(crate) path: PathBuf,
    pub(crate) contains: String,
    pub(crate) timeout_s: f64,
}

/// The reason why a line is not a valid request, and its id if it has one.
#[derive(Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) id: Option<u64>,
    pub(crate) error: String,
}

/// Parses one request line.
///
/// # Errors
/// A [`Refusal`] that states the reason.
pub(crate) fn parse(line: &[u8]) -> Result<(u64, Operation), Refusal> {
    let refuse = |id, error| Err(Refusal { id, error });
    let mut fields: Fields = match serde_json::from_slice(line) {
        Ok(fields) => fields,
        Err(error) => return refuse(None, format!("the request is not a JSON object on one line: {error}")),
    };
    let Some(id) = fields.remove("id").as_ref().and_then(Value::as_u64) else {
        return refuse(None, "the request needs an \"id\" that is a whole number".to_owned());
    };
    match serde_json::from_value(Value::Object(fields)) {
        Ok(operation) => Ok((id, operation)),
        Err(error) => refuse(Some(id), format!("invalid request: {error}")),
    }
}

/// Returns the reply to request `id`; `None`: to a line without a valid id.
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

/// Returns the event that is sent first on the channel.
pub(crate) fn ready_event(kernel: &str) -> Value {
    json!({"event": "ready", "kernel": kernel})
}

/// Returns the event for the exit of a spawned program.
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
