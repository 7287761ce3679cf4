//! Addresses as GIDs.
//!
//! The table has the order that users of RoCE expect: at 0 and 1 the link-local GID, at 2 and 3 that of the address, each as RoCE v1 and as
//! RoCE v2. Many programs use the GID at 3 without a question.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The types of entries, as verbs numbers them.
pub const ROCE_V1: u32 = 1;
/// See above.
pub const ROCE_V2: u32 = 2;

/// Entries of a port's table.
pub const ENTRIES: u32 = 4;

/// The first half of a link-local GID, and the mark in its second half that an IPv4 address follows.
const LINK_LOCAL: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
const MARK: [u8; 4] = *b"\x02SPD";

/// The GID of an address.
pub fn of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address that a GID stands for: one of the table of some host.
pub fn address(gid: [u8; 16]) -> IpAddr {
    let (half, rest) = gid.split_at(8);
    if half == LINK_LOCAL
        && let Some(&[a, b, c, d]) = rest.strip_prefix(&MARK)
    {
        return Ipv4Addr::new(a, b, c, d).into();
    }
    let address = Ipv6Addr::from(gid);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// The entry of a table and its type, for a port whose first plane has this address.
pub fn entry(plane: IpAddr, index: u32) -> Option<([u8; 16], u32)> {
    let kind = if index.is_multiple_of(2) { ROCE_V1 } else { ROCE_V2 };
    match (index, plane) {
        (0 | 1, IpAddr::V4(address)) => {
            let mut gid = [0; 16];
            gid[..8].copy_from_slice(&LINK_LOCAL);
            gid[8..12].copy_from_slice(&MARK);
            gid[12..].copy_from_slice(&address.octets());
            Some((gid, kind))
        }
        (0..ENTRIES, _) => Some((of(plane), kind)),
        _ => None,
    }
}

/// The identity (EUI-64) of the device with this place among those of a host: the same in each process of the host.
pub fn guid(index: usize, planes: &[IpAddr]) -> u64 {
    let mut guid = 0x0253_5044_0000_0000_u64 | index as u64;
    if let Some(plane) = planes.first() {
        for byte in of(*plane) {
            guid = guid.rotate_left(7) ^ u64::from(byte);
        }
    }
    // Locally administered.
    guid & !(3 << 56) | 2 << 56
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn every_entry_leads_back_to_the_address() {
        for text in ["10.1.2.3", "fd00::7", "fe80::9"] {
            let plane: IpAddr = text.parse().unwrap();
            for index in 0..ENTRIES {
                let (gid, kind) = entry(plane, index).unwrap();
                assert_eq!(address(gid), plane, "{text} {index}");
                assert_eq!(kind, 1 + index % 2);
            }
            assert_eq!(entry(plane, ENTRIES), None);
        }
        // What programs that know RoCE look for at 3.
        let (gid, _) = entry("10.1.2.3".parse().unwrap(), 3).unwrap();
        assert_eq!(gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
    }
}
