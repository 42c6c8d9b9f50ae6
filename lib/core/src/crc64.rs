//! A CRC of 64 bits. It detects accidental changes, not forgeries.

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

/// The CRC starts with all bits set, so that leading zero bytes change it.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(u64::MAX, |crc, byte| {
        let [top, ..] = crc.to_be_bytes();
        (crc << 8) ^ TABLE[usize::from(top ^ byte)]
    })
}
