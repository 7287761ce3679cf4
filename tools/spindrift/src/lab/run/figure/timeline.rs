//! State of each entropy value over time.

use std::collections::BTreeMap;

use super::super::record::Side;
use crate::bench::samples::{EvLine, StateName};
use crate::figure::{BAD, Content, DENIED, DOWN, Key, Panel, RESERVE, Row, Span, Timeline, USED};

/// Where more changed, a picture of each says less than the sums.
const MAX_ROWS: usize = 24;

/// What an entropy value is to its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Used,
    Reserve,
    Bad,
    Denied,
    /// Whatever it is otherwise.
    Down,
}

impl Role {
    const ALL: [Self; 5] = [Self::Used, Self::Reserve, Self::Bad, Self::Denied, Self::Down];

    fn of(line: &EvLine) -> Self {
        match (line.state, line.active) {
            (StateName::Good | StateName::Skip, true) => Self::Used,
            (StateName::Good | StateName::Skip, false) => Self::Reserve,
            (StateName::AssumedBad, _) => Self::Bad,
            (StateName::Denied, _) => Self::Denied,
        }
    }

    fn style(self) -> (&'static str, &'static str) {
        match self {
            Self::Used => ("in use", USED),
            Self::Reserve => ("in reserve", RESERVE),
            Self::Bad => ("assumed bad", BAD),
            Self::Denied => ("denied", DENIED),
            Self::Down => ("own port down", DOWN),
        }
    }
}

/// An entropy value over time.
#[derive(Debug, PartialEq)]
pub(super) struct Life {
    /// Queue pair, plane, and its number.
    pub(super) ev: (usize, u8, u32),
    /// From when to when it was what, in ms: ascending, without a gap.
    pub(super) spans: Vec<(f64, f64, Role)>,
}

/// The entropy values that became something else within the scenario; none if they are too many to be told apart.
pub(super) fn lives(sender: &Side, length_ms: f64) -> Vec<Life> {
    let mut changes = BTreeMap::<(usize, u8, u32), Vec<(f64, Role)>>::new();
    for (at_ms, line) in sender.evs.iter().filter(|(at_ms, _)| *at_ms < length_ms) {
        let role = Role::of(line);
        let known = changes.entry((line.queue_pair, line.plane, line.ev)).or_default();
        match known.last_mut() {
            // What it was before the scenario, or was only for a moment, does not show.
            Some(last) if last.0 >= *at_ms || *at_ms <= 0.0 => last.1 = role,
            Some(last) if last.1 == role => {}
            _ => known.push((at_ms.max(0.0), role)),
        }
    }
    changes.retain(|_, roles| roles.len() > 1);
    if changes.len() > MAX_ROWS {
        return Vec::new();
    }
    let life = |(ev, roles): ((usize, u8, u32), Vec<(f64, Role)>)| {
        let ends = roles.iter().skip(1).map(|next| next.0).chain([length_ms]);
        let spans: Vec<(f64, f64, Role)> =
            roles.iter().zip(ends).map(|(&(from, role), to)| (from, to, role)).collect();
        let downs = downs(sender, ev.1, length_ms);
        Life { ev, spans: downs.into_iter().fold(spans, |spans, down| cut(&spans, down)) }
    };
    changes.into_iter().map(life).collect()
}

/// From when to when the sender's port in a plane was down, in ms.
fn downs(sender: &Side, plane: u8, length_ms: f64) -> Vec<(f64, f64)> {
    let mut downs: Vec<(f64, f64)> = Vec::new();
    let mut was_up = true;
    for (&at_ms, sample) in sender.times_ms.iter().zip(&sender.samples) {
        let up = sample.planes.get(usize::from(plane)).is_none_or(|plane| plane.up);
        match (was_up, up) {
            (true, false) => downs.push((at_ms.max(0.0), length_ms)),
            (false, true) => {
                if let Some(last) = downs.last_mut() {
                    last.1 = at_ms.clamp(0.0, length_ms);
                }
            }
            _ => {}
        }
        was_up = up;
    }
    downs.retain(|(from, to)| from < to);
    downs
}

/// The spans, with a part of them in which the port was down.
fn cut(spans: &[(f64, f64, Role)], (down, up): (f64, f64)) -> Vec<(f64, f64, Role)> {
    let before = spans.iter().map(|&(from, to, role)| (from, to.min(down), role));
    let after = spans.iter().map(|&(from, to, role)| (from.max(up), to, role));
    let first = spans.first().map_or(down, |first| first.0.max(down));
    let mut all: Vec<_> = before.chain([(first, up, Role::Down)]).chain(after).collect();
    all.retain(|(from, to, _)| from < to);
    all
}

/// A row for each entropy value, in seconds.
pub(super) fn panel(lives: &[Life]) -> Panel {
    let key = |role: Role| {
        let (name, color) = role.style();
        Key::new(name, color)
    };
    let row = |life: &Life| {
        let (queue_pair, plane, ev) = life.ev;
        let span = |&(from, to, role): &(f64, f64, Role)| Span {
            from: from / 1e3,
            to: to / 1e3,
            key: role as usize,
        };
        Row {
            name: format!("{} ({queue_pair}, {plane})", ev_name(ev)),
            spans: life.spans.iter().map(span).collect(),
        }
    };
    let timeline = Timeline { keys: Role::ALL.map(key).to_vec(), rows: lives.iter().map(row).collect() };
    Panel::new("EV (queue pair, plane)", Content::Timeline(timeline))
}

