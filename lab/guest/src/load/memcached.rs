//! The memcached text protocol.

use super::codec::{Codec, Malformed, Reply, first_line, malformed, value};

/// The codec for the text protocol.
pub(super) struct Memcached;

/// End of a reply with a value: its line break and the end of the (single) result.
const VALUE_END: &[u8] = b"\r\nEND\r\n";

impl Codec for Memcached {
    fn get(&self, out: &mut Vec<u8>, key: &str) {
        out.extend_from_slice(format!("get {key}\r\n").as_bytes());
    }

    fn set(&self, out: &mut Vec<u8>, key: &str, value: &[u8]) {
        out.extend_from_slice(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn reply(&self, input: &[u8]) -> Result<Option<(usize, Reply)>, Malformed> {
        let Some(line) = first_line(input)? else { return Ok(None) };
        let line_end = line.len() + 2;
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        match words[..] {
            // VALUE <key> <flags> <bytes>
            [b"VALUE", _, _, length] => value(input, line_end, length, VALUE_END),
            [b"END"] => Ok(Some((line_end, Reply::Miss))),
            [b"STORED"] => Ok(Some((line_end, Reply::Stored))),
            [b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" | b"NOT_STORED", ..] => {
                Ok(Some((line_end, Reply::Refused(String::from_utf8_lossy(line).into_owned()))))
            }
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
        Memcached.get(&mut out, "key1");
        Memcached.set(&mut out, "k", b"a\r\nb");
        assert_eq!(String::from_utf8(out).unwrap(), "get key1\r\nset k 0 0 4\r\na\r\nb\r\n");
    }

    #[test]
    fn replies() {
        check_reply(&Memcached, "VALUE k 0 5\r\nab\r\nc\r\nEND\r\n", Some(Reply::Value(5)));
        check_reply(&Memcached, "END\r\n", Some(Reply::Miss));
        check_reply(&Memcached, "STORED\r\n", Some(Reply::Stored));
        for refusal in ["ERROR", "NOT_STORED", "SERVER_ERROR out of memory storing object"] {
            check_reply(&Memcached, &format!("{refusal}\r\n"), Some(Reply::Refused(refusal.into())));
        }
        for bad in ["\r\n", "hello\r\n", "VALUE k 0\r\n", "VALUE k 0 -1\r\n", "VALUE k 0 x\r\n", "VALUE k 0 1\r\nabcdefghi", "END\n"] {
            check_reply(&Memcached, bad, None);
        }
        check_reply(&Memcached, &"V".repeat(2000), None);
    }
}
