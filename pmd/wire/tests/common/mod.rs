//! What several tests of the wire formats use: hexadecimal, and a second iCRC that shares nothing with the first.

#[allow(dead_code, reason = "not every test that shares this file reads hexadecimal")]
/// Bytes from hexadecimal digits; white space is skipped.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap()).collect();
    assert_eq!(digits.len() % 2, 0, "odd number of digits");
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// The iCRC of `l3` (IP header to the last byte before the iCRC), bit by bit and from a masked copy.
///
/// Where the transport uses the reflected form of the CRC, this one divides in the order of the bits on the wire.
pub(crate) fn reference_icrc(l3: &[u8]) -> [u8; 4] {
    let mut covered = vec![0xff; 8];
    covered.extend_from_slice(l3);
    let ip = &mut covered[8..];
    let udp = if ip[0] >> 4 == 6 {
        ip[0] = 0x6f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
        40
    } else {
        ip[1] = 0xff;
        ip[8] = 0xff;
        ip[10..12].fill(0xff);
        20
    };
    ip[udp + 6..udp + 8].fill(0xff);
    ip[udp + 12] = 0xff;

    let mut remainder = u32::MAX;
    for byte in covered {
        for bit in 0..8 {
            let out = (remainder >> 31) ^ u32::from(byte >> bit & 1);
            remainder = (remainder << 1) ^ (0x04c1_1db7 * out);
        }
    }
    // The lowest byte of the reflected value goes first: that is the first eight bits of the remainder, mirrored.
    (!remainder).reverse_bits().to_le_bytes()
}
