//! Parsing of fields that several formats share.

use units::Bytes;

pub(super) const KIB: f64 = 1024.0;
pub(super) const MIB: f64 = 1024.0 * KIB;
pub(super) const GIB: f64 = 1024.0 * MIB;

/// Returns a field of a row.
pub(super) fn field(row: &[String], at: usize) -> Result<&str, String> {
    row.get(at).map(String::as_str).ok_or_else(|| format!("the row has {} fields, which is too few", row.len()))
}

/// Parses a number. The error names the field.
pub(super) fn number<T: std::str::FromStr>(name: &str, field: &str) -> Result<T, String> {
    field.parse().map_err(|_| format!("{name} is {:?}, which is not a valid number", shortened(field)))
}

/// Parses an amount of memory in units of `unit` bytes and returns whole bytes.
pub(super) fn memory(name: &str, field: &str, unit: f64) -> Result<Bytes, String> {
    let amount: f64 = number(name, field)?;
    bytes_of(amount, unit).ok_or_else(|| format!("{name} is {:?}; it must be above 0 and below 1 PiB", shortened(field)))
}

/// Converts an amount to whole bytes. Returns `None` if it is out of range.
pub(super) fn bytes_of(amount: f64, unit: f64) -> Option<Bytes> {
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let most = crate::vm::MEMORY_MAX.0 as f64;
    let bytes = libm::round(amount * unit);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
    (bytes >= 1.0 && bytes <= most).then_some(Bytes(bytes as u64))
}

fn shortened(field: &str) -> String {
    field.chars().take(40).collect()
}
