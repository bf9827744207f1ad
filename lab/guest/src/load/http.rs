//! HTTP/1.1 for a server of static files: values are files, read by GET and stored by PUT.

use super::codec::{Codec, Malformed, Reply, first_line, malformed, value_length};

/// The codec for HTTP/1.1.
pub(super) struct Http;

/// Limit of a reply's head, in bytes.
const HEAD_BYTES_MAX: usize = 8192;
const HEAD_END: &[u8] = b"\r\n\r\n";

impl Codec for Http {
    fn get(&self, out: &mut Vec<u8>, key: &str) {
        out.extend_from_slice(format!("GET /{key} HTTP/1.1\r\nHost: lab\r\n\r\n").as_bytes());
    }

    fn set(&self, out: &mut Vec<u8>, key: &str, value: &[u8]) {
        out.extend_from_slice(format!("PUT /{key} HTTP/1.1\r\nHost: lab\r\nContent-Length: {}\r\n\r\n", value.len()).as_bytes());
        out.extend_from_slice(value);
    }

    fn reply(&self, input: &[u8]) -> Result<Option<(usize, Reply)>, Malformed> {
        let Some(line) = first_line(input)? else { return Ok(None) };
        let status = line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3)).ok_or_else(|| malformed(input))?;
        let head = input.get(..HEAD_BYTES_MAX).unwrap_or(input);
        let head = match head.windows(HEAD_END.len()).position(|window| window == HEAD_END) {
            Some(end) => &input[..end + HEAD_END.len()],
            None if input.len() < HEAD_BYTES_MAX => return Ok(None),
            None => return Err(malformed(input)),
        };
        let body_bytes = if status == b"204" { 0 } else { content_length(head).ok_or_else(|| malformed(input))? };
        if input.len() < head.len() + body_bytes {
            return Ok(None);
        }
        let reply = match status {
            b"200" => Reply::Value(body_bytes),
            b"201" | b"204" => Reply::Stored,
            b"404" => Reply::Miss,
            _ => Reply::Refused(String::from_utf8_lossy(line).into_owned()),
        };
        Ok(Some((head.len() + body_bytes, reply)))
    }
}

/// Returns the body's length from the head of a reply.
fn content_length(head: &[u8]) -> Option<usize> {
    head.split(|&byte| byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(b"content-length:".len())?;
        name.eq_ignore_ascii_case(b"content-length:").then(|| value_length(value.trim_ascii()))?
    })
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::check_reply;
    use super::*;

    #[test]
    fn requests() {
        let mut out = Vec::new();
        Http.get(&mut out, "key1");
        Http.set(&mut out, "k", b"a\r\nb");
        let expected = "GET /key1 HTTP/1.1\r\nHost: lab\r\n\r\nPUT /k HTTP/1.1\r\nHost: lab\r\nContent-Length: 4\r\n\r\na\r\nb";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn replies() {
        for (input, expected) in [
            ("HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\nETag: \"1\"\r\n\r\nab\r\nc", Reply::Value(5)),
            ("HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", Reply::Value(0)),
            ("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", Reply::Stored),
            ("HTTP/1.1 204 No Content\r\n\r\n", Reply::Stored),
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n", Reply::Miss),
            ("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", Reply::Refused("HTTP/1.1 413 Too Large".into())),
        ] {
            check_reply(&Http, input, Some(expected));
        }
        for bad in [
            "\r\n\r\n",
            "hello\r\n\r\n",
            "HTTP/1.1 20\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        ] {
            check_reply(&Http, bad, None);
        }
        check_reply(&Http, &format!("HTTP/1.1 200 OK\r\n{}", "X: y\r\n".repeat(2000)), None);
    }
}
