//! Contents of panels, as plain data.

use super::text;

/// Height of a plot, unless its content needs more.
pub(super) const HEIGHT: f64 = 130.0;
/// Heights of a row of a timeline and of an entry of a legend.
pub(super) const ROW_HEIGHT: f64 = 14.0;
pub(super) const ENTRY_HEIGHT: f64 = 17.0;
/// Size of labels, names and legends.
pub(super) const LABEL_SIZE: f64 = 12.0;

/// A name and its colour, for the legend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) color: &'static str,
}

impl Key {
    pub(crate) fn new(name: &str, color: &'static str) -> Self {
        Self { name: name.to_owned(), color }
    }
}

/// A line through points, in the order given. A point that is not finite interrupts it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) key: Key,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) width: f64,
    pub(crate) dashed: bool,
}

impl Line {
    pub(crate) fn new(key: Key, points: Vec<(f64, f64)>) -> Self {
        Self { key, points, width: 1.2, dashed: false }
    }
}

/// A layer of a stacked area: a value for each position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) key: Key,
    pub(crate) values: Vec<f64>,
}

/// Layers on top of each other; the first is the lowest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StackedArea {
    /// Ascending.
    pub(crate) x: Vec<f64>,
    pub(crate) series: Vec<Series>,
}

impl StackedArea {
    /// The upper edge of each layer.
    pub(super) fn edges(&self) -> Vec<Vec<f64>> {
        let mut edge = vec![0.0; self.x.len()];
        let add = |series: &Series| {
            for (sum, value) in edge.iter_mut().zip(&series.values) {
                *sum += if value.is_finite() { value.max(0.0) } else { 0.0 };
            }
            edge.clone()
        };
        self.series.iter().map(add).collect()
    }
}

/// Bars side by side under one name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// One for each key. A value that is not finite has no bar.
    pub(crate) values: Vec<f64>,
}

/// Groups of bars.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bars {
    pub(crate) keys: Vec<Key>,
    pub(crate) groups: Vec<Group>,
}

/// A part of a row of a timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// Index of its key.
    pub(crate) key: usize,
}

/// A row of a timeline.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) spans: Vec<Span>,
}

/// Rows of coloured spans; the first row is at the top.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Timeline {
    pub(crate) keys: Vec<Key>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Lines(Vec<Line>),
    StackedArea(StackedArea),
    Bars(Bars),
    Timeline(Timeline),
}

/// Axes and what is drawn on them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Panel {
    /// Title above the plot; may be empty.
    pub(crate) title: String,
    /// Label of the vertical axis.
    pub(crate) label: String,
    pub(crate) content: Content,
}

/// An entry of a legend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Entry<'a> {
    pub(super) key: &'a Key,
    /// Without one, the entry has a square.
    pub(super) line: Option<&'a Line>,
}

impl Panel {
    pub(crate) fn new(label: &str, content: Content) -> Self {
        Self { title: String::new(), label: label.to_owned(), content }
    }

    pub(super) fn is_empty(&self) -> bool {
        match &self.content {
            Content::Lines(lines) => lines.is_empty(),
            Content::StackedArea(area) => area.series.is_empty(),
            Content::Bars(bars) => bars.groups.is_empty(),
            Content::Timeline(timeline) => timeline.rows.is_empty(),
        }
    }

