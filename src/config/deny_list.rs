//! The paths that a host avoids.

use core::fmt;
use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use spindrift_srv6::{EvProfile, F3216, Segments};

use crate::path::{MAX_PLANES, PlaneSet};
use crate::wire::Ev;

/// An entry of a [`DenyList`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "deny", rename_all = "snake_case", deny_unknown_fields)]
pub enum DenyRule {
    /// A plane of this host.
    Plane {
        /// Its number.
        plane: u8,
    },
    /// A port of other hosts: the plane to queue pairs there that has this address.
    Peer {
        /// The address.
        address: IpAddr,
    },
    /// Entropy values whose bits in `mask` are those of `value`.
    Ev {
        /// The bits.
        value: u32,
        /// Which of them count.
        mask: u32,
        /// The plane; all if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plane: Option<u8>,
    },
    /// Source-routed paths that visit these uSIDs in this order, perhaps with others between them.
    Path {
        /// The plane.
        plane: u8,
        /// The uSIDs, 1 to [`DenyRule::MAX_USIDS`].
        usids: Vec<u16>,
    },
}

/// A deny list cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DenyListError {
    /// It is too long.
    #[error("{0} rules: at most {max}", max = DenyList::MAX_RULES)]
    Rules(usize),
    /// There is no such plane.
    #[error("plane {0}: at most {last}", last = MAX_PLANES - 1)]
    Plane(u8),
    /// A path has no or too many uSIDs.
    #[error("a path with {0} uSIDs: must be 1 to {max}", max = DenyRule::MAX_USIDS)]
    Usids(usize),
    /// Bits of the value are not in the mask, so that no entropy value fits.
    #[error("entropy value {value:#x} with mask {mask:#x}: all bits of the value must be in the mask")]
    Mask {
        /// The value.
        value: u32,
        /// The mask.
        mask: u32,
    },
}

/// Paths that the queue pairs of a host avoid as far as they can: see
/// [`Paths::follow_deny_list`](crate::path::Paths::follow_deny_list).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenyList {
    planes: u32,
    peers: BTreeSet<IpAddr>,
    evs: Vec<(Option<u8>, u32, u32)>,
    paths: Vec<(u8, Vec<u16>)>,
}

impl DenyRule {
    /// uSIDs of a path, at most: as many as a path can have.
    pub const MAX_USIDS: usize = Segments::CAPACITY * F3216::CAPACITY;
}

/// What the operator reads.
impl fmt::Display for DenyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plane { plane } => write!(f, "plane {plane}"),
            Self::Peer { address } => write!(f, "peer address {address}"),
            Self::Ev { value, mask, plane } => {
                write!(f, "entropy values {value:#x}")?;
                if *mask != u32::MAX {
                    write!(f, " in the bits {mask:#x}")?;
                }
                plane.map_or(Ok(()), |plane| write!(f, " of plane {plane}"))
            }
            Self::Path { plane, usids } => {
                write!(f, "paths of plane {plane} over ")?;
                usids.iter().try_fold("", |comma, usid| write!(f, "{comma}{usid:04x}").map(|()| ":"))?;
                Ok(())
            }
        }
    }
}

impl DenyList {
    /// Rules of a list, at most: each is compared with each entropy value of a queue pair.
    pub const MAX_RULES: usize = 1024;

