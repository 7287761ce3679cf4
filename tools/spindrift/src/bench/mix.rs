//! Which operation each message of a run is.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum as _;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use spindrift::verbs::{Access, Extensions};

use super::operation::{Operation, Verb};

/// One operation, or several by weight. The numbers of a message and of its queue pair decide on its operation, so that both
/// sides know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Mix {
    One(Operation),
    Several(Weights),
}

/// Of each operation, in the order of [`Operation::ALL`]. At least two are not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weights([u16; Operation::ALL.len()]);

impl Weights {
    const MAX: u16 = 1000;

    fn iter(&self) -> impl Iterator<Item = (Operation, u16)> {
        Operation::ALL.into_iter().zip(self.0).filter(|(_, weight)| *weight > 0)
    }

    fn draw(&self, seed: u64, qp: usize, number: u64) -> Operation {
        let start = seed ^ (qp as u64 + 1).rotate_left(48) ^ number;
        let total: u64 = self.0.iter().map(|&weight| u64::from(weight)).sum();
        let mut drawn = SplitMix64::seed_from_u64(start).next_u64() % total.max(1);
        for (operation, weight) in Operation::ALL.into_iter().zip(self.0) {
            match drawn.checked_sub(weight.into()) {
                Some(rest) => drawn = rest,
                None => return operation,
            }
        }
        Operation::Write
    }
}

impl Mix {
    /// The operation, if all messages have the same.
    pub(crate) const fn only(self) -> Option<Operation> {
        match self {
            Self::One(operation) => Some(operation),
            Self::Several(_) => None,
        }
    }

    /// The operation of a message.
    #[inline]
    pub(crate) fn operation(&self, seed: u64, qp: usize, number: u64) -> Operation {
        match self {
            Self::One(operation) => *operation,
            Self::Several(weights) => weights.draw(seed, qp, number),
        }
    }

    fn all(self) -> Vec<Operation> {
        match self {
            Self::One(operation) => vec![operation],
            Self::Several(weights) => weights.iter().map(|(operation, _)| operation).collect(),
        }
    }

    /// Whether there is an operation of this kind.
    pub(crate) fn any(self, is: impl Fn(Operation) -> bool) -> bool {
        match self {
            Self::One(operation) => is(operation),
            Self::Several(weights) => weights.iter().any(|(operation, _)| is(operation)),
        }
    }

    pub(crate) fn takes_receive(self) -> bool {
        self.any(Operation::takes_receive)
    }

    pub(crate) fn has_atomics(self) -> bool {
        self.any(Operation::is_atomic)
    }

    pub(crate) fn has_fetches(self) -> bool {
        self.any(Operation::is_fetch)
    }

    pub(crate) fn has_reads(self) -> bool {
        self.any(|operation| operation == Operation::Read)
    }

    /// Whether messages leave their bytes at the other side.
    pub(crate) fn has_bytes_there(self) -> bool {
        self.any(|operation| !operation.is_fetch())
    }

    pub(crate) fn verb(self) -> Verb {
        self.only().map_or(Verb::Mix, Operation::verb)
    }

    /// Several of them, in messages.
    pub(crate) fn plural(self) -> &'static str {
        self.only().map_or("operations", Operation::plural)
    }

    /// What is run, in the first line of the output.
    pub(crate) fn words(self) -> String {
        match self {
            Self::One(operation) => operation.plural().to_owned(),
            Self::Several(_) => format!("a mix of operations ({self})"),
        }
    }

    /// The extensions of MRC that both sides need.
    pub(crate) fn extensions(self) -> Extensions {
        self.all().into_iter().fold(Extensions::NONE, |all, operation| all | operation.extensions())
    }

    /// The rights of the memory that bytes come from, and of that where they go to.
    pub(crate) fn access(self) -> [Access; 2] {
        let all = self.all().into_iter().map(Operation::access);
        all.fold([Access::LOCAL_READ; 2], |[from, to], [more_from, more_to]| [from | more_from, to | more_to])
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(operation) => f.write_str(operation.name()),
            Self::Several(weights) => {
                weights.iter().enumerate().try_for_each(|(index, (operation, weight))| {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{}={weight}", operation.name())
                })
            }
        }
    }
}

impl From<Mix> for String {
    fn from(mix: Mix) -> Self {
        mix.to_string()
    }
}

