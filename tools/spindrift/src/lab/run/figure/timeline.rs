//! Entropy values one by one: what each was to its queue pair, over time.

use std::collections::BTreeMap;
use std::sync::Arc;

use kuva::plot::LinePlot;
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot;

use super::super::record::Side;
use crate::bench::samples::{EvLine, StateName};
use crate::figure::{BAD, BORDER, DENIED, DOWN, Panel, RESERVE, USED};

/// Where more changed, a picture of each says less than the sums.
const MAX_ROWS: usize = 24;
const ROW_HEIGHT: f64 = 14.0;

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

/// The entropy values that became something else within the experiment; none if they are too many to be told apart.
pub(super) fn lives(sender: &Side, length_ms: f64) -> Vec<Life> {
    let mut changes = BTreeMap::<(usize, u8, u32), Vec<(f64, Role)>>::new();
    for (at_ms, line) in sender.evs.iter().filter(|(at_ms, _)| *at_ms < length_ms) {
        let role = Role::of(line);
        let known = changes.entry((line.queue_pair, line.plane, line.ev)).or_default();
        match known.last_mut() {
            // What it was before the experiment, or was only for a moment, does not show.
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

/// A bar for each entropy value; the first is at the top.
pub(super) fn panel(lives: &[Life]) -> Panel {
    let mut plots = Vec::new();
    for role in Role::ALL {
        let (name, color) = role.style();
        let mut legend = Some(name);
        for (row, life) in lives.iter().rev().enumerate() {
            for &(from, to, _) in life.spans.iter().filter(|(.., its)| *its == role) {
                let y = row as f64 + 0.5;
                let points = [(from / 1e3, y), (to / 1e3, y)];
                let mut bar = LinePlot::new().with_data(points).with_color(color).with_stroke_width(6.0);
                if let Some(legend) = legend.take() {
                    bar = bar.with_legend(legend);
                }
                plots.push(Plot::Line(bar));
            }
        }
    }
    Panel::new("EV (queue pair, plane)", plots)
        .with_height(ROW_HEIGHT * lives.len() as f64 + BORDER)
        .map_layout(|layout| name_rows(layout, lives))
}

/// That of a kernel socket is a port number; of others, each bit counts.
pub(super) fn ev_name(ev: u32) -> String {
    if ev <= u16::MAX.into() { ev.to_string() } else { format!("{ev:#010x}") }
}

/// Each row has the name of its entropy value instead of a number.
fn name_rows(layout: Layout, lives: &[Life]) -> Layout {
    let name = |life: &Life| {
        let (queue_pair, plane, ev) = life.ev;
        format!("{} ({queue_pair}, {plane})", ev_name(ev))
    };
    let names: Vec<_> = lives.iter().rev().map(name).collect();
    let tick = move |y: f64| {
        let row = (y - 0.5).round();
        let named = (y - 0.5 - row).abs() < 1e-6 && row >= 0.0;
        names.get(row as usize).filter(|_| named).cloned().unwrap_or_default()
    };
    layout
        .with_y_axis_max(lives.len() as f64)
        .with_y_tick_step(0.5)
        .with_y_tick_format(TickFormat::Custom(Arc::new(tick)))
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
    fn what_changed_within_the_experiment_has_a_row() {
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
        let panel = panel(&lives);
        let bars: Vec<_> = panel
            .plots
            .iter()
            .map(|plot| {
                let Plot::Line(bar) = plot else { panic!("bars are lines") };
                let ends: Vec<_> = bar.data.iter().map(|point| (point.x, point.y)).collect();
                (ends, bar.color.as_str(), bar.legend_label.as_deref())
            })
            .collect();
        assert_eq!(
            bars,
            [
                (vec![(0.5, 1.5), (2.0, 1.5)], USED, Some("in use")),
                (vec![(0.0, 0.5), (0.5, 0.5)], BAD, Some("assumed bad")),
                (vec![(0.0, 1.5), (0.5, 1.5)], BAD, None),
                (vec![(0.5, 0.5), (2.0, 0.5)], DENIED, Some("denied")),
            ]
        );
        let named = [0.0, 0.5, 1.0, 1.5, 2.5].map(|y| panel.layout.y_tick_format.format(y));
        assert_eq!(named, ["", "0x0a000000 (3, 0)", "", "65535 (0, 1)", ""]);
    }
}