    /// The list of these rules; repeated ones count once.
    ///
    /// # Errors
    /// The rule that cannot be, and what it may be.
    pub fn new<'a>(rules: impl IntoIterator<Item = &'a DenyRule>) -> Result<Self, DenyListError> {
        let rules: BTreeSet<_> = rules.into_iter().collect();
        if rules.len() > Self::MAX_RULES {
            return Err(DenyListError::Rules(rules.len()));
        }
        let checked =
            |plane: u8| if plane < MAX_PLANES { Ok(plane) } else { Err(DenyListError::Plane(plane)) };
        let mut list = Self::default();
        for rule in rules {
            match *rule {
                DenyRule::Plane { plane } => list.planes |= 1 << checked(plane)?,
                DenyRule::Peer { address } => _ = list.peers.insert(address.to_canonical()),
                DenyRule::Ev { value, mask, .. } if value & !mask != 0 => {
                    return Err(DenyListError::Mask { value, mask });
                }
                DenyRule::Ev { value, mask, plane } => {
                    list.evs.push((plane.map(checked).transpose()?, value, mask));
                }
                DenyRule::Path { plane, ref usids } => {
                    if usids.is_empty() || usids.len() > DenyRule::MAX_USIDS {
                        return Err(DenyListError::Usids(usids.len()));
                    }
                    list.paths.push((checked(plane)?, usids.clone()));
                }
            }
        }
        Ok(list)
    }

    /// Whether nothing is on the list.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The list for a NIC that has some of the planes, which have these numbers here.
    #[must_use]
    pub fn of_planes(&self, planes: &[u8]) -> Self {
        let own = |plane: u8| planes.iter().zip(0..).find(|(of, _)| **of == plane).map(|(_, own)| own);
        let listed = planes.iter().zip(0_u8..).filter(|(plane, _)| PlaneSet(self.planes).contains(**plane));
        let evs = self.evs.iter().filter_map(|&(plane, value, mask)| match plane {
            None => Some((None, value, mask)),
            Some(plane) => Some((Some(own(plane)?), value, mask)),
        });
        let paths = self.paths.iter().filter_map(|(plane, usids)| Some((own(*plane)?, usids.clone())));
        Self {
            planes: listed.fold(0, |mask, (_, own)| mask | 1_u32.checked_shl(own.into()).unwrap_or(0)),
            peers: self.peers.clone(),
            evs: evs.collect(),
            paths: paths.collect(),
        }
    }

    /// Whether a whole plane to a peer with this address there, if it is known, is on the list.
    pub fn denies_plane(&self, plane: u8, peer: Option<IpAddr>) -> bool {
        PlaneSet(self.planes).contains(plane)
            || peer.is_some_and(|address| self.peers.contains(&address.to_canonical()))
    }

    /// Whether an entropy value of a plane is on the list, whose path is by this profile if it is source-routed.
    pub fn denies_ev(&self, plane: u8, ev: Ev, profile: Option<&EvProfile>) -> bool {
        let of_plane = |of: Option<u8>| of.is_none_or(|of| of == plane);
        if self.evs.iter().any(|&(of, value, mask)| of_plane(of) && ev.0 & mask == value) {
            return true;
        }
        let mut paths = self.paths.iter().filter(|(of, _)| *of == plane).peekable();
        let Some(profile) = profile.filter(|_| paths.peek().is_some()) else { return false };
        let visited = usids(&profile.expand(ev.0));
        paths.any(|(_, wanted)| visits(&visited, wanted))
    }
}

/// The uSIDs of a path, in the order of its travel.
fn usids(segments: &Segments) -> Vec<u16> {
    let addresses = core::iter::once(segments.destination()).chain(segments.later().iter().copied());
    let carriers = addresses.filter_map(|address| F3216::try_from(address).ok());
    carriers.flat_map(F3216::usids).collect()
}

/// Whether `wanted` are among `visited`, in the same order.
fn visits(visited: &[u16], wanted: &[u16]) -> bool {
    let mut visited = visited.iter();
    wanted.iter().all(|usid| visited.any(|other| other == usid))
}

#[cfg(test)]
mod tests {
    use spindrift_srv6::Field;

    use super::*;

    fn list(rules: &[DenyRule]) -> DenyList {
        DenyList::new(rules).unwrap()
    }

    #[test]
    fn usids_are_visited_in_order() {
        let visited = [1, 2, 3, 2];
        for wanted in [&[1][..], &[3], &[1, 2], &[1, 3], &[2, 2], &[1, 2, 3, 2]] {
            assert!(visits(&visited, wanted), "{wanted:?}");
        }
        for wanted in [&[4][..], &[3, 1], &[1, 1], &[2, 2, 2], &[3, 3]] {
            assert!(!visits(&visited, wanted), "{wanted:?}");
        }
    }

    #[test]
    fn planes_and_peers() {
        let address = "10.0.0.1".parse().unwrap();
        let denied = list(&[DenyRule::Plane { plane: 31 }, DenyRule::Peer { address }]);
        assert!(denied.denies_plane(31, None) && !denied.denies_plane(30, None));
        assert!(denied.denies_plane(0, Some(address)) && !denied.denies_plane(0, "10.0.0.2".parse().ok()));
        assert!(denied.denies_plane(0, "::ffff:10.0.0.1".parse().ok()), "the same address");
        assert!(!denied.denies_ev(31, Ev(1), None), "that is of the plane");
    }

    #[test]
    fn entropy_values_by_mask_and_plane() {
        let rule = |value, mask, plane| DenyRule::Ev { value, mask, plane };
        let denied = list(&[rule(0x0100, 0xff00, None), rule(7, u32::MAX, Some(2))]);
        let of = |plane| {
            [0x0100, 0x01ff, 0x1_0155, 0x0200, 7, 8].map(|value| denied.denies_ev(plane, Ev(value), None))
        };
        assert_eq!(of(0), [true, true, true, false, false, false]);
        assert_eq!(of(2), [true, true, true, false, true, false]);
        assert!(list(&[rule(0, 0, None)]).denies_ev(3, Ev(9), None), "all");
    }

