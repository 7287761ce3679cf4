//! Faults of a link, and their text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::rules::QUEUE;
use crate::units::{format_rate, parse_duration, parse_rate};

/// One thing that is wrong with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkFault {
    pub(super) action: Action,
    /// Which way; both without it.
    pub(super) dir: Option<Dir>,
    /// To which packets; to all without it.
    pub(super) packets: Option<Packets>,
    /// With a rate: the wait beyond which packets that can be marked are. XDP switches do that.
    pub(super) mark: Option<Duration>,
    /// With a rate: the wait beyond which packets that may be trimmed are. XDP switches do that.
    pub(super) trim: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// No end has a carrier.
    Down,
    /// Packets are lost, and no end can tell.
    Blackhole,
    /// Packets are lost by chance.
    Loss(Chance),
    /// Packets that can be marked are, by chance.
    Ecn(Chance),
    /// Bits per second.
    Rate(u64),
}

/// In millionths, 1 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chance(pub(crate) u32);

impl Chance {
    pub(super) const ALWAYS: Self = Self(1_000_000);

    /// 0 to 1.
    pub(super) fn share(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dir {
    /// From the lower to the upper end: away from the hosts.
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packets {
    /// Those of an entropy value: its upper half is the UDP source port, its lower half is in the flow label.
    Ev(u32),
    /// Those of a UDP source port.
    Port(u16),
}

const ACTIONS: &str = "down, blackhole, loss=P%, ecn=P%, rate=R";
const SELECTORS: &str = "dir=up, dir=down, ev=EV, sport=PORT, and with a rate mark=TIME, trim=TIME";

impl LinkFault {
    /// Whether the switches' packet filters see to it.
    pub(super) fn is_filter(&self) -> bool {
        matches!(self.action, Action::Blackhole | Action::Loss(_) | Action::Ecn(_))
    }

    /// The directions that it is about.
    pub(super) fn dirs(&self) -> impl Iterator<Item = Dir> {
        let only = self.dir;
        [Dir::Up, Dir::Down].into_iter().filter(move |&dir| only.is_none_or(|only| only == dir))
    }
}

impl FromStr for LinkFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut action, mut dir, mut packets, mut mark, mut trim) = (None, None, None, None, None);
        for (piece, name, value) in pieces(text) {
            let bad = |why: String| format!("`{piece}`: {why}");
            match name {
                "dir" => put(&mut dir, parse_dir(value)).map_err(bad)?,
                "mark" => put(&mut mark, parse_wait(name, value)).map_err(bad)?,
                "trim" => put(&mut trim, parse_wait(name, value)).map_err(bad)?,
                "ev" | "sport" => put(&mut packets, parse_packets(name, value)).map_err(bad)?,
                _ => put(&mut action, parse_action(name, value)).map_err(bad)?,
            }
        }
        let action = action.ok_or_else(|| format!("`{text}` has no action; add one of {ACTIONS}"))?;
        if action == Action::Down && (dir.is_some() || packets.is_some()) {
            return Err(format!(
                "`{text}`: down affects the whole link; use blackhole for some packets or for one direction"
            ));
        }
        if matches!(action, Action::Rate(_)) && packets.is_some() {
            return Err(format!("`{text}`: rate affects all packets; leave out ev and sport"));
        }
        for (name, time) in [("mark", mark), ("trim", trim)] {
            if time.is_some() && !matches!(action, Action::Rate(_)) {
                return Err(format!("`{text}`: {name} needs a rate; write rate=R,{name}=TIME"));
            }
        }
        if let (Some(mark), Some(trim)) = (mark, trim)
            && trim <= mark
        {
            return Err(format!("`{text}`: trim={trim:?} must be longer than mark={mark:?}"));
        }
        Ok(Self { action, dir, packets, mark, trim })
    }
}

/// The pieces of a fault between its commas: each whole, its name, and the value behind `=`.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    text.split(',').map(str::trim).map(|piece| match piece.split_once('=') {
        Some((name, value)) => (piece, name.trim(), Some(value.trim())),
        None => (piece, piece, None),
    })
}

/// Keeps a value that was not given yet.
pub(crate) fn put<T>(place: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    match place.replace(value?) {
        None => Ok(()),
        Some(_) => Err("given twice; write two faults".to_owned()),
    }
}

