//! RESP2, the Redis protocol.

use super::codec::{Codec, Malformed, Reply, first_line, malformed, value};

/// The codec for RESP2.
pub(super) struct Redis;

impl Codec for Redis {
    fn get(&self, out: &mut Vec<u8>, key: &str) {
        out.extend_from_slice(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).as_bytes());
    }

    fn set(&self, out: &mut Vec<u8>, key: &str, value: &[u8]) {
        let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn reply(&self, input: &[u8]) -> Result<Option<(usize, Reply)>, Malformed> {
        let Some(line) = first_line(input)? else { return Ok(None) };
        let line_end = line.len() + 2;
        match line.split_first() {
            Some((b'$', b"-1")) => Ok(Some((line_end, Reply::Miss))),
            Some((b'$', length)) => value(input, line_end, length, b"\r\n"),
            Some((b'+', b"OK")) => Ok(Some((line_end, Reply::Stored))),
            Some((b'-', text)) => Ok(Some((line_end, Reply::Refused(String::from_utf8_lossy(text).into_owned())))),
            _ => Err(malformed(input)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::check_reply;
    use super::*;

    #[test]
    fn requests() {
        let mut out = Vec::new();
        Redis.get(&mut out, "key1");
        Redis.set(&mut out, "k", b"a\r\nb");
        assert_eq!(String::from_utf8(out).unwrap(), "*2\r\n$3\r\nGET\r\n$4\r\nkey1\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n");
    }

    #[test]
    fn replies() {
        check_reply(&Redis, "$5\r\nab\r\nc\r\n", Some(Reply::Value(5)));
        check_reply(&Redis, "$0\r\n\r\n", Some(Reply::Value(0)));
        check_reply(&Redis, "$-1\r\n", Some(Reply::Miss));
        check_reply(&Redis, "+OK\r\n", Some(Reply::Stored));
        check_reply(&Redis, "-OOM over maxmemory\r\n", Some(Reply::Refused("OOM over maxmemory".into())));
        for bad in ["\r\n", "\n", "hello\r\n", "$x\r\n", "$-2\r\n", "$99999999999999999999\r\n", "$1048577\r\n", "$1\r\nabc", "+OK\n"] {
            check_reply(&Redis, bad, None);
        }
        check_reply(&Redis, &"-".repeat(2000), None);
    }
}
