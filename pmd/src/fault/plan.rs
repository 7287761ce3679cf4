//! Fault rules and their text form; the grammar is in the documentation of [`fault`](super).

use std::str::FromStr;

use spindrift_wire::OPCODE_NAMES;

/// Rules, applied in order to every frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The rules.
    pub rules: Vec<FaultRule>,
}

/// How likely something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chance {
    /// Out of 2^64; the value 2^64 - 1 means always.
    threshold: u64,
}

impl Chance {
    /// From a probability, brought into 0 to 1.
    pub fn new(probability: f64) -> Self {
        let threshold =
            if probability >= 1.0 { u64::MAX } else { (probability.max(0.0) * 2.0_f64.powi(64)) as u64 };
        Self { threshold }
    }

    /// Whether it happens, given a random number. Draws none if it never happens.
    pub(super) fn hits(self, draw: impl FnOnce() -> u64) -> bool {
        self.threshold != 0 && (draw() < self.threshold || self.threshold == u64::MAX)
    }
}

/// Which way frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of the port.
    Tx,
    /// Into the port.
    Rx,
}

/// How trimming is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// How likely.
    pub chance: Chance,
    /// Bytes that remain of the Ethernet frame, headers up to UDP always included.
    pub bytes: usize,
    /// DSCP that a trimmed packet carries.
    pub dscp: u8,
}

/// What one rule selects and does to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Only frames going this way.
    pub direction: Direction,
    /// Only on this plane.
    pub port: Option<usize>,
    /// Only this entropy value; up to 16 bits: the UDP source port.
    pub ev: Option<u32>,
    /// Only operation codes in one of these ranges, ends included.
    pub opcodes: Vec<(u8, u8)>,
    /// Only from this time on, in nanoseconds.
    pub from_ns: u64,
    /// Only before this time, in nanoseconds.
    pub until_ns: u64,
    /// On each port, so many of the frames that the rule selects pass first.
    pub after: u64,
    /// The link is reported down and carries nothing.
    pub down: bool,
    /// Frames vanish, the link stays up.
    pub blackhole: bool,
    /// Frames vanish by chance.
    pub loss: Chance,
    /// This host's transmit queue has no room: frames are given back by [`Port::unsent`](crate::Port::unsent).
    pub full: Chance,
    /// A frame arrives twice.
    pub duplicate: Chance,
    /// A frame is held back for so many nanoseconds, and overtaken.
    pub reorder: Option<(Chance, u64)>,
    /// One to four bits are flipped.
    pub corrupt: Chance,
    /// All frames are late by the first number of nanoseconds and up to the second more.
    pub delay: Option<(u64, u64)>,
    /// The ECN field is set to CE.
    pub ecn: Chance,
    /// The packet is cut.
    pub trim: Option<Trim>,
}

impl Default for FaultRule {
    fn default() -> Self {
        Self {
            direction: Direction::Tx,
            port: None,
            ev: None,
            opcodes: Vec::new(),
            from_ns: 0,
            until_ns: u64::MAX,
            after: 0,
            down: false,
            blackhole: false,
            loss: Chance::default(),
            full: Chance::default(),
            duplicate: Chance::default(),
            reorder: None,
            corrupt: Chance::default(),
            delay: None,
            ecn: Chance::default(),
            trim: None,
        }
    }
}

impl FaultRule {
    pub(super) fn selects_port(&self, port: usize, elapsed_ns: u64) -> bool {
        self.port.is_none_or(|p| p == port) && (self.from_ns..self.until_ns).contains(&elapsed_ns)
    }

    /// Whether the rule has to look into frames.
    pub(super) fn looks_inside(&self) -> bool {
        self.ev.is_some() || !self.opcodes.is_empty()
    }
}

/// What is wrong with the text of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault rule {rule}, \"{piece}\": {problem}")]
pub struct FaultPlanError {
    /// Number of the rule, from 1.
    pub rule: usize,
    /// The piece of text.
    pub piece: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::default();
        for (i, part) in text.split(';').enumerate().filter(|(_, part)| !part.trim().is_empty()) {
            plan.rules.push(parse_rule(i + 1, part)?);
        }
        Ok(plan)
    }
}

fn parse_rule(number: usize, text: &str) -> Result<FaultRule, FaultPlanError> {
    let error =
        |piece: &str, problem| FaultPlanError { rule: number, piece: piece.trim().to_owned(), problem };
    let mut rule = FaultRule::default();
    let mut acting = false;
    for piece in text.split(',').map(str::trim) {
        let (name, value) = match piece.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (piece, None),
        };
        acting |= !SELECTORS.contains(&name);
        set(&mut rule, name, value).map_err(|problem| error(piece, problem))?;
    }
    if !acting {
        return Err(error(text, format!("selects frames but does nothing to them; add one of {ACTIONS}")));
    }
    if rule.down && (rule.looks_inside() || rule.after > 0 || text.contains("dir=")) {
        return Err(error(
            text,
            "down takes a whole port; use blackhole with ev, opcode, after or dir".to_owned(),
        ));
    }
    if rule.full != Chance::default() && rule.direction == Direction::Rx {
        return Err(error(text, "full is about this host's transmit queue; leave out dir=rx".to_owned()));
    }
    if rule.from_ns >= rule.until_ns {
        return Err(error(text, "from is not before until".to_owned()));
    }
    Ok(rule)
}