    /// A path of two carriers: T0, T1 by the entropy value's low bits, T0, host; then two more.
    #[test]
    fn source_routed_paths_by_what_they_visit() {
        let fixed = |value| Field::fixed(16, value);
        let fields = [
            Field::fixed(32, 0x5f00_0000),
            fixed(0x0a01),
            Field::low_bits(16, 0x0b00, 2),
            fixed(0x0a02),
            fixed(0x0c01),
            fixed(0),
            fixed(0),
            Field::fixed(32, 0x5f00_0000),
            fixed(0x0d01),
        ];
        let format = [&[32_u8][..], &[16; 6], &[32], &[16; 6]].concat();
        let fields = [&fields[..], &[fixed(0); 5]].concat();
        let profile = EvProfile::new(&format, &fields).unwrap();
        let path = |plane, usids: &[u16]| list(&[DenyRule::Path { plane, usids: usids.to_vec() }]);
        let of = |denied: &DenyList, plane| {
            [0, 1, 2].map(|n| denied.denies_ev(plane, Ev(profile.nth(n).unwrap()), Some(&profile)))
        };
        assert_eq!(of(&path(1, &[0x0b01]), 1), [false, true, false]);
        assert_eq!(of(&path(1, &[0x0b01]), 0), [false; 3], "another plane");
        assert_eq!(of(&path(1, &[0x0a01, 0x0b02, 0x0d01]), 1), [false, false, true]);
        assert_eq!(of(&path(1, &[0x0b01, 0x0a01]), 1), [false; 3], "the other way");
        assert!(!path(1, &[0x0a01]).denies_ev(1, Ev(0), None), "not source-routed");
    }

    #[test]
    fn rules_that_cannot_be() {
        let refused = |rule| DenyList::new(&[rule]).unwrap_err();
        assert_eq!(refused(DenyRule::Plane { plane: 32 }).to_string(), "plane 32: at most 31");
        let path = |plane, count| DenyRule::Path { plane, usids: vec![1; count] };
        assert_eq!(refused(path(40, 1)), DenyListError::Plane(40));
        assert_eq!(refused(path(0, 0)).to_string(), "a path with 0 uSIDs: must be 1 to 30");
        assert_eq!(refused(path(0, 31)), DenyListError::Usids(31));
        assert!(DenyList::new(&[path(0, 30)]).is_ok());
        let ev = |value, mask, plane| DenyRule::Ev { value, mask, plane };
        assert_eq!(
            refused(ev(3, 1, None)).to_string(),
            "entropy value 0x3 with mask 0x1: all bits of the value must be in the mask"
        );
        assert_eq!(refused(ev(1, 1, Some(32))), DenyListError::Plane(32));
        let many =
            |count| DenyList::new(&(0..count).map(|value| ev(value, u32::MAX, None)).collect::<Vec<_>>());
        assert_eq!(many(1025).unwrap_err().to_string(), "1025 rules: at most 1024");
        assert!(many(1024).is_ok());
        assert!(DenyList::new(&vec![ev(1, 1, None); 2000]).is_ok(), "one rule");
        assert!(list(&[]).is_empty() && !list(&[ev(0, 0, None)]).is_empty());
    }

    #[test]
    fn a_nic_with_some_of_the_planes_has_its_own_numbers() {
        let address = "10.0.0.1".parse().unwrap();
        let of = |a: u8, b: u8| {
            [
                DenyRule::Plane { plane: a },
                DenyRule::Ev { value: 1, mask: 1, plane: Some(a) },
                DenyRule::Path { plane: b, usids: vec![1] },
            ]
        };
        let of_all = [DenyRule::Peer { address }, DenyRule::Ev { value: 2, mask: 2, plane: None }];
        let whole = list(&[&of(2, 3)[..], &of_all].concat());
        assert_eq!(whole.of_planes(&[2, 3]), list(&[&of(0, 1)[..], &of_all].concat()));
        assert_eq!(whole.of_planes(&[0, 1]), list(&of_all));
        assert_eq!(whole.of_planes(&[0, 1, 2, 3]), whole);
    }

    #[test]
    fn rules_are_named() {
        let address = "10.0.0.1".parse().unwrap();
        let ev = |mask, plane| DenyRule::Ev { value: 0x12, mask, plane };
        let usids = vec![0x0a01, 0xb];
        let names = [
            DenyRule::Plane { plane: 1 },
            DenyRule::Peer { address },
            ev(u32::MAX, None),
            ev(0xff, Some(3)),
            DenyRule::Path { plane: 2, usids },
        ]
        .map(|rule| rule.to_string());
        assert_eq!(
            names,
            [
                "plane 1",
                "peer address 10.0.0.1",
                "entropy values 0x12",
                "entropy values 0x12 in the bits 0xff of plane 3",
                "paths of plane 2 over 0a01:000b"
            ]
        );
    }
}
