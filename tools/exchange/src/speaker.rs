//! What a peer speaks whose first bytes are no message of the exchange: people point browsers and other tools at a set-up
//! port, and this side at other servers.

/// First bytes that are looked at.
pub(super) const OPENING_LEN: usize = 64;
/// Bytes of an unknown protocol that are quoted.
const QUOTED: usize = 16;

/// Names the protocol that begins so.
pub(super) fn speaker(opening: &[u8]) -> String {
    known(opening).map_or_else(
        || {
            let quoted = opening.get(..QUOTED).unwrap_or(opening).escape_ascii();
            format!("an unknown protocol (it begins with \"{quoted}\")")
        },
        str::to_owned,
    )
}

/// The protocol that begins so, if its first bytes are known.
pub(super) fn known(opening: &[u8]) -> Option<&'static str> {
    const HTTP: [&[u8]; 9] =
        [b"GET ", b"POST", b"PUT ", b"HEAD", b"HTTP", b"OPTI", b"DELE", b"CONN", b"PRI "];
    match opening {
        [b'S', b'S', b'H', b'-', ..] => Some("SSH"),
        // Alert, handshake.
        [0x15 | 0x16, 3, ..] => Some("TLS"),
        _ if HTTP.iter().any(|start| opening.starts_with(start)) => Some("HTTP"),
        // The state after the cookie and then an error, or a server that is busy.
        [9, 0xfe, ..] | [0xff] => Some("iperf3"),
        _ if is_perftest(opening) => Some("perftest (ib_write_bw and its kin)"),
        _ if is_iperf3_cookie(opening) => Some("iperf3"),
        _ => None,
    }
}

/// A version such as `6.20` in 16 bytes, or addresses such as `0000:0048:..` in hexadecimal.
fn is_perftest(opening: &[u8]) -> bool {
    let version = matches!(opening, [major, b'.', minor @ ..]
        if major.is_ascii_digit() && minor.first().is_some_and(u8::is_ascii_digit)
            && minor.iter().find(|byte| !byte.is_ascii_digit()).is_none_or(|end| matches!(end, 0 | b'.')));
    let fields = opening.get(..4).is_some_and(|field| field.iter().all(u8::is_ascii_hexdigit));
    version || (fields && opening.get(4).is_none_or(|end| *end == b':'))
}

/// 36 letters and digits of base 32, and a zero.
fn is_iperf3_cookie(opening: &[u8]) -> bool {
    let of_cookie = |byte: &u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    matches!(opening.get(..37), Some([cookie @ .., 0]) if cookie.iter().all(of_cookie))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_known_by_their_first_bytes() {
        let cases: [(&[u8], &str); 21] = [
            (b"GET / HTTP/1.1\r\n", "HTTP"),
            (b"POST /x HTTP/1.1\r\n", "HTTP"),
            (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
            (b"PRI * HTTP/2.0\r\n", "HTTP"),
            (b"CONNECT a:1 HTTP/1.1\r\n", "HTTP"),
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", "SSH"),
            (&[0x16, 3, 1, 2, 0, 1], "TLS"),
            (&[0x15, 3, 3, 0, 2, 2, 70], "TLS"),
            (b"6.20\0\0\0\0\0\0\0\0\0\0\0\0", "perftest"),
            (b"5.96\0", "perftest"),
            (b"6.2", "perftest"),
            (b"0000:0048:00b8b6:6d0bd8:00000000:0000000000000000", "perftest"),
            (b"0000", "perftest"),
            (b"abcdefghijklmnopqrstuvwxyz234567abcd\0", "iperf3"),
            (&[9, 0xfe, 0, 0, 0, 0x8d], "iperf3"),
            (&[0xff], "iperf3"),
            (b"220 mail.example ESMTP\r\n", "an unknown protocol (it begins with \"220 mail.example\")"),
            (b"\x7f\x1b[2J\"", "an unknown protocol (it begins with \"\\x7f\\x1b[2J\\\"\")"),
            (b"abcdefghijklmnopqrstuvwxyz234567abcd!", "an unknown protocol"),
            (b"6.x", "an unknown protocol"),
            (b"0000;", "an unknown protocol"),
        ];
        for (opening, name) in cases {
            let found = speaker(opening);
            assert!(found.starts_with(name), "{}: {found}", opening.escape_ascii());
            assert_eq!(known(opening).is_none(), name.starts_with("an unknown"), "{found}");
        }
    }
}
