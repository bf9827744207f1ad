//! Messages of QEMU's monitor: one JSON object per line (QEMU's `docs/interop/qmp-spec.txt`).
//!
//! ```text
//! {"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}
//! {"return": {}, "id": 1}
//! {"id": 2, "error": {"class": "GenericError", "desc": "Device 'd9' not found"}}
//! {"timestamp": {"seconds": 1, "microseconds": 2}, "event": "DEVICE_DELETED", "data": {"device": "d1"}}
//! ```

use serde_json::Value;

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// The first message of a connection.
    Greeting,
    /// The result of the command with this id.
    Return(u64, Value),
    /// A command failed: its id and the description. The id is `None` if QEMU could not parse the command.
    Error(Option<u64>, String),
    /// An asynchronous event.
    Event(Event),
}

/// An asynchronous event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// Event name, such as `DEVICE_DELETED`.
    pub(crate) name: String,
    /// Event data: an object, or null.
    pub(crate) data: Value,
}

impl Event {
    /// The string at a path of keys in the event data, such as `["info", "device"]`.
    #[must_use]
    pub(crate) fn text(&self, path: &[&str]) -> Option<&str> {
        path.iter().try_fold(&self.data, |value, key| value.get(key))?.as_str()
    }

    /// The number at a path of keys in the event data.
    #[must_use]
    pub(crate) fn number(&self, path: &[&str]) -> Option<u64> {
        path.iter().try_fold(&self.data, |value, key| value.get(key))?.as_u64()
    }
}

/// Parses a line; `None` if it is not a message.
#[must_use]
pub(crate) fn parse(line: &[u8]) -> Option<Message> {
    let Value::Object(mut object) = serde_json::from_slice(line).ok()? else { return None };
    let id = object.get("id").and_then(Value::as_u64);
    if object.contains_key("QMP") {
        return Some(Message::Greeting);
    }
    if let Some(value) = object.remove("return") {
        return id.map(|id| Message::Return(id, value));
    }
    if let Some(error) = object.remove("error") {
        let description = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
        return Some(Message::Error(id, description.to_owned()));
    }
    let name = object.get("event")?.as_str()?.to_owned();
    Some(Message::Event(Event { name, data: object.remove("data").unwrap_or(Value::Null) }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_parsed() {
        let check = |line: &str, want: Option<Message>| assert_eq!(parse(line.as_bytes()), want, "{line}");
        check(r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}"#, Some(Message::Greeting));
        check(r#"{"return": {"status": "running"}, "id": 3}"#, Some(Message::Return(3, json!({"status": "running"}))));
        let refused = Message::Error(Some(4), "Device 'd9' not found".to_owned());
        check(r#"{"id": 4, "error": {"class": "DeviceNotFound", "desc": "Device 'd9' not found"}}"#, Some(refused));
        let invalid = Message::Error(None, "JSON parse error, Missing value in dict".to_owned());
        check(r#"{"error": {"class": "GenericError", "desc": "JSON parse error, Missing value in dict"}}"#, Some(invalid));
        check(r#"{"return": {}}"#, None);
        check(r#"{"unexpected": 1}"#, None);
        check("[1]", None);
        check("", None);
    }

    #[test]
    fn event_data_is_read_by_path() {
        let line = br#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "ACPI_DEVICE_OST",
            "data": {"info": {"device": "slice0", "source": 3, "status": 132, "slot": "0", "slot-type": "DIMM"}}}"#;
        let Some(Message::Event(event)) = parse(line) else { panic!("an event") };
        assert_eq!((event.name.as_str(), event.text(&["info", "device"])), ("ACPI_DEVICE_OST", Some("slice0")));
        assert_eq!((event.number(&["info", "source"]), event.number(&["info", "status"])), (Some(3), Some(132)));
        assert_eq!((event.text(&["device"]), event.number(&["info", "slot"])), (None, None));
    }

    #[test]
    fn truncated_lines_are_not_messages() {
        let line = br#"{"id": 4, "error": {"class": "DeviceNotFound", "desc": "Device 'd9' not found"}}"#;
        for end in 0..line.len() {
            assert_eq!(parse(&line[..end]), None, "cut at {end}");
        }
    }
}
