//! Links that go down at random times, at a constant rate over all of them.

use std::time::Duration;

use anyhow::Result;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use serde::Deserialize;
use spindrift_srv6::{Fabric, Link, Node};

use super::fault::FaultPlan;
use super::plan::Reader;
use crate::times::Times;

/// Most flaps of a table: each is a fault of its own.
const MOST: u64 = 10_000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FlapsTable {
    links: Option<String>,
    every: Option<String>,
    r#for: Option<String>,
    from: Option<String>,
    to: Option<String>,
    action: Option<String>,
}

/// Links between two tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    HostT0,
    T0T1,
    T1T2,
}

impl Tier {
    const ALL: [(&'static str, Self); 3] =
        [("host-t0", Self::HostT0), ("t0-t1", Self::T0T1), ("t1-t2", Self::T1T2)];

    fn has(self, (lower, upper): Link) -> bool {
        match self {
            Self::HostT0 => matches!(lower, Node::Host(_)),
            Self::T0T1 => matches!((lower, upper), (Node::T0 { .. }, Node::T1 { .. })),
            Self::T1T2 => matches!(upper, Node::T2 { .. }),
        }
    }
}

impl FlapsTable {
    /// The flaps of the table with this number, in a plan of that length. Other seeds have them at other times.
    ///
    /// There are as many as the rate says, each at a time of its own that is equally likely to be any: a Poisson process of which the number of
    /// events is known.
    pub(super) fn read(
        &self,
        reader: &Reader<'_>,
        number: usize,
        fabric: &Fabric,
        (duration_ns, seed): (u64, u64),
    ) -> Result<Vec<FaultPlan>> {
        let place = format!("flaps.{number}");
        let wrong = |key: &str, why: &str| reader.wrong(&place, key, why);
        let needed = |key: &'static str, value: &Option<String>| {
            value.clone().ok_or_else(|| wrong(key, &format!("`{key}` is missing")))
        };
        let links = needed("links", &self.links)?;
        let tier = Tier::ALL.iter().find(|(name, _)| *name == links).map(|(_, tier)| *tier);
        let tier = tier
            .ok_or_else(|| wrong("links", &format!("`{links}` is no tier; write host-t0, t0-t1 or t1-t2")))?;
        let links: Vec<_> = fabric.links().filter(|link| tier.has(*link)).collect();
        if links.is_empty() {
            return Err(wrong("links", "the fabric has no such links"));
        }
        let every = reader.time(&place, "every", Some(&needed("every", &self.every)?), 0)?.max(1);
        let lasts = reader.time(&place, "for", Some(&needed("for", &self.r#for)?), 0)?;
        let from = reader.offset(&place, "from", self.from.as_ref())?;
        let to = reader.time(&place, "to", self.to.as_ref(), duration_ns)?;
        if from >= to || to > duration_ns {
            return Err(wrong(
                if self.to.is_some() { "to" } else { "from" },
                "flaps begin after `from` and before `to`, and the plan must last so long",
            ));
        }
        let count = (to - from) / every;
        if !(1..=MOST).contains(&count) {
            return Err(wrong("every", &format!("that makes {count} flaps; 1 to {MOST} are possible")));
        }
        let action = self.action.as_deref().unwrap_or("down");
        if !matches!(action, "down" | "dark") {
            return Err(wrong("action", &format!("`{action}`: a flap is down or dark")));
        }
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ (number as u64 + 1) << 48);
        let mut below = |n: u64| ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64;
        let mut flap = || {
            let (lower, upper) = links.get(below(links.len() as u64) as usize).copied()?;
            let at = Duration::from_nanos(from + below(to - from));
            Some((at, format!("{}:{}", fabric.name(lower), fabric.name(upper))))
        };
        let mut flaps: Vec<_> = (0..count).filter_map(|_| flap()).collect();
        flaps.sort();
        let lasts = Some(Duration::from_nanos(lasts));
        let fault = |(at, link): (Duration, String)| {
            let times = Times { at, lasts, ..Times::default() };
            FaultPlan::new(fabric, &link, action, times).map_err(|(key, why)| wrong(key, &why))
        };
        flaps.into_iter().map(fault).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{assert_documented, keys_of};

    #[test]
    fn every_key_is_documented() {
        assert_documented("## `sim`", "[[flaps]]", keys_of::<FlapsTable>());
    }
}
