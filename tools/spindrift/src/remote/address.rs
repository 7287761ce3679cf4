//! The server's address on a client's command line, with a port or without.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A name or an address, and a TCP port if one was written behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerArg {
    pub(super) name: String,
    pub(super) port: Option<u16>,
}

impl FromStr for ServerArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, port) = split(text)?;
        let port = port.map(|port| match port.parse() {
            Ok(0) | Err(_) => Err(format!("`{port}` in `{text}` is not a TCP port; give 1 to 65535")),
            Ok(port) => Ok(port),
        });
        Ok(Self { name: name.to_owned(), port: port.transpose()? })
    }
}

/// The name and the text of the port.
fn split(text: &str) -> Result<(&str, Option<&str>), String> {
    if text.is_empty() {
        return Err("the server's address is empty; give it, or leave it out to run as the server".to_owned());
    }
    if text.contains('/') {
        return Err(format!(
            "`{text}` is not an address; give only the server's name or address, as in 10.0.0.2"
        ));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let within = rest.split_once(']').filter(|(address, _)| is_v6(address));
        return match within {
            Some((address, "")) => Ok((address, None)),
            Some((address, behind)) if behind.starts_with(':') => Ok((address, behind.get(1..))),
            _ => Err(format!("`{text}` is no IPv6 address in brackets; write it as in [::1] or [::1]:18515")),
        };
    }
    if text.parse::<IpAddr>().is_ok() || is_v6(text) {
        return Ok((text, None));
    }
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((_, port)) if port.contains(':') => Err(format!(
            "`{text}` is no IPv6 address; the port of one goes behind brackets, as in [::1]:18515"
        )),
        Some(("", _)) => Err(format!("`{text}` has no host before the port; write it as in 10.0.0.2:18515")),
        Some((name, port)) => Ok((name, Some(port))),
    }
}

/// An IPv6 address, perhaps with a zone.
fn is_v6(text: &str) -> bool {
    text.split_once('%').map_or(text, |(address, _)| address).parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_a_port() {
        for (text, name, port) in [
            ("10.0.0.2", "10.0.0.2", None),
            ("10.0.0.2:7000", "10.0.0.2", Some(7000)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[::1]:18515", "::1", Some(18_515)),
            ("[::1]:65535", "::1", Some(65_535)),
            ("node7", "node7", None),
            ("node7:1", "node7", Some(1)),
            ("node7.example.:1", "node7.example.", Some(1)),
            ("fe80::1%eth0", "fe80::1%eth0", None),
            ("[fe80::1%eth0]:7000", "fe80::1%eth0", Some(7000)),
        ] {
            assert_eq!(text.parse(), Ok(ServerArg { name: name.to_owned(), port }), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_told_how_to_write_one() {
        for (text, part) in [
            ("", "leave it out"),
            ("::1:18515", "[::1]:18515"),
            ("a:b:c", "[::1]:18515"),
            ("[::1", "[::1] or [::1]:18515"),
            ("[::1]18515", "[::1] or [::1]:18515"),
            ("[10.0.0.2]:7000", "[::1] or [::1]:18515"),
            ("[]", "[::1] or [::1]:18515"),
            ("[::1]:", "`` in `[::1]:` is not a TCP port; give 1 to 65535"),
            ("node7:", "`` in `node7:` is not a TCP port; give 1 to 65535"),
            ("node7:0", "1 to 65535"),
            ("10.0.0.2:65536", "`65536`"),
            ("node7:http", "`http`"),
            (":18515", "10.0.0.2:18515"),
            ("http://node7", "name or address, as in"),
            ("10.0.0.2/24", "name or address, as in"),
        ] {
            let error = text.parse::<ServerArg>().err().unwrap_or_default();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
    }
}
