//! Which agents live, as far as their reports tell: the set among which links are shared.

use std::collections::BTreeMap;

/// The agents that report, and those that did a short time ago.
///
/// All agents see the same reports, so their sets agree but for moments. An agent counts as gone when it has not reported for a time: one that misses a
/// report keeps its links. While nothing is known about the others, as the store of reports is away, the set stays as it is.
#[derive(Clone, Debug)]
pub struct LiveAgents {
    own: u16,
    gone_ns: u64,
    /// When each other agent reported last.
    seen: BTreeMap<u16, u64>,
    updated_ns: u64,
    /// What the last change led to, in order.
    live: Option<Vec<u16>>,
}

impl LiveAgents {
    /// Nothing is known yet of the others. An agent is gone that has not reported for `gone_ns`.
    pub const fn new(own: u16, gone_ns: u64) -> Self {
        Self { own, gone_ns, seen: BTreeMap::new(), updated_ns: 0, live: None }
    }

    /// The agents that live, the own one among them, in order; `None` while nothing was known yet, which stands for all hosts.
    pub fn live(&self) -> Option<&[u16]> {
        self.live.as_deref()
    }

    /// These other agents report now; call it at least four times in `gone_ns` while that is known. Returns whether [`live`](Self::live) changed.
    pub fn update(&mut self, now_ns: u64, reporting: impl IntoIterator<Item = u16>) -> bool {
        // Nobody could tell who reported meanwhile.
        let away_ns = now_ns.saturating_sub(self.updated_ns);
        if away_ns > self.gone_ns / 2 {
            self.seen.values_mut().for_each(|at_ns| *at_ns += away_ns);
        }
        self.updated_ns = now_ns;
        self.seen.extend(reporting.into_iter().map(|host| (host, now_ns)));
        let gone_ns = self.gone_ns;
        self.seen.retain(|_, at_ns| now_ns.saturating_sub(*at_ns) <= gone_ns);
        let mut live: Vec<u16> = self.seen.keys().copied().filter(|&host| host != self.own).collect();
        live.push(self.own);
        live.sort_unstable();
        let changed = self.live.as_ref() != Some(&live);
        self.live = Some(live);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_gone_after_the_time_without_a_report() {
        let mut agents = LiveAgents::new(3, 1_000);
        assert_eq!(agents.live(), None);
        assert!(agents.update(0, []));
        assert_eq!(agents.live(), Some(&[3][..]));
        assert!(agents.update(100, [7, 1]));
        assert!(!agents.update(200, [1, 7, 3]), "the own report is nothing new");
        assert_eq!(agents.live(), Some(&[1, 3, 7][..]));
        // Agent 7 misses reports.
        for now_ns in [600, 1_000, 1_200] {
            assert!(!agents.update(now_ns, [1]), "{now_ns}");
        }
        assert!(agents.update(1_201, [1]));
        assert_eq!(agents.live(), Some(&[1, 3][..]));
        assert!(agents.update(1_300, [7, 1]));
        assert_eq!(agents.live(), Some(&[1, 3, 7][..]));
    }

    /// While the store is away nobody is gone; those that do not come back with it are, after the time.
    #[test]
    fn what_is_not_known_changes_nothing() {
        let mut agents = LiveAgents::new(0, 1_000);
        agents.update(0, [1, 2]);
        assert!(!agents.update(50_000, [1]));
        assert!(!agents.update(50_500, [1]));
        assert!(!agents.update(51_000, [1]));
        assert!(agents.update(51_001, [1]), "50,000 when it is back, and the time");
        assert_eq!(agents.live(), Some(&[0, 1][..]));
    }
}