const SELECTORS: [&str; 7] = ["port", "ev", "opcode", "from", "until", "dir", "after"];
const ACTIONS: &str = "loss, full, dup, reorder, corrupt, delay, ecn, trim, down, blackhole";

fn set(rule: &mut FaultRule, name: &str, value: Option<&str>) -> Result<(), String> {
    match (name, value) {
        ("down" | "blackhole", Some(_)) => return Err(format!("{name} takes no value")),
        ("down", None) => rule.down = true,
        ("blackhole", None) => rule.blackhole = true,
        ("loss", Some(v)) => rule.loss = chance(v)?,
        ("full", Some(v)) => rule.full = chance(v)?,
        ("dup" | "duplicate", Some(v)) => rule.duplicate = chance(v)?,
        ("corrupt", Some(v)) => rule.corrupt = chance(v)?,
        ("ecn", Some(v)) => rule.ecn = chance(v)?,
        ("reorder", Some(v)) => {
            let (p, hold) = v.split_once(':').ok_or("write a chance and a time, such as reorder=2%:50us")?;
            rule.reorder = Some((chance(p)?, duration(hold)?));
        }
        ("delay", Some(v)) => {
            let (base, jitter) = v.split_once(':').unwrap_or((v, "0ns"));
            rule.delay = Some((duration(base)?, duration(jitter)?));
        }
        ("trim", Some(v)) => rule.trim = Some(trim(v)?),
        ("port", Some(v)) => rule.port = Some(number(v)? as usize),
        ("ev", Some(v)) => rule.ev = Some(number(v)?),
        ("opcode", Some(v)) => rule.opcodes = v.split('|').map(opcode).collect::<Result<_, _>>()?,
        ("from", Some(v)) => rule.from_ns = duration(v)?,
        ("until", Some(v)) => rule.until_ns = duration(v)?,
        ("after", Some(v)) => rule.after = number(v)?.into(),
        ("dir", Some("tx")) => rule.direction = Direction::Tx,
        ("dir", Some("rx")) => rule.direction = Direction::Rx,
        ("dir", Some(_)) => return Err("use dir=tx or dir=rx".to_owned()),
        ("", None) => return Err("an empty piece; is there a comma too many?".to_owned()),
        (name, None) if SELECTORS.contains(&name) || ACTIONS.split(", ").any(|a| a == name) => {
            return Err(format!("{name} needs a value, as in {name}=.."));
        }
        (name, _) => {
            let known = SELECTORS.join(", ");
            return Err(format!("unknown word \"{name}\"; actions are {ACTIONS}; selectors are {known}"));
        }
    }
    Ok(())
}

fn chance(text: &str) -> Result<Chance, String> {
    let wrong = || format!("\"{text}\" is not a probability; write 1% or 0.01");
    let percent = text.strip_suffix('%');
    let value: f64 = percent.unwrap_or(text).trim().parse().map_err(|_| wrong())?;
    if percent.is_none() && value >= 1.0 {
        return Err(format!("\"{text}\" is ambiguous; write {text}% or 100%"));
    }
    let scale = if percent.is_some() { 100.0 } else { 1.0 };
    if !(0.0..=scale).contains(&value) {
        return Err(format!("{text} is outside 0% to 100%"));
    }
    Ok(Chance::new(value / scale))
}

fn duration(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is not a time; write 100ns, 50us, 2ms or 1.5s");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(wrong()),
    };
    let value: f64 = digits.parse().map_err(|_| wrong())?;
    if (0.0..1e9).contains(&value) { Ok((value * scale).round() as u64) } else { Err(wrong()) }
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("\"{text}\" is no number; write 49152 or 0x12340001"))
}

fn opcode(text: &str) -> Result<(u8, u8), String> {
    if let Some(&(first, last, _)) = OPCODE_NAMES.iter().find(|(_, _, name)| *name == text) {
        return Ok((first, last));
    }
    let value = number(text).ok().and_then(|n| u8::try_from(n).ok());
    value.map(|v| (v, v)).ok_or_else(|| {
        let names: Vec<_> = OPCODE_NAMES.iter().map(|(_, _, name)| *name).collect();
        format!("\"{text}\" is no operation code; write 0xca or one of {}", names.join(", "))
    })
}