/// That of a kernel socket is a port number; of others, each bit counts.
pub(super) fn ev_name(ev: u32) -> String {
    if ev <= u16::MAX.into() { ev.to_string() } else { format!("{ev:#010x}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::samples::{PlaneSample, Sample};

    fn side(lines: &[(f64, u32, StateName, bool)]) -> Side {
        let line = |&(at_ms, ev, state, active): &_| {
            (at_ms, EvLine { unix_ns: 0, queue_pair: 1, plane: 2, ev, state, active, drops: 0 })
        };
        Side { evs: lines.iter().map(line).collect(), ..Side::default() }
    }

    #[test]
    fn what_changed_within_the_scenario_has_a_row() {
        let (good, bad, denied) = (StateName::Good, StateName::AssumedBad, StateName::Denied);
        let side = side(&[
            // Another takes the place of one that loses packets.
            (-20.0, 9, good, true),
            (-20.0, 7, good, false),
            // What happened before does not count.
            (-20.0, 3, good, true),
            (-10.0, 3, bad, false),
            (-20.0, 4, denied, false),
            (100.0, 7, good, true),
            (100.0, 9, bad, false),
            // Only the state that a moment ends with shows, and news that change nothing do not.
            (150.0, 9, denied, false),
            (150.0, 9, good, false),
            (170.0, 9, good, false),
            // First heard of late, and at the end.
            (120.0, 5, good, true),
            (400.0, 3, good, true),
        ]);
        let (first, second) = ((1, 2, 7), (1, 2, 9));
        let (used, reserve) = (Role::Used, Role::Reserve);
        assert_eq!(
            lives(&side, 400.0),
            [
                Life { ev: first, spans: vec![(0.0, 100.0, reserve), (100.0, 400.0, used)] },
                Life {
                    ev: second,
                    spans: vec![(0.0, 100.0, used), (100.0, 150.0, Role::Bad), (150.0, 400.0, reserve)]
                },
            ]
        );
        assert_eq!(lives(&side, 400.5).len(), 3);
    }

    #[test]
    fn a_port_that_is_down_shows() {
        let mut side = side(&[(-5.0, 9, StateName::Good, true), (40.0, 9, StateName::AssumedBad, false)]);
        for (at_ms, up) in
            [(-3.0, false), (10.0, true), (20.0, false), (30.0, false), (60.0, true), (90.0, false)]
        {
            let planes = [true, true, up].map(|up| PlaneSample { up, ..PlaneSample::default() });
            side.times_ms.push(at_ms);
            side.samples.push(Sample { planes: planes.to_vec(), ..Sample::default() });
        }
        let (used, bad, down) = (Role::Used, Role::Bad, Role::Down);
        let spans = vec![
            (0.0, 10.0, down),
            (10.0, 20.0, used),
            (20.0, 60.0, down),
            (60.0, 90.0, bad),
            (90.0, 100.0, down),
        ];
        assert_eq!(lives(&side, 100.0), [Life { ev: (1, 2, 9), spans }]);
        // That of another plane does not.
        for sample in &mut side.samples {
            sample.planes.swap(0, 2);
        }
        let spans = vec![(0.0, 40.0, used), (40.0, 100.0, bad)];
        assert_eq!(lives(&side, 100.0), [Life { ev: (1, 2, 9), spans }]);
    }

    #[test]
    fn too_many_rows_are_none() {
        let many = |number: u32| {
            let lines = |ev| [(0.0, ev, StateName::Good, true), (5.0, ev, StateName::AssumedBad, false)];
            side(&(0..number).flat_map(lines).collect::<Vec<_>>())
        };
        assert_eq!(lives(&many(24), 10.0).len(), 24);
        assert_eq!(lives(&many(25), 10.0), []);
    }

    #[test]
    fn each_row_has_its_bars_and_its_name() {
        let life = |ev, role| Life { ev, spans: vec![(0.0, 500.0, Role::Bad), (500.0, 2000.0, role)] };
        let lives = [life((0, 1, 65_535), Role::Used), life((3, 0, 0x0a00_0000), Role::Denied)];
        let Content::Timeline(timeline) = panel(&lives).content else { panic!("a timeline") };
        let spans = |row: &Row| -> Vec<_> {
            let key = |span: &Span| &timeline.keys[span.key];
            row.spans
                .iter()
                .map(|span| (span.from, span.to, key(span).color, key(span).name.clone()))
                .collect()
        };
        let rows: Vec<_> = timeline.rows.iter().map(|row| (row.name.as_str(), spans(row))).collect();
        let bad = (0.0, 0.5, BAD, "assumed bad".to_owned());
        assert_eq!(
            rows,
            [
                ("65535 (0, 1)", vec![bad.clone(), (0.5, 2.0, USED, "in use".to_owned())]),
                ("0x0a000000 (3, 0)", vec![bad, (0.5, 2.0, DENIED, "denied".to_owned())]),
            ]
        );
    }
}
