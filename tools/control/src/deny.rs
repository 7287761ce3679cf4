//! The deny lists of a process: what operators and agents want its queue pairs to avoid.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use spindrift::endpoint::{DenyList, DenyListError, DenyRule};

/// Characters in the name of a source, at most.
const SOURCE_MAX: usize = 64;

/// A rule of a process, and who has set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenyEntry {
    /// Who has set it: `operator`, or an agent.
    pub source: String,
    /// What is denied.
    pub rule: DenyRule,
    /// When it ends by itself, in milliseconds from now; never if there is none.
    pub left_ms: Option<u64>,
}

/// The rules of all sources, each with its end.
#[derive(Debug, Default)]
pub(crate) struct DenyLists(BTreeMap<(String, DenyRule), Option<Instant>>);

/// They cannot be changed like this.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DenyError {
    #[error("the name of the source has {0} characters: must be 1 to {SOURCE_MAX}")]
    Source(usize),
    #[error(transparent)]
    List(#[from] DenyListError),
    #[error("{name} does not deny {rule}; `spindrift ctl status` shows what is denied")]
    NotThere { name: String, rule: DenyRule },
    #[error("the lifetime is too long")]
    Lifetime,
}

impl DenyLists {
    /// Adds rules of a source, or sets them in place of its earlier ones. Rules that are there already get the new lifetime.
    pub(crate) fn deny(
        &mut self,
        (source, replace): (&str, bool),
        rules: &[DenyRule],
        lifetime: Option<Duration>,
        now: Instant,
    ) -> Result<(), DenyError> {
        let len = source.chars().count();
        if len == 0 || len > SOURCE_MAX {
            return Err(DenyError::Source(len));
        }
        let until = lifetime.map(|lifetime| now.checked_add(lifetime).ok_or(DenyError::Lifetime));
        let until = until.transpose()?;
        let mut next = self.0.clone();
        if replace {
            next.retain(|(of, _), _| of != source);
        }
        next.extend(rules.iter().map(|rule| ((source.to_owned(), rule.clone()), until)));
        DenyList::new(next.keys().map(|(_, rule)| rule))?;
        self.0 = next;
        Ok(())
    }

    /// Removes rules of a source, or all of them if none is named.
    pub(crate) fn allow(&mut self, source: &str, rules: &[DenyRule]) -> Result<(), DenyError> {
        let mut next = self.0.clone();
        for rule in rules {
            if next.remove(&(source.to_owned(), rule.clone())).is_none() {
                return Err(DenyError::NotThere { name: source.to_owned(), rule: rule.clone() });
            }
        }
        if rules.is_empty() {
            next.retain(|(of, _), _| of != source);
        }
        self.0 = next;
        Ok(())
    }

    /// Removes the rules whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.0.retain(|_, until| until.is_none_or(|until| until > now));
    }

    /// When the next rule ends.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.0.values().flatten().min().copied()
    }

    /// All rules together.
    pub(crate) fn list(&self) -> DenyList {
        // It was checked when it was changed, and gets only shorter.
        DenyList::new(self.0.keys().map(|(_, rule)| rule)).unwrap_or_default()
    }

    pub(crate) fn entries(&self, now: Instant) -> Vec<DenyEntry> {
        let entries = self.0.iter().map(|((source, rule), until)| DenyEntry {
            source: source.clone(),
            rule: rule.clone(),
            left_ms: until.map(|until| until.saturating_duration_since(now).as_millis() as u64),
        });
        entries.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(plane: u8) -> DenyRule {
        DenyRule::Plane { plane }
    }

    fn seen(lists: &DenyLists, now: Instant) -> Vec<(String, DenyRule, Option<u64>)> {
        lists.entries(now).into_iter().map(|entry| (entry.source, entry.rule, entry.left_ms)).collect()
    }

    #[test]
    fn sources_are_apart_and_rules_end() {
        let mut lists = DenyLists::default();
        let now = Instant::now();
        let later = |ms| now + Duration::from_millis(ms);
        let life = |ms| Some(Duration::from_millis(ms));
        lists.deny(("operator", false), &[plane(1)], None, now).unwrap();
        lists.deny(("operator", false), &[plane(2)], life(500), now).unwrap();
        lists.deny(("agent h1", true), &[plane(1), plane(3)], life(100), now).unwrap();
        assert_eq!(lists.next_end(), Some(later(100)));
        lists.deny(("agent h1", true), &[plane(1)], life(200), later(10)).unwrap();
        let of = |source: &str, rule, left| (source.to_owned(), rule, left);
        assert_eq!(
            seen(&lists, later(10)),
            [
                of("agent h1", plane(1), Some(200)),
                of("operator", plane(1), None),
                of("operator", plane(2), Some(490))
            ]
        );
        assert_eq!(lists.list(), DenyList::new(&[plane(1), plane(2)]).unwrap());
        lists.expire(later(209));
        assert_eq!(seen(&lists, later(209)).len(), 3);
        lists.expire(later(210));
        assert_eq!(lists.next_end(), Some(later(500)));
        lists.expire(later(500));
        assert_eq!(seen(&lists, later(500)), [of("operator", plane(1), None)]);
        assert_eq!(lists.next_end(), None);
        // A rule that is there gets the new lifetime.
        lists.deny(("operator", false), &[plane(1)], life(1), now).unwrap();
        assert_eq!(lists.next_end(), Some(later(1)));
    }

    #[test]
    fn rules_are_allowed_by_name_or_all_of_a_source() {
        let mut lists = DenyLists::default();
        let now = Instant::now();
        for source in ["a", "b"] {
            lists.deny((source, false), &[plane(1), plane(2), plane(3)], None, now).unwrap();
        }
        lists.allow("a", &[plane(2)]).unwrap();
        let error = lists.allow("a", &[plane(1), plane(2)]).unwrap_err().to_string();
        assert_eq!(error, "a does not deny plane 2; `spindrift ctl status` shows what is denied");
        assert_eq!(seen(&lists, now).len(), 5, "all or nothing");
        lists.allow("a", &[]).unwrap();
        lists.allow("a", &[]).unwrap();
        assert!(seen(&lists, now).iter().all(|(source, ..)| source == "b"));
    }

    #[test]
    fn what_cannot_be_changes_nothing() {
        let mut lists = DenyLists::default();
        let now = Instant::now();
        lists.deny(("a", false), &[plane(1)], None, now).unwrap();
        let mut refused = |source: &str, rules: &[DenyRule], life| {
            lists.deny((source, true), rules, life, now).unwrap_err().to_string()
        };
        assert_eq!(refused("a", &[plane(2), plane(32)], None), "plane 32: at most 31");
        assert!(refused("", &[], None).contains("0 characters"));
        assert!(refused(&"x".repeat(65), &[], None).contains("1 to 64"));
        assert!(refused("a", &[], Some(Duration::MAX)).contains("too long"));
        let ev = |value| DenyRule::Ev { value, mask: u32::MAX, plane: None };
        let many: Vec<_> = (0..1024).map(ev).collect();
        assert_eq!(refused("b", &many, None), "1025 rules: at most 1024", "of all sources together");
        assert_eq!(seen(&lists, now).len(), 1);
    }
}