fn parse_action(name: &str, value: Option<&str>) -> Result<Action, String> {
    match (name, value) {
        ("down", None) => Ok(Action::Down),
        ("blackhole", None) => Ok(Action::Blackhole),
        ("loss", Some(chance)) => parse_chance(chance).map(Action::Loss),
        ("ecn", Some(chance)) => parse_chance(chance).map(Action::Ecn),
        ("rate", Some(rate)) => parse_rate(rate).map(Action::Rate),
        ("down" | "blackhole", Some(_)) => Err(format!("{name} takes no value")),
        ("loss" | "ecn", None) => Err(format!("write a chance, as in {name}=5%")),
        ("rate", None) => Err("write bits per second, as in rate=100M".to_owned()),
        ("", None) => Err("a part between commas is empty".to_owned()),
        _ => Err(format!("unknown; actions are {ACTIONS}; selectors are {SELECTORS}")),
    }
}

pub(crate) fn parse_dir(value: Option<&str>) -> Result<Dir, String> {
    match value {
        Some("up") => Ok(Dir::Up),
        Some("down") => Ok(Dir::Down),
        _ => Err("write dir=up (away from the hosts) or dir=down".to_owned()),
    }
}

/// How long packets wait before something is done with them.
fn parse_wait(name: &str, value: Option<&str>) -> Result<Duration, String> {
    let wait = parse_duration(value.unwrap_or_default())?;
    if wait < QUEUE {
        Ok(wait)
    } else {
        Err(format!("{name} must be shorter than {QUEUE:?}, after which packets are lost"))
    }
}

fn parse_packets(name: &str, value: Option<&str>) -> Result<Packets, String> {
    let value = value.unwrap_or_default();
    if name == "ev" {
        crate::units::parse_ev(value).map(Packets::Ev)
    } else {
        let port = value.parse().map_err(|_| "write a UDP port, 0 to 65535, as in sport=49152".to_owned());
        port.map(Packets::Port)
    }
}

