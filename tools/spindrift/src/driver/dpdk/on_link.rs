//! A port's own address, and the prefix of its link.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// Lengths of the prefix where none is written.
const USUAL_V4: u8 = 24;
const USUAL_V6: u8 = 64;

/// An address with the length of its prefix: addresses that begin with the same bits are on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnLink {
    pub(crate) address: IpAddr,
    pub(crate) prefix_len: u8,
}

impl FromStr for OnLink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
        let wrong =
            || format!("`{text}` is not an address with a prefix length, as in fd00::1/64 or 10.0.0.1/24");
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (usual, most) = if address.is_ipv4() { (USUAL_V4, 32) } else { (USUAL_V6, 128) };
        let prefix_len = len.map_or(Ok(usual), str::parse).map_err(|_| wrong())?;
        if prefix_len > most {
            return Err(wrong());
        }
        Ok(Self { address, prefix_len })
    }
}

impl fmt::Display for OnLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

impl<'de> Deserialize<'de> for OnLink {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_may_be_left_out() {
        let read = |text: &str| text.parse::<OnLink>().map(|on_link| on_link.to_string());
        for (text, means) in [
            ("fd00::1", "fd00::1/64"),
            ("10.0.0.1", "10.0.0.1/24"),
            ("fd00::1/128", "fd00::1/128"),
            ("10.0.0.1/0", "10.0.0.1/0"),
        ] {
            assert_eq!(read(text).unwrap(), means);
        }
        for bad in ["", "eth0", "fd00::1/129", "10.0.0.1/33", "10.0.0.1/", "10.0.0.1/x", "fd00::1/64/1"] {
            assert!(read(bad).unwrap_err().contains(&format!("`{bad}`")), "{bad}");
        }
    }
}
