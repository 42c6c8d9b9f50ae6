//! The last line of a lease: `# crc64 0123456789abcdef`, over all bytes before it.

use super::error::LeaseError;

const LABEL: &str = "# crc64 ";

/// ECMA-182's polynomial, most significant bit first.
const POLYNOMIAL: u64 = 0x42f0_e1eb_a9ea_3693;

const TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = (byte as u64) << 56;
        let mut bit = 0;
        while bit < 8 {
            let carry = rest >> 63 == 1;
            rest <<= 1;
            if carry {
                rest ^= POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// Starts from all ones, so that zero bytes put in front are noticed.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(u64::MAX, |crc, byte| {
        let [top, ..] = crc.to_be_bytes();
        (crc << 8) ^ TABLE[usize::from(top ^ byte)]
    })
}

/// The body with its checksum line.
pub(super) fn seal(mut body: String) -> String {
    let sum = crc64(body.as_bytes());
    body.push_str(&format!("{LABEL}{sum:016x}\n"));
    body
}

/// The body of a sealed text.
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
