//! A second implementation of the leases' checksum, bit by bit. Without a right checksum nearly no changed lease
//! would be read.

/// A body with its checksum line, as in a lease file.
pub(crate) fn sealed(body: &str) -> String {
    format!("{body}# crc64 {:016x}\n", crc64(body.as_bytes()))
}

/// CRC-64 of ECMA-182, starting with all bits set.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(u64::MAX, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte) << 56, |rest, _| {
            let polynomial = if rest >> 63 == 1 { 0x42f0_e1eb_a9ea_3693 } else { 0 };
            (rest << 1) ^ polynomial
        })
    })
}