/// The same spellings as in the faults of ports.
pub(crate) fn parse_chance(text: &str) -> Result<Chance, String> {
    let percent = text.strip_suffix('%');
    let value = percent.unwrap_or(text).trim().parse::<f64>();
    let value = value.map_err(|_| format!("\"{text}\" is not a probability; write 1% or 0.01"))?;
    if percent.is_none() && value >= 1.0 {
        return Err(format!("\"{text}\" is ambiguous; write {text}% or 100%"));
    }
    let millionths = value * if percent.is_some() { 1e4 } else { 1e6 };
    if (0.999_999..=1e6).contains(&millionths) {
        Ok(Chance(millionths.round() as u32))
    } else {
        Err(format!("{text} is outside 0.0001% to 100%"))
    }
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Down => f.write_str("down")?,
            Action::Blackhole => f.write_str("blackhole")?,
            Action::Loss(chance) => write!(f, "loss={chance}")?,
            Action::Ecn(chance) => write!(f, "ecn={chance}")?,
            Action::Rate(rate) => write!(f, "rate={}", format_rate(rate))?,
        }
        for (name, wait) in [("mark", self.mark), ("trim", self.trim)] {
            if let Some(wait) = wait {
                write!(f, ",{name}={}", humantime::format_duration(wait).to_string().replace(' ', ""))?;
            }
        }
        if let Some(dir) = self.dir {
            write!(f, ",dir={dir}")?;
        }
        match self.packets {
            Some(Packets::Ev(ev)) => write!(f, ",ev={ev:#010x}"),
            Some(Packets::Port(port)) => write!(f, ",sport={port}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
        })
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_understood_and_written_as_it_is_read() {
        let fault = |action, dir, packets| LinkFault { action, dir, packets, mark: None, trim: None };
        let marked = |rate, mark| LinkFault { mark: Some(mark), ..fault(Action::Rate(rate), None, None) };
        let loss = |millionths| Action::Loss(Chance(millionths));
        for (text, expected, written) in [
            ("down", fault(Action::Down, None, None), "down"),
            ("blackhole", fault(Action::Blackhole, None, None), "blackhole"),
            ("loss=5%", fault(loss(50_000), None, None), "loss=5%"),
            ("loss=0.05", fault(loss(50_000), None, None), "loss=5%"),
            ("loss=0.0001%", fault(loss(1), None, None), "loss=0.0001%"),
            ("loss=100%", fault(loss(1_000_000), None, None), "loss=100%"),
            (
                "dir=up, ecn = 12.5%",
                fault(Action::Ecn(Chance(125_000)), Some(Dir::Up), None),
                "ecn=12.5%,dir=up",
            ),
            (
                "blackhole,dir=down,ev=0x40000000",
                fault(Action::Blackhole, Some(Dir::Down), Some(Packets::Ev(1 << 30))),
                "blackhole,dir=down,ev=0x40000000",
            ),
            ("loss=2%,sport=0", fault(loss(20_000), None, Some(Packets::Port(0))), "loss=2%,sport=0"),
            ("rate=100M", fault(Action::Rate(100_000_000), None, None), "rate=100Mbit"),
            (
                "rate=1.5Gbit,dir=up",
                fault(Action::Rate(1_500_000_000), Some(Dir::Up), None),
                "rate=1500Mbit,dir=up",
            ),
            ("rate=64000", fault(Action::Rate(64_000), None, None), "rate=64kbit"),
            ("rate=64001bit/s", fault(Action::Rate(64_001), None, None), "rate=64001bit"),
            (
                "rate=1G,mark=500us",
                marked(1_000_000_000, Duration::from_micros(500)),
                "rate=1Gbit,mark=500us",
            ),
            (
                "mark=0.0015,rate=1M",
                marked(1_000_000, Duration::from_micros(1500)),
                "rate=1Mbit,mark=1ms500us",
            ),
            (
                "trim=2ms,rate=1M,mark=1ms,dir=down",
                LinkFault {
                    dir: Some(Dir::Down),
                    trim: Some(Duration::from_millis(2)),
                    ..marked(1_000_000, Duration::from_millis(1))
                },
                "rate=1Mbit,mark=1ms,trim=2ms,dir=down",
            ),
            ("rate=1000Gbit", fault(Action::Rate(1_000_000_000_000), None, None), "rate=1000Gbit"),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
            assert_eq!((expected.to_string().as_str(), written.parse()), (written, Ok(expected)));
        }
    }

    #[test]
    fn errors_name_the_piece_and_the_fix() {
        for (text, parts) in [
            ("", ["", "comma"]),
            ("down,", ["``", "comma"]),
            ("up", ["`up`", "blackhole, loss=P%"]),
            ("down=1", ["`down=1`", "no value"]),
            ("loss", ["`loss`", "loss=5%"]),
            ("loss=5", ["`loss=5`", "write 5% or 100%"]),
            ("loss=0%", ["0%", "outside"]),
            ("loss=0.00009%", ["0.00009%", "outside"]),
            ("loss=101%", ["101%", "outside"]),
            ("loss=-1%", ["-1%", "outside"]),
            ("ecn=NaN%", ["NaN%", "outside"]),
            ("ecn=often", ["often", "1% or 0.01"]),
            ("rate", ["`rate`", "rate=100M"]),
            ("rate=63999", ["63999", "64kbit"]),
            ("rate=1001G", ["1001G", "1000Gbit"]),
            ("rate=5T", ["5T", "1.5Gbit"]),
            ("rate=fast", ["fast", "100M"]),
            ("rate=inf", ["inf", "100M"]),
            ("rate=1M,mark", ["`mark`", "300ms"]),
            ("rate=1M,mark=0", ["`mark=0`", "300ms"]),
            ("rate=1M,mark=10ms", ["`mark=10ms`", "shorter than 10ms"]),
            ("ecn=1%,mark=1ms", ["ecn=1%,mark=1ms", "rate=R,mark=TIME"]),
            ("rate=1M,trim=10ms", ["`trim=10ms`", "trim must be shorter"]),
            ("rate=1M,trim", ["`trim`", "300ms"]),
            ("blackhole,trim=1ms", ["blackhole,trim=1ms", "rate=R,trim=TIME"]),
            (
                "rate=1M,mark=1ms,trim=1ms",
                ["rate=1M,mark=1ms,trim=1ms", "trim=1ms must be longer than mark=1ms"],
            ),
            ("rate=1M,trim=1ms,trim=2ms", ["`trim=2ms`", "two faults"]),
            ("loss=1%,dir=left", ["`dir=left`", "dir=up"]),
            ("loss=1%,ev=x", ["`ev=x`", "0x80000000"]),
            ("loss=1%,sport=65536", ["`sport=65536`", "65535"]),
            ("loss=1%,ev=1,sport=1", ["`sport=1`", "two faults"]),
            ("loss=1%,ecn=1%", ["`ecn=1%`", "two faults"]),
            ("dir=up", ["`dir=up`", "add one of"]),
            ("down,dir=up", ["down,dir=up", "blackhole"]),
            ("down,sport=1", ["down,sport=1", "blackhole"]),
            ("rate=1M,ev=1", ["rate=1M,ev=1", "leave out"]),
        ] {
            let error = text.parse::<LinkFault>().unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }

    #[test]
    fn directions_are_both_unless_one_is_given() {
        let dirs = |text: &str| text.parse::<LinkFault>().unwrap().dirs().collect::<Vec<_>>();
        assert_eq!(dirs("blackhole"), [Dir::Up, Dir::Down]);
        assert_eq!(dirs("blackhole,dir=up"), [Dir::Up]);
        assert_eq!(dirs("blackhole,dir=down"), [Dir::Down]);
    }
}
