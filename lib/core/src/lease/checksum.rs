//! The last line of a lease: `# crc64 0123456789abcdef`, over all bytes before it.

use super::error::LeaseError;
use crate::crc64::crc64;

const LABEL: &str = "# crc64 ";

/// Adds the line with the checksum to a body.
pub(super) fn seal(mut body: String) -> String {
    let sum = crc64(body.as_bytes());
    body.push_str(&format!("{LABEL}{sum:016x}\n"));
    body
}

/// The body of a text with a checksum line.
pub(super) fn open(text: &str) -> Result<&str, LeaseError> {
    let line_length = LABEL.len() + 17;
    let split = text
        .len()
        .checked_sub(line_length)
        .ok_or(LeaseError::Torn)?;
    let (body, line) = text.split_at_checked(split).ok_or(LeaseError::Torn)?;
    let sum = line
        .strip_prefix(LABEL)
        .and_then(|rest| rest.strip_suffix('\n'))
        .ok_or(LeaseError::Torn)?;
    if sum == format!("{:016x}", crc64(body.as_bytes())) {
        Ok(body)
    } else {
        Err(LeaseError::Checksum)
    }
}
