//! UDP source ports of a plane, and their text form.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use spindrift_pmd::udp::SourcePorts;

/// So many, chosen by the kernel, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourcePortSet {
    Count(usize),
    /// From the first to the last.
    Range(u16, u16),
}

impl SourcePortSet {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Range(first, last) => usize::from(last - first) + 1,
        }
    }
}

impl FromStr for SourcePortSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is neither a number of ports nor a range of them; write 32, or 50000-50031");
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
        match text.split_once('-') {
            None => text.trim().parse().map(Self::Count).map_err(|_| wrong()),
            Some((first, last)) => match (number(first)?, number(last)?) {
                (0, _) => Err(format!("`{text}`: there is no port 0")),
                (first, last) if first > last => Err(format!("`{text}`: the first port is above the last")),
                (first, last) => Ok(Self::Range(first, last)),
            },
        }
    }
}

impl Display for SourcePortSet {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Range(first, last) => write!(f, "{first}-{last}"),
        }
    }
}

impl From<SourcePortSet> for SourcePorts {
    fn from(set: SourcePortSet) -> Self {
        match set {
            SourcePortSet::Count(count) => Self::Count(count),
            SourcePortSet::Range(first, last) => Self::List((first..=last).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_a_range() {
        for (text, set, len) in [
            ("32", SourcePortSet::Count(32), 32),
            ("50000-50031", SourcePortSet::Range(50_000, 50_031), 32),
            ("7-7", SourcePortSet::Range(7, 7), 1),
            ("1-65535", SourcePortSet::Range(1, 65_535), 65_535),
        ] {
            assert_eq!(text.parse(), Ok(set));
            assert_eq!((set.to_string(), set.len()), (text.to_owned(), len));
        }
        assert_eq!(SourcePorts::from(SourcePortSet::Range(8, 10)), SourcePorts::List(vec![8, 9, 10]));
        for text in ["", "-", "5-", "-5", "9-8", "0-4", "1-65536", "a", "1-2-3"] {
            assert!(text.parse::<SourcePortSet>().is_err_and(|error| error.contains(text)), "{text}");
        }
    }
}