impl TryFrom<String> for Mix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(operation) = Operation::from_str(text, false) {
            return Ok(Self::One(operation));
        }
        let mut weights = [0; Operation::ALL.len()];
        for part in text.split(',') {
            let Some((name, weight)) = part.split_once('=') else {
                return Err(format!("`{part}` has no weight; write it as in write=60,send=20,read=20"));
            };
            let operation = Operation::from_str(name, false).map_err(|_| {
                let names = Operation::ALL.map(Operation::name).join(", ");
                format!("there is no operation `{name}`; give some of {names}")
            })?;
            let weight = weight.parse().ok().filter(|weight| (1..=Weights::MAX).contains(weight));
            let weight = weight.ok_or_else(|| format!("the weight of {name}: give 1 to {}", Weights::MAX))?;
            let place = Operation::ALL.into_iter().position(|known| known == operation);
            let Some(place) = place.and_then(|place| weights.get_mut(place)) else { continue };
            if *place > 0 {
                return Err(format!("{name} is listed twice; give it one weight"));
            }
            *place = weight;
        }
        let weights = Weights(weights);
        let mut given = weights.iter();
        match (given.next(), given.next()) {
            (Some((only, _)), None) => Ok(Self::One(only)),
            _ => Ok(Self::Several(weights)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn mix(text: &str) -> Mix {
        text.parse().unwrap()
    }

    #[test]
    fn texts_are_read_as_they_are_written() {
        for text in
            ["write", "compare-swap", "write=60,send=20,read=20", "write=1,write-imm=1000,fetch-add=7"]
        {
            assert_eq!(mix(text).to_string(), text);
            let json = format!("\"{text}\"");
            assert_eq!(serde_json::to_string(&mix(text)).unwrap(), json);
            assert_eq!(serde_json::from_str::<Mix>(&json).unwrap(), mix(text));
        }
        assert_eq!(mix("read=20,write=60"), mix("write=60,read=20"));
        assert_eq!(mix("send=5"), Mix::One(Operation::Send));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, part) in [
            ("", "`` has no weight"),
            ("write,send", "`write` has no weight"),
            ("write=60,", "`` has no weight"),
            ("write=60,push=20", "no operation `push`; give some of write, write-imm, send, "),
            ("write=60,send=0", "weight of send: give 1 to 1000"),
            ("write=1001,send=1", "weight of write: give 1 to 1000"),
            ("write=-1,send=1", "weight of write: give"),
            ("write=0.5,send=1", "weight of write: give"),
            ("write=60,send=20,write=20", "write is listed twice"),
        ] {
            let error = text.parse::<Mix>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Each operation has its share; another queue pair, seed or number draws others.
    #[test]
    fn operations_come_by_their_weights() {
        let all = mix("write=50,send=30,read=15,fetch-add=5");
        let drawn = |seed, qp| (0..10_000).map(move |number| all.operation(seed, qp, number));
        for (operation, share) in [
            (Operation::Write, 5000),
            (Operation::Send, 3000),
            (Operation::Read, 1500),
            (Operation::FetchAdd, 500),
            (Operation::CompareSwap, 0),
        ] {
            let count = drawn(1, 0).filter(|&drawn| drawn == operation).count();
            assert!(count.abs_diff(share) <= share / 5, "{operation}: {count}");
        }
        let same = |a: (u64, usize), b: (u64, usize)| drawn(a.0, a.1).eq(drawn(b.0, b.1));
        assert!(same((1, 0), (1, 0)) && !same((1, 0), (1, 1)) && !same((1, 0), (2, 0)));
        let only = mix("read");
        assert!((0..100).all(|number| only.operation(1, 0, number) == Operation::Read));
    }

    #[test]
    fn a_mix_needs_what_any_of_its_operations_needs() {
        let all = mix("write=1,send-imm=1,read=1,fetch-add=1");
        assert_eq!(
            all.extensions(),
            Extensions::SEND | Extensions::RNR | Extensions::READ | Extensions::ATOMIC
        );
        let [from, to] = all.access();
        assert_eq!(from, Access::LOCAL_READ | Access::REMOTE_READ);
        let wanted = Access::REMOTE_WRITE | Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::LOCAL_READ;
        assert_eq!(to | Access::LOCAL_READ, wanted);
        assert!(all.takes_receive() && all.has_atomics() && all.has_fetches() && all.has_reads());
        let some = mix("write=1,compare-swap=1");
        assert!(!some.takes_receive() && some.has_bytes_there() && some.has_fetches() && !some.has_reads());
        assert!(!mix("read=1,compare-swap=1").has_bytes_there());
        assert_eq!((all.verb(), mix("send").verb()), (Verb::Mix, Verb::Send));
    }
}
