//! Lists of entropy values for each plane, and their text form.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use spindrift::wire::Ev;

use crate::units::parse_ev;

/// What stands between the lists of two planes.
const PLANE_BREAK: char = '/';

/// One list for all planes, or one for each. No list is empty or has a value twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EvLists(Vec<Vec<u32>>);

impl EvLists {
    fn new(lists: Vec<Vec<u32>>) -> Result<Self, String> {
        if lists.is_empty() {
            return Err("no entropy value is listed; give one or more, or leave the list out".to_owned());
        }
        for list in &lists {
            if list.is_empty() {
                return Err("a plane has no entropy value; list at least one for each".to_owned());
            }
            let mut seen = list.iter().enumerate();
            if let Some((_, ev)) = seen.find(|&(at, ev)| list.iter().take(at).any(|other| other == ev)) {
                return Err(format!("{ev:#x} is listed twice; give each entropy value of a plane once"));
            }
        }
        Ok(Self(lists))
    }

    /// How many lists there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Most values of a plane.
    pub(crate) fn longest(&self) -> usize {
        self.0.iter().map(Vec::len).max().unwrap_or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flatten().copied()
    }

    /// The lists of these planes alone.
    pub(crate) fn only(&self, planes: &[usize]) -> Self {
        match self.0.as_slice() {
            [_] => self.clone(),
            lists => Self(planes.iter().filter_map(|&plane| lists.get(plane).cloned()).collect()),
        }
    }

    /// The values of each of so many planes.
    pub(crate) fn of_planes(&self, planes: u8) -> Arc<[Vec<Ev>]> {
        let lists = self.0.iter().map(|list| list.iter().copied().map(Ev).collect());
        match self.0.as_slice() {
            [_] => lists.cycle().take(planes.into()).collect(),
            _ => lists.collect(),
        }
    }
}

impl FromStr for EvLists {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let list = |text: &str| text.split(',').map(|ev| parse_ev(ev.trim())).collect();
        Self::new(text.split(PLANE_BREAK).map(list).collect::<Result<_, _>>()?)
    }
}

/// As it is given to `--evs`.
impl Display for EvLists {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (plane, list) in self.0.iter().enumerate() {
            if plane > 0 {
                write!(f, "{PLANE_BREAK}")?;
            }
            for (at, ev) in list.iter().enumerate() {
                write!(f, "{}{ev:#x}", if at > 0 { "," } else { "" })?;
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for EvLists {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "give a list of entropy values of 32 bits, as in [0x0, 0x40000000], or such a list for each plane"
        )]
        enum Lists {
            Same(Vec<u32>),
            Each(Vec<Vec<u32>>),
        }

        let lists = match Lists::deserialize(input)? {
            Lists::Same(list) if list.is_empty() => Vec::new(),
            Lists::Same(list) => vec![list],
            Lists::Each(lists) => lists,
        };
        Self::new(lists).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn one_list_or_one_for_each_plane() {
        let same: EvLists = "0x0, 1,0x40000000".parse().unwrap();
        assert_eq!((same.len(), same.longest(), same.to_string()), (1, 3, "0x0,0x1,0x40000000".to_owned()));
        let list = vec![Ev(0), Ev(1), Ev(0x4000_0000)];
        assert_eq!(*same.of_planes(2), [list.clone(), list]);
        let each: EvLists = "5/0xffffffff,5".parse().unwrap();
        assert_eq!((each.len(), each.longest(), each.to_string()), (2, 2, "0x5/0xffffffff,0x5".to_owned()));
        assert_eq!(*each.of_planes(2), [vec![Ev(5)], vec![Ev(u32::MAX), Ev(5)]]);
        assert_eq!(each.iter().collect::<Vec<_>>(), [5, u32::MAX, 5]);
        for lists in [same, each] {
            assert_eq!(lists.to_string().parse(), Ok(lists));
        }
    }

    #[test]
    fn what_is_no_list_is_named() {
        for (text, part) in [
            ("", "``"),
            ("1,", "``"),
            ("1/", "``"),
            ("0x", "`0x`"),
            ("1,x,2", "`x`"),
            ("0x100000000", "`0x100000000`"),
            ("1-4", "`1-4`"),
            ("7,0x8,8", "0x8 is listed twice"),
            ("1/2,3,2", "0x2 is listed twice"),
        ] {
            assert!(text.parse::<EvLists>().is_err_and(|error| error.contains(part)), "{text}");
        }
    }

    #[test]
    fn a_file_has_numbers() {
        let read = |text: &str| {
            toml::from_str::<Config>(text).map(|config| config.path.evs).map_err(|error| error.to_string())
        };
        assert_eq!(read("path.evs = [0x0, 3]"), Ok(Some("0,3".parse().unwrap())));
        assert_eq!(read("path.evs = [[1], [2, 3]]"), Ok(Some("1/2,3".parse().unwrap())));
        for (text, part) in [
            ("path.evs = []", "no entropy value is listed"),
            ("path.evs = [[]]", "a plane has no entropy value"),
            ("path.evs = [[1], []]", "a plane has no entropy value"),
            ("path.evs = [1, 1]", "0x1 is listed twice"),
            ("path.evs = [0x100000000]", "32 bits"),
            ("path.evs = [-1]", "32 bits"),
            ("path.evs = 1", "list of entropy values"),
            ("path.evs = [\"1\"]", "list of entropy values"),
        ] {
            assert!(read(text).is_err_and(|error| error.contains(part)), "{text}");
        }
    }
}
