//! Common parts of the protocols: writing requests and parsing replies.

/// A parsed reply, without the value's data.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    /// A value of this length in bytes.
    Value(usize),
    /// The key is not stored.
    Miss,
    /// The value was stored.
    Stored,
    /// The server refused the request; the text is its message.
    Refused(String),
}

/// Bytes that are no valid reply; the connection cannot be used further.
#[derive(Debug, PartialEq)]
pub(super) struct Malformed(pub(super) String);

/// A request-reply protocol in which replies come in the order of the requests.
pub(super) trait Codec {
    /// Appends a request for the value of `key`.
    fn get(&self, out: &mut Vec<u8>, key: &str);

    /// Appends a request to store `value` under `key`.
    fn set(&self, out: &mut Vec<u8>, key: &str, value: &[u8]);

    /// Parses the reply at the start of `input`: returns its length in bytes and its meaning, or `None` if it is
    /// incomplete.
    ///
    /// # Errors
    /// [`Malformed`] if no continuation of `input` could be a valid reply.
    fn reply(&self, input: &[u8]) -> Result<Option<(usize, Reply)>, Malformed>;
}

/// Limits of a reply's first line and of a value, in bytes; far above the generated values.
const LINE_BYTES_MAX: usize = 1024;
const VALUE_BYTES_MAX: usize = 1 << 20;

/// Returns the first line of `input` without its CRLF, or `None` if it is incomplete.
pub(super) fn first_line(input: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    match input.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n') {
        Some(end) if end > 0 && input[end - 1] == b'\r' => Ok(Some(&input[..end - 1])),
        None if input.len() < LINE_BYTES_MAX => Ok(None),
        _ => Err(malformed(input)),
    }
}

/// Parses the length of a value.
pub(super) fn value_length(text: &[u8]) -> Option<usize> {
    let length = std::str::from_utf8(text).ok()?.parse().ok()?;
    (length <= VALUE_BYTES_MAX).then_some(length)
}

/// Parses a value whose data starts at `start` of `input`, with the text of its length, and is followed by `terminator`.
///
/// # Errors
/// [`Malformed`] if the length is invalid or the terminator is missing.
pub(super) fn value(input: &[u8], start: usize, length: &[u8], terminator: &[u8]) -> Result<Option<(usize, Reply)>, Malformed> {
    let length = value_length(length).ok_or_else(|| malformed(input))?;
    let (data_end, end) = (start + length, start + length + terminator.len());
    match input.get(data_end..end) {
        Some(found) if found == terminator => Ok(Some((end, Reply::Value(length)))),
        Some(_) => Err(malformed(&input[data_end..])),
        None => Ok(None),
    }
}

/// Returns the error for `input`, quoting its start.
pub(super) fn malformed(input: &[u8]) -> Malformed {
    let start = &input[..input.len().min(60)];
    Malformed(format!("the server sent an invalid reply: {:?}", String::from_utf8_lossy(start)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks that `input` is exactly one reply with the meaning `expected`, and incomplete at every shorter length;
    /// without an expectation, that it is malformed.
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
