//! Drawing of a panel.

use super::chart::{Bars, Content, ENTRY_HEIGHT, LABEL_SIZE, Line, Panel, StackedArea, Timeline};
use super::path::{band, polyline};
use super::svg::{Anchor, INK, Rect, Stroke, Svg, Text};
use super::text;
use super::ticks::Ticks;

/// Dashes of lines that are not solid, and of the lines of events.
const DASHES: &str = "5 3";
const EVENT_DASHES: &str = "3 3";
/// Stroke of the grid.
const GRID: Stroke<'_> = Stroke { color: "#dddddd", width: 1.0, dashes: "" };
const AXIS: Stroke<'_> = Stroke { color: INK, width: 1.0, dashes: "" };
/// Length of a tick, and from the axis to its label.
const TICK: f64 = 4.0;
pub(super) const LABEL_OFFSET: f64 = 8.0;
/// Width of the label of the vertical axis, with the space around it.
pub(super) const AXIS_LABEL: f64 = 28.0;
/// From the baseline of a text to its middle, as a share of its size.
const MIDDLE: f64 = 0.36;
/// From a plot to its legend, the size of an entry's symbol, and from there to its name.
const LEGEND_OFFSET: f64 = 12.0;
const SYMBOL: f64 = 18.0;
const SYMBOL_GAP: f64 = 6.0;
/// Share of its place that a group of bars or a row of a timeline fills.
const FILLED: f64 = 0.8;
/// How far the label of an axis may be longer than the axis.
const LABEL_EXCESS: f64 = 30.0;
/// Longest name below bars, in pixels, and the space between two names.
const MAX_NAME: f64 = 300.0;
const NAME_GAP: f64 = 10.0;
/// Slopes of names below bars: degrees, sine and cosine.
const SLOPES: [(f64, f64, f64); 3] = [(20.0, 0.342, 0.94), (45.0, 0.707, 0.707), (90.0, 1.0, 0.0)];
/// Lines of sloped text need this distance.
const LINE_DISTANCE: f64 = 13.0;

/// The place of a panel and its scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) plot: Rect,
    /// Widths to the left and right of the plot.
    pub(super) margins: (f64, f64),
    /// Width of the labels at the vertical axis.
    pub(super) labels: f64,
    pub(super) x: Ticks,
    pub(super) y: Ticks,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        self.plot.left + self.x.position(value) * self.plot.width
    }

    fn y(&self, value: f64) -> f64 {
        self.plot.bottom() - self.y.position(value) * self.plot.height
    }

    fn point(&self, &(x, y): &(f64, f64)) -> (f64, f64) {
        (self.x(x), self.y(y))
    }
}

/// How the names below bars are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Names {
    /// Width of a group with its share of the gaps.
    place: f64,
    /// From the edge of the column to the plot.
    margin: f64,
    /// Degrees, sine and cosine.
    slope: (f64, f64, f64),
    /// One of so many groups has a name.
    every: usize,
}

impl Names {
    /// In a plot of this width, at this distance from the edge of its column.
    pub(super) fn of(bars: &Bars, width: f64, margin: f64) -> Self {
        let place = width / bars.groups.len().max(1) as f64;
        let every = (LINE_DISTANCE / place).ceil().max(1.0) as usize;
        let level = Self { place, margin, slope: (0.0, 0.0, 1.0), every: 1 };
        if Self::widths(bars).all(|width| width + NAME_GAP <= place) {
            return level;
        }
        let sloped = SLOPES.map(|slope| Self { slope, every, ..level });
        let apart = |names: &&Self| place * every as f64 * names.slope.1 >= LINE_DISTANCE;
        let whole = |names: &&Self| {
            let mut widths = Self::widths(bars).enumerate().step_by(every);
            widths.all(|(group, width)| width <= names.room(group))
        };
        let mut apart = sloped.iter().filter(apart);
        let first = apart.clone().next();
        apart.find(whole).or(first).copied().unwrap_or(level)
    }

    fn widths(bars: &Bars) -> impl Iterator<Item = f64> {
        bars.groups.iter().map(|group| text::width(&group.name, LABEL_SIZE))
    }

    /// The available length for the name of a group.
    fn room(&self, group: usize) -> f64 {
        let (angle, _, cosine) = self.slope;
        if angle == 0.0 {
            return self.place;
        }
        // A sloped name ends below its group, and begins inside the column.
        let inside = self.margin + self.place * (group as f64 + 0.5) - NAME_GAP;
        MAX_NAME.min(inside / cosine.max(0.01))
    }