fn trim(text: &str) -> Result<Trim, String> {
    let mut parts = text.split(':');
    let chance = chance(parts.next().unwrap_or_default())?;
    let bytes = parts.next().map_or(Ok(128), number)? as usize;
    let dscp = parts.next().map_or(Ok(12), number)?;
    if !(64..=9000).contains(&bytes) || dscp > 63 || parts.next().is_some() {
        return Err(
            "write trim=CHANCE:BYTES:DSCP, such as trim=1%:128:12, bytes 64 to 9000, DSCP 0 to 63".to_owned()
        );
    }
    Ok(Trim { chance, bytes, dscp: dscp as u8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> FaultRule {
        let plan: FaultPlan = text.parse().unwrap();
        assert_eq!(plan.rules.len(), 1);
        plan.rules[0].clone()
    }

    #[test]
    fn every_word_is_understood() {
        let all =
            rule("loss=1%,full=3%,dup=0.1%,reorder=2%:50us,corrupt=0.001,delay=20us:5us,ecn=5%,trim=1%");
        assert_eq!(all.loss, Chance::new(0.01));
        assert_eq!(all.full, Chance::new(0.03));
        assert_eq!(all.duplicate, Chance::new(0.001));
        assert_eq!(rule("duplicate=0.1%"), rule("dup=0.1%"));
        assert_eq!(all.reorder, Some((Chance::new(0.02), 50_000)));
        assert_eq!(all.corrupt, Chance::new(0.001));
        assert_eq!(all.delay, Some((20_000, 5_000)));
        assert_eq!(all.ecn, Chance::new(0.05));
        assert_eq!(all.trim, Some(Trim { chance: Chance::new(0.01), bytes: 128, dscp: 12 }));
        assert_eq!((all.direction, all.port, all.from_ns, all.until_ns), (Direction::Tx, None, 0, u64::MAX));

        let some = rule(
            " blackhole , port=1, ev=0x12340001, opcode=write|0xdc, from=1s, until=2.5s, dir=rx , after=7",
        );
        assert_eq!((some.port, some.ev, some.blackhole), (Some(1), Some(0x1234_0001), true));
        assert_eq!((some.after, all.after), (7, 0));
        assert_eq!(some.opcodes, [(0xc6, 0xcb), (0xdc, 0xdc)]);
        assert_eq!(
            (some.from_ns, some.until_ns, some.direction),
            (1_000_000_000, 2_500_000_000, Direction::Rx)
        );

        assert_eq!(rule("delay=100ns").delay, Some((100, 0)));
        assert_eq!(
            rule("trim=100%:256:46").trim,
            Some(Trim { chance: Chance::new(1.0), bytes: 256, dscp: 46 })
        );
        let plan: FaultPlan = "down,port=2,from=1ms,until=2ms; loss=1%;".parse().unwrap();
        assert_eq!((plan.rules.len(), plan.rules[0].down), (2, true));
        assert_eq!("".parse(), Ok(FaultPlan::default()));
        assert_eq!(rule("loss=0%").loss, Chance::default());
    }

    #[test]
    fn errors_name_the_piece_and_the_fix() {
        let cases = [
            ("loss=1%,los=2%", "rule 1, \"los=2%\": unknown word \"los\"; actions are loss"),
            ("loss=1%;dup=x", "rule 2, \"dup=x\": \"x\" is not a probability; write 1% or 0.01"),
            ("loss=1", "ambiguous; write 1% or 100%"),
            ("loss=101%", "outside 0% to 100%"),
            ("loss=-1%", "outside"),
            ("loss=NaN%", "outside"),
            ("loss", "loss needs a value"),
            ("reorder=2%", "reorder=2%:50us"),
            ("delay=20", "\"20\" is not a time; write 100ns"),
            ("delay=us", "not a time"),
            ("delay=1e99s", "not a time"),
            ("port=1", "selects frames but does nothing"),
            ("down=1", "down takes no value"),
            ("down,ev=1", "down takes a whole port"),
            ("down,after=1", "down takes a whole port"),
            ("loss=1%,after=1ms", "no number"),
            ("loss=1%,dir=up", "dir=tx or dir=rx"),
            ("full=1%,dir=rx", "leave out dir=rx"),
            ("loss=1%,ev=0xg", "no number"),
            ("loss=1%,opcode=wirte", "one of send, write, read-request"),
            ("loss=1%,opcode=256", "no operation code"),
            ("loss=1%,from=2s,until=1s", "from is not before until"),
            ("loss=1%,,dup=1%", "comma too many"),
            ("trim=1%:10", "bytes 64 to 9000"),
            ("trim=1%:128:64", "DSCP 0 to 63"),
        ];
        for (text, part) in cases {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn chances_draw_only_when_they_can_hit() {
        assert!(!Chance::new(0.0).hits(|| panic!("drawn")));
        assert!(Chance::new(1.0).hits(|| u64::MAX));
        assert!(Chance::new(0.5).hits(|| u64::MAX / 2 - 1));
        assert!(!Chance::new(0.5).hits(|| u64::MAX / 2 + 1));
    }
}