    /// What its colours mean. Of the keys of a timeline, those in use.
    pub(super) fn legend(&self) -> Vec<Entry<'_>> {
        let entry = |key| Entry { key, line: None };
        match &self.content {
            Content::Lines(lines) => {
                lines.iter().map(|line| Entry { key: &line.key, line: Some(line) }).collect()
            }
            Content::StackedArea(area) => area.series.iter().map(|series| entry(&series.key)).collect(),
            Content::Bars(bars) => bars.keys.iter().map(entry).collect(),
            Content::Timeline(timeline) => {
                let used =
                    |number| timeline.rows.iter().flat_map(|row| &row.spans).any(|span| span.key == number);
                let keys = timeline.keys.iter().enumerate().filter(|(number, _)| used(*number));
                keys.map(|(_, key)| entry(key)).collect()
            }
        }
    }

    /// The highest of its values, at least 0. A timeline has none.
    pub(super) fn highest(&self) -> Option<f64> {
        let highest = |values: &mut dyn Iterator<Item = f64>| {
            values.filter(|value| value.is_finite()).fold(0.0, f64::max)
        };
        match &self.content {
            Content::Lines(lines) => {
                let points = lines.iter().flat_map(|line| &line.points);
                Some(highest(&mut points.map(|point| point.1)))
            }
            Content::StackedArea(area) => {
                Some(highest(&mut area.edges().last().into_iter().flatten().copied()))
            }
            Content::Bars(bars) => {
                Some(highest(&mut bars.groups.iter().flat_map(|group| &group.values).copied()))
            }
            Content::Timeline(_) => None,
        }
    }

    /// The last position on its horizontal axis. Bars have none.
    pub(super) fn last(&self) -> f64 {
        let last = |values: &mut dyn Iterator<Item = f64>| {
            values.filter(|value| value.is_finite()).fold(0.0, f64::max)
        };
        match &self.content {
            Content::Lines(lines) => {
                last(&mut lines.iter().flat_map(|line| &line.points).map(|point| point.0))
            }
            Content::StackedArea(area) => last(&mut area.x.iter().copied()),
            Content::Bars(_) => 0.0,
            Content::Timeline(timeline) => {
                last(&mut timeline.rows.iter().flat_map(|row| &row.spans).map(|span| span.to))
            }
        }
    }

    /// The height of its plot. Legend, rows and the label of the axis have room.
    pub(super) fn height(&self) -> f64 {
        let legend = ENTRY_HEIGHT * self.legend().len() as f64;
        let plot = match &self.content {
            Content::Timeline(timeline) => (ROW_HEIGHT * timeline.rows.len() as f64)
                .max(text::width(&self.label, LABEL_SIZE).min(HEIGHT)),
            _ => HEIGHT,
        };
        plot.max(legend).ceil()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name, "black")
    }

    #[test]
    fn extremes_are_of_finite_values() {
        let points = vec![(1.0, 5.0), (f64::INFINITY, 7.0), (2.0, f64::NAN), (3.0, -1.0)];
        let lines = Panel::new("", Content::Lines(vec![Line::new(key("a"), points)]));
        assert_eq!((lines.highest(), lines.last()), (Some(7.0), 3.0));
        let area = StackedArea {
            x: vec![1.0, 2.0, f64::NAN],
            series: vec![
                Series { key: key("a"), values: vec![1.0, f64::NAN, 2.0] },
                Series { key: key("b"), values: vec![3.0, 2.0] },
            ],
        };
        assert_eq!(area.edges(), [[1.0, 0.0, 2.0], [4.0, 2.0, 2.0]]);
        let area = Panel::new("", Content::StackedArea(area));
        assert_eq!((area.highest(), area.last()), (Some(4.0), 2.0));
        let group = Group { name: "g".to_owned(), values: vec![2.0, f64::INFINITY, 9.0] };
        let bars = Panel::new("", Content::Bars(Bars { keys: vec![key("a")], groups: vec![group] }));
        assert_eq!((bars.highest(), bars.last()), (Some(9.0), 0.0));
        let nothing = Panel::new("", Content::Lines(Vec::new()));
        assert_eq!((nothing.highest(), nothing.last(), nothing.is_empty()), (Some(0.0), 0.0, true));
    }

    #[test]
    fn a_timeline_has_a_legend_of_what_is_in_it_and_no_scale() {
        let span = |key| Span { from: 0.0, to: 5.0, key };
        let row = Row { name: "r".to_owned(), spans: vec![span(2), span(0)] };
        let keys = ["a", "b", "c"].map(key).to_vec();
        let panel = Panel::new("", Content::Timeline(Timeline { keys, rows: vec![row] }));
        assert_eq!((panel.highest(), panel.last()), (None, 5.0));
        let names: Vec<_> = panel.legend().iter().map(|entry| entry.key.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
    }
}