    /// The height that they take.
    pub(super) fn height(&self, bars: &Bars) -> f64 {
        let (_, sine, cosine) = self.slope;
        let lengths = Self::widths(bars).enumerate().map(|(group, width)| width.min(self.room(group)));
        let longest = lengths.step_by(self.every).fold(0.0, f64::max);
        (LABEL_OFFSET + longest * sine + (LABEL_SIZE + TICK) * cosine + TICK).ceil()
    }
}

/// An event, as far as a panel shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event<'a> {
    pub(super) at: f64,
    pub(super) color: &'a str,
    pub(super) description: &'a str,
}

pub(super) fn draw<'a>(svg: &mut Svg, frame: &Frame, panel: &Panel, events: impl Iterator<Item = Event<'a>>) {
    axes(svg, frame, panel);
    match &panel.content {
        Content::Lines(lines) => lines.iter().for_each(|line| draw_line(svg, frame, line)),
        Content::StackedArea(area) => draw_area(svg, frame, area),
        Content::Bars(bars) => draw_bars(svg, frame, bars),
        Content::Timeline(timeline) => draw_timeline(svg, frame, timeline),
    }
    let Rect { top, .. } = frame.plot;
    for event in events {
        let x = frame.x(event.at);
        let stroke = Stroke { color: event.color, width: 0.8, dashes: EVENT_DASHES };
        svg.line((x, top), (x, frame.plot.bottom()), &stroke, event.description);
    }
    legend(svg, frame, panel);
}

fn axes(svg: &mut Svg, frame: &Frame, panel: &Panel) {
    let Rect { left, top, .. } = frame.plot;
    let (right, bottom) = (frame.plot.right(), frame.plot.bottom());
    let name = |svg: &mut Svg, y: f64, name: &str| {
        let at = (left - LABEL_OFFSET, y + MIDDLE * LABEL_SIZE);
        svg.text(&Text { room: frame.labels, ..Text::new(at, Anchor::End, LABEL_SIZE) }, name);
    };
    if let Content::Timeline(timeline) = &panel.content {
        for (number, row) in timeline.rows.iter().enumerate() {
            name(svg, middle_of_row(frame, timeline, number), &row.name);
        }
    } else {
        for (value, label) in frame.y.labels() {
            let y = frame.y(value);
            svg.line((left, y), (right, y), &GRID, "");
            svg.line((left - TICK, y), (left, y), &AXIS, "");
            name(svg, y, &label);
        }
    }
    if let Content::Bars(bars) = &panel.content {
        draw_names(svg, frame, bars);
    } else {
        for (value, label) in frame.x.labels() {
            let x = frame.x(value);
            svg.line((x, top), (x, bottom), &GRID, "");
            svg.line((x, bottom), (x, bottom + TICK), &AXIS, "");
            let at = (x, bottom + LABEL_OFFSET + LABEL_SIZE - 2.0);
            svg.text(&Text::new(at, Anchor::Middle, LABEL_SIZE), &label);
        }
    }
    svg.line((left, top), (left, bottom), &AXIS, "");
    svg.line((left, bottom), (right, bottom), &AXIS, "");
    let room = frame.plot.height + LABEL_EXCESS;
    let size = text::size(&panel.label, (9.0, LABEL_SIZE), room);
    let at = (left - LABEL_OFFSET - frame.labels - LABEL_OFFSET, frame.plot.center().1);
    svg.text(&Text { angle: -90.0, room, ..Text::new(at, Anchor::Middle, size) }, &panel.label);
}

fn draw_line(svg: &mut Svg, frame: &Frame, line: &Line) {
    let path = polyline(line.points.iter().map(|point| frame.point(point)), &frame.plot);
    if !path.is_empty() {
        svg.path(&path, &stroke(line), &line.key.name);
    }
}

fn stroke(line: &Line) -> Stroke<'_> {
    Stroke { color: line.key.color, width: line.width, dashes: if line.dashed { DASHES } else { "" } }
}

fn draw_area(svg: &mut Svg, frame: &Frame, area: &StackedArea) {
    let curve = |edge: &[f64]| -> Vec<(f64, f64)> {
        let points = area.x.iter().copied().zip(edge.iter().copied());
        points.filter(|point| point.0.is_finite()).map(|point| frame.point(&point)).collect()
    };
    let mut lower = curve(&vec![0.0; area.x.len()]);
    for (series, edge) in area.series.iter().zip(area.edges()) {
        let upper = curve(&edge);
        if upper != lower {
            svg.area(&band(&upper, &lower, &frame.plot), series.key.color, &series.key.name);
        }
        lower = upper;
    }
}

