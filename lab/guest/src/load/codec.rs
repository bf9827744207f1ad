//! What the two protocols have in common: requests to write, replies to recognise.

/// A reply without its data, which the load does not keep.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    /// A value of this many bytes.
    Value(usize),
    /// The key is not stored.
    Miss,
    /// The value was stored.
    Stored,
    /// The server refused, in its own words.
    Refused(String),
}

/// Bytes that are no reply of the protocol; the connection is of no further use.
#[derive(Debug, PartialEq)]
pub(super) struct Malformed(pub(super) String);

/// A request-reply protocol in which replies come in the order of the requests.
pub(super) trait Codec {
    /// Appends a request for the value of `key`.
    fn get(&self, out: &mut Vec<u8>, key: &str);

    /// Appends a request to store `value` under `key`.
    fn set(&self, out: &mut Vec<u8>, key: &str, value: &[u8]);

    /// Recognises the reply that `input` starts with: its length in bytes and what it says,
    /// or `None` as long as it is not complete.
    ///
    /// # Errors
    /// [`Malformed`] when no continuation of `input` would be a reply.
    fn reply(&self, input: &[u8]) -> Result<Option<(usize, Reply)>, Malformed>;
}

/// Longest first line of a reply, and largest value, in bytes; far above what the loads store.
const LINE_BYTES_MAX: usize = 1024;
const VALUE_BYTES_MAX: usize = 1 << 20;

/// The first line of `input`, without its CRLF, or `None` when it is not complete.
pub(super) fn first_line(input: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    match input.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n') {
        Some(end) if end > 0 && input[end - 1] == b'\r' => Ok(Some(&input[..end - 1])),
        None if input.len() < LINE_BYTES_MAX => Ok(None),
        _ => Err(malformed(input)),
    }
}

/// A value's length as a protocol writes it.
pub(super) fn value_length(text: &[u8]) -> Option<usize> {
    let length = std::str::from_utf8(text).ok()?.parse().ok()?;
    (length <= VALUE_BYTES_MAX).then_some(length)
}

/// The error about `input`, which shows where it starts.
pub(super) fn malformed(input: &[u8]) -> Malformed {
    let start = &input[..input.len().min(60)];
    Malformed(format!("the server sent what is no reply: {:?}", String::from_utf8_lossy(start)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks that `input` is exactly one reply that says `expected`, and incomplete at every shorter length;
    /// with no expectation, that it is malformed.
    pub(in crate::load) fn check_reply(codec: &dyn Codec, input: &str, expected: Option<Reply>) {
        let bytes = input.as_bytes();
        let Some(expected) = expected else {
            assert!(codec.reply(bytes).is_err(), "{input:?}");
            return;
        };
        for cut in 0..bytes.len() {
            assert_eq!(codec.reply(&bytes[..cut]), Ok(None), "{input:?} cut at {cut}");
        }
        let followed = [bytes, b"$-1\r\nEND\r\n"].concat();
        assert_eq!(codec.reply(&followed), Ok(Some((bytes.len(), expected))), "{input:?}");
    }
}