fn draw_bars(svg: &mut Svg, frame: &Frame, bars: &Bars) {
    let place = frame.plot.width / bars.groups.len().max(1) as f64;
    let width = place * FILLED / bars.keys.len().max(1) as f64;
    for (number, group) in bars.groups.iter().enumerate() {
        let first = frame.plot.left + place * (number as f64 + (1.0 - FILLED) / 2.0);
        for (position, (key, &value)) in bars.keys.iter().zip(&group.values).enumerate() {
            if value.is_finite() {
                let top = frame.y(value).clamp(frame.plot.top, frame.plot.bottom());
                let left = first + width * position as f64;
                let rect = Rect { left, top, width, height: frame.plot.bottom() - top };
                svg.rect(&rect, key.color, &format!("{}, {}: {}", group.name, key.name, short(value)));
            }
        }
    }
}

/// A value with few digits.
fn short(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { super::svg::number(value) }
}

fn draw_names(svg: &mut Svg, frame: &Frame, bars: &Bars) {
    let names = Names::of(bars, frame.plot.width, frame.margins.0);
    let (angle, sine, cosine) = names.slope;
    let bottom = frame.plot.bottom();
    for (number, group) in bars.groups.iter().enumerate().step_by(names.every) {
        let x = frame.plot.left + names.place * (number as f64 + 0.5);
        svg.line((x, bottom), (x, bottom + TICK), &AXIS, "");
        let at = (x + TICK * sine, bottom + LABEL_OFFSET + (LABEL_SIZE - 2.0) * cosine);
        let anchor = if angle > 0.0 { Anchor::End } else { Anchor::Middle };
        let style = Text { angle: -angle, room: names.room(number), ..Text::new(at, anchor, LABEL_SIZE) };
        svg.text(&style, &group.name);
    }
}

fn middle_of_row(frame: &Frame, timeline: &Timeline, row: usize) -> f64 {
    frame.plot.top + frame.plot.height / timeline.rows.len().max(1) as f64 * (row as f64 + 0.5)
}

fn draw_timeline(svg: &mut Svg, frame: &Frame, timeline: &Timeline) {
    let height = (frame.plot.height / timeline.rows.len().max(1) as f64 * FILLED).min(LABEL_SIZE);
    for (number, row) in timeline.rows.iter().enumerate() {
        let top = middle_of_row(frame, timeline, number) - height / 2.0;
        for span in &row.spans {
            let Some(key) = timeline.keys.get(span.key) else { continue };
            let [from, to] =
                [span.from, span.to].map(|at| frame.x(at).clamp(frame.plot.left, frame.plot.right()));
            // Neither end is drawn if one is not a number.
            if from < to {
                let rect = Rect { left: from, top, width: to - from, height };
                svg.rect(&rect, key.color, &format!("{}: {}", row.name, key.name));
            }
        }
    }
}

/// The width that the legend of a panel takes.
pub(super) fn legend_width(panel: &Panel) -> f64 {
    let names = panel.legend().into_iter().map(|entry| text::width(&entry.key.name, LABEL_SIZE));
    LEGEND_OFFSET + SYMBOL + SYMBOL_GAP + names.fold(0.0, f64::max)
}

fn legend(svg: &mut Svg, frame: &Frame, panel: &Panel) {
    let left = frame.plot.right() + LEGEND_OFFSET;
    for (number, entry) in panel.legend().into_iter().enumerate() {
        let y = frame.plot.top + ENTRY_HEIGHT * (number as f64 + 0.5);
        if let Some(line) = entry.line {
            let stroke = Stroke { width: line.width.max(2.0), ..stroke(line) };
            svg.line((left, y), (left + SYMBOL, y), &stroke, "");
        } else {
            let side = LABEL_SIZE;
            let square =
                Rect { left: left + (SYMBOL - side) / 2.0, top: y - side / 2.0, width: side, height: side };
            svg.rect(&square, entry.key.color, "");
        }
        let at = (left + SYMBOL + SYMBOL_GAP, y + MIDDLE * LABEL_SIZE);
        let room = frame.margins.1 - LEGEND_OFFSET - SYMBOL - SYMBOL_GAP;
        svg.text(&Text { room, ..Text::new(at, Anchor::Start, LABEL_SIZE) }, &entry.key.name);
    }
}
