//! Pictures of runs: columns of panels, with events as vertical lines in them and as text below.

mod chart;
mod panel;
mod path;
mod svg;
mod text;
mod ticks;

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::output::write_file;

pub(crate) use chart::{Bars, Content, Group, Key, Line, Panel, Row, Series, Span, StackedArea, Timeline};
use chart::{HEIGHT, LABEL_SIZE};
use panel::{AXIS_LABEL, Event, Frame, LABEL_OFFSET, Names};
use svg::{Anchor, Rect, Svg, Text};
use ticks::Ticks;

/// Events that are described. The summary describes all.
const MAX_DESCRIBED: usize = 12;
/// Events of a column that have a line.
const MAX_MARKS: usize = 200;

/// Widths of a column, from a single one to one of many.
const WIDTH: f64 = 800.0;
const LEAST_WIDTH: f64 = 480.0;
/// Columns that would be wider together share this width.
const PAGE_WIDTH: f64 = 3200.0;
/// A column becomes wider if its plots would be narrower than this.
const LEAST_PLOT: f64 = 220.0;
/// Names at the left of a plot and the margin for legends at the right have at most these widths.
const MAX_LABELS: f64 = 150.0;
const MAX_RIGHT: f64 = 230.0;
/// The numbers of events at the right edge need at least this.
const LEAST_RIGHT: f64 = 50.0;

/// Heights of the title, of a column's heading, of a panel's title, and of a line of text below.
const TITLE_HEIGHT: f64 = 44.0;
const HEADING_HEIGHT: f64 = 24.0;
const PANEL_TITLE_HEIGHT: f64 = 24.0;
const LINE_HEIGHT: f64 = 19.0;
/// Space above a plot, which holds the numbers of events.
const ABOVE: f64 = 22.0;
/// Space below a plot for the labels of ticks, and what the label of the axis adds.
const BELOW: f64 = 30.0;
const X_LABEL_HEIGHT: f64 = 20.0;
/// At the edges of the page.
const BORDER: f64 = 12.0;
/// Least distance between two horizontal grid lines.
const LEAST_INTERVAL: f64 = 21.0;
/// Least distance between the numbers of two events.
const NUMBER_GAP: f64 = 4.0;

/// Smallest and largest size of a title and of a heading.
const TITLE_SIZES: (f64, f64) = (12.0, 20.0);
const HEADING_SIZES: (f64, f64) = (10.0, 16.0);

/// Colours that people who see colours differently can tell apart (after Okabe and Ito).
pub(crate) const LINES: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#f0e442"];
pub(crate) const ARRIVED: &str = "#0072b2";
pub(crate) const LOST: &str = "#d55e00";
/// Of entropy values, by state.
pub(crate) const USED: &str = "#009e73";
pub(crate) const SKIPPED: &str = "#f0e442";
pub(crate) const RESERVE: &str = "#56b4e9";
pub(crate) const BAD: &str = "#d55e00";
pub(crate) const DENIED: &str = "#000000";
pub(crate) const DOWN: &str = "#bbbbbb";
/// Of events.
pub(crate) const FAULT: &str = "#c1272d";
pub(crate) const REPAIR: &str = "#2e8b57";
pub(crate) const FLOW: &str = "#555555";
pub(crate) const AGENT: &str = "#6a3d9a";

/// A picture in SVG.
pub(crate) struct Picture(String);

impl Picture {
    /// Writes `figure.svg` to a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        write_file(folder, "figure.svg", |file| file.write_all(self.0.as_bytes()))
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    /// Position on the horizontal axis.
    pub(crate) at: f64,
    pub(crate) color: &'static str,
    pub(crate) description: String,
}

/// Panels below each other.
pub(crate) struct Column {
    pub(crate) heading: String,
    pub(crate) panels: Vec<Panel>,
    pub(crate) marks: Vec<Mark>,
}

/// The content of a picture.
pub(crate) struct Page<'a> {
    pub(crate) title: &'a str,
    /// Label below the lowest panels.
    pub(crate) x_label: &'a str,
    /// The end of all horizontal axes, which begin at 0. Without it they end with the last value.
    pub(crate) x_max: Option<f64>,
    pub(crate) columns: Vec<Column>,
}

impl Page<'_> {
    pub(crate) fn draw(mut self) -> Picture {
        leave_out_empty_rows(&mut self.columns);
        let layout = Layout::of(&self);
        let events = events(&self.columns);
        let lines = layout.lines(&descriptions(&events));
        let (width, end) = (layout.width(), layout.end());
        let below = if lines.is_empty() { 0.0 } else { BORDER + LINE_HEIGHT * lines.len() as f64 };
        let mut svg = Svg::new(width, end + below + BORDER);
        let room = width - 2.0 * BORDER;
        let size = text::size(self.title, TITLE_SIZES, room);
        let at = (width / 2.0, BORDER + TITLE_SIZES.1 - 4.0);
        svg.text(&Text { room, ..Text::new(at, Anchor::Middle, size) }, self.title);
        for (number, column) in self.columns.iter().enumerate() {
            layout.draw_column(&mut svg, number, column, &events);
        }
        for (number, line) in lines.iter().enumerate() {
            let at = (layout.margins.0, end + LINE_HEIGHT * (number + 1) as f64);
            let room = width - layout.margins.0 - BORDER;
            svg.text(&Text { room, ..Text::new(at, Anchor::Start, LABEL_SIZE) }, line);
        }
        Picture(svg.finish())
    }
}

/// Leaves out rows that are empty in each column.
fn leave_out_empty_rows(columns: &mut [Column]) {
    let rows = columns.iter().map(|column| column.panels.len()).max().unwrap_or_default();
    let drawn: Vec<_> = (0..rows).map(|row| row_of(columns, row).any(|panel| !panel.is_empty())).collect();
    for column in columns {
        let mut drawn = drawn.iter();
        column.panels.retain(|_| drawn.next() == Some(&true));
    }
}

/// The panels of a row.
fn row_of(columns: &[Column], row: usize) -> impl Iterator<Item = &Panel> {
    columns.iter().filter_map(move |column| column.panels.get(row))
}

/// Height of a row of panels, and their scale.
#[derive(Clone, Copy, Debug)]
struct RowLayout {
    above: f64,
    plot: f64,
    below: f64,
    y: Ticks,
}

/// Sizes and scales of a page.
struct Layout<'a> {
    x_label: &'a str,
    columns: usize,
    column_width: f64,
    /// Widths at the left and right of each plot: the same everywhere, so that positions align.
    margins: (f64, f64),
    /// Widths of the labels of scales and of the names of timelines, which are in the left margin.
    labels: (f64, f64),
    x: Ticks,
    rows: Vec<RowLayout>,
}

impl<'a> Layout<'a> {
    fn of(page: &Page<'a>) -> Self {
        let columns = page.columns.as_slice();
        let rows = columns.iter().map(|column| column.panels.len()).max().unwrap_or_default();
        let mut rows: Vec<_> = (0..rows).map(|row| row_layout(columns, row)).collect();
        let labels = label_widths(columns, &rows);
        let margins = margins(columns, labels);
        let column_width = column_width(columns.len()).max(margins.0 + LEAST_PLOT + margins.1);
        let plot = column_width - margins.0 - margins.1;
        let last = columns.iter().flat_map(|column| &column.panels).map(Panel::last).fold(0.0, f64::max);
        let x = Ticks::up_to(page.x_max.unwrap_or(last), plot, LABEL_SIZE);
        for (number, row) in rows.iter_mut().enumerate() {
            let names = row_of(columns, number).filter_map(|panel| match &panel.content {
                Content::Bars(bars) => Some(Names::of(bars, plot, margins.0).height(bars)),
                _ => None,
            });
            row.below = names.fold(BELOW, f64::max);
        }
        if let (Some(last), false) = (rows.last_mut(), page.x_label.is_empty()) {
            last.below += X_LABEL_HEIGHT;
        }
        Self { x_label: page.x_label, columns: columns.len(), column_width, margins, labels, x, rows }
    }

    fn width(&self) -> f64 {
        self.column_width * self.columns.max(1) as f64
    }

    /// Where the rows end.
    fn end(&self) -> f64 {
        TITLE_HEIGHT + self.rows.iter().map(|row| row.above + row.plot + row.below).sum::<f64>()
    }

    fn draw_column(&self, svg: &mut Svg, number: usize, column: &Column, events: &[Mark]) {
        let left = self.column_width * number as f64;
        let width = self.column_width - self.margins.0 - self.margins.1;
        let mut top = TITLE_HEIGHT;
        // A heading may be longer than its plot, but not by more than the narrower margin.
        let room = width + 2.0 * self.margins.0.min(self.margins.1) - BORDER;
        let center = left + self.margins.0 + width / 2.0;
        let heading = |svg: &mut Svg, y: f64, text: &str| {
            let size = text::size(text, HEADING_SIZES, room);
            svg.text(&Text { room, ..Text::new((center, y), Anchor::Middle, size) }, text);
        };
        if !column.heading.is_empty() {
            heading(svg, top + HEADING_SIZES.1, &column.heading);
        }
        for (row, (panel, layout)) in column.panels.iter().zip(&self.rows).enumerate() {
            let plot =
                Rect { left: left + self.margins.0, top: top + layout.above, width, height: layout.plot };
            if !panel.title.is_empty() {
                heading(svg, plot.top - ABOVE + 4.0, &panel.title);
            }
            let labels = match &panel.content {
                Content::Timeline(_) => self.labels.1,
                _ => self.labels.0,
            };
            let frame = Frame { plot, margins: self.margins, labels, x: self.x, y: layout.y };
            panel::draw(svg, &frame, panel, shown(&column.marks, self.x));
            if row == 0 {
                draw_numbers(svg, &frame, &column.marks, events);
            }
            if row + 1 == self.rows.len() && !self.x_label.is_empty() {
                let at = (center, plot.bottom() + layout.below - BORDER);
                svg.text(&Text::new(at, Anchor::Middle, LABEL_SIZE), self.x_label);
            }
            top = plot.bottom() + layout.below;
        }
    }

    /// The lines of these texts, from the left edge of the plots to the right edge of the page.
    fn lines(&self, texts: &[String]) -> Vec<String> {
        let room = self.width() - self.margins.0 - BORDER;
        texts.iter().flat_map(|text| text::wrap(text, LABEL_SIZE, room)).collect()
    }
}

/// The highest plot and the highest value of a row count. Headings are above the first row.
fn row_layout(columns: &[Column], row: usize) -> RowLayout {
    let plot = row_of(columns, row).map(Panel::height).fold(0.0, f64::max);
    let highest = row_of(columns, row).filter_map(Panel::highest).fold(0.0, f64::max);
    let mut above = ABOVE;
    if row_of(columns, row).any(|panel| !panel.title.is_empty()) {
        above += PANEL_TITLE_HEIGHT;
    }
    if row == 0 && columns.iter().any(|column| !column.heading.is_empty()) {
        above += HEADING_HEIGHT;
    }
    // A panel with a long legend has no more grid lines than others.
    let y = Ticks::covering(highest, (plot.min(HEIGHT) / LEAST_INTERVAL) as u32);
    RowLayout { above, plot, below: BELOW, y }
}

/// Widths of the widest label of a scale and of the widest name in a timeline.
fn label_widths(columns: &[Column], rows: &[RowLayout]) -> (f64, f64) {
    let width = |text: &str| text::width(text, LABEL_SIZE);
    let (mut scales, mut names) = (0.0, 0.0);
    for (panel, row) in columns.iter().flat_map(|column| column.panels.iter().zip(rows)) {
        if let Content::Timeline(timeline) = &panel.content {
            names = timeline.rows.iter().map(|row| width(&row.name)).fold(names, f64::max);
        } else {
            scales = row.y.labels().map(|(_, label)| width(&label)).fold(scales, f64::max);
        }
    }
    (scales.min(MAX_LABELS), names.min(MAX_LABELS))
}

/// Widths at the left of all plots, for labels, and at the right, for legends.
fn margins(columns: &[Column], labels: (f64, f64)) -> (f64, f64) {
    let left = labels.0.max(labels.1) + LABEL_OFFSET + AXIS_LABEL;
    let legends = columns.iter().flat_map(|column| &column.panels).map(panel::legend_width);
    let right = legends.map(|width| width + BORDER).fold(LEAST_RIGHT, f64::max);
    (left.ceil(), right.min(MAX_RIGHT).ceil())
}

fn column_width(columns: usize) -> f64 {
    (PAGE_WIDTH / columns.max(1) as f64).clamp(LEAST_WIDTH, WIDTH).floor()
}

/// The events of all columns in order of time. The number of an event is its place in this list.
fn events(columns: &[Column]) -> Vec<Mark> {
    let mut all: Vec<Mark> = Vec::new();
    for mark in columns.iter().flat_map(|column| column.marks.iter().take(MAX_MARKS)) {
        if !all.contains(mark) {
            all.push(mark.clone());
        }
    }
    all.sort_by(|one, other| one.at.total_cmp(&other.at));
    all
}

/// The events that have a line on an axis.
fn shown(marks: &[Mark], x: Ticks) -> impl Iterator<Item = Event<'_>> {
    let events = marks.iter().take(MAX_MARKS).map(|Mark { at, color, description }| Event {
        at: *at,
        color,
        description,
    });
    events.filter(move |event| (0.0..=1.0).contains(&x.position(event.at)))
}

/// A text for each of the first events, with its number.
fn descriptions(events: &[Mark]) -> Vec<String> {
    let numbered = events.iter().enumerate().take(MAX_DESCRIBED);
    let mut lines: Vec<_> =
        numbered.map(|(number, mark)| format!("{}: {}", number + 1, mark.description)).collect();
    match events.len().saturating_sub(MAX_DESCRIBED) {
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    lines
}

/// Numbers of events that stand together.
#[derive(Clone, Debug, PartialEq)]
struct Numbers {
    /// The left edge of their label.
    left: f64,
    color: &'static str,
    all: Vec<usize>,
}

impl Numbers {
    fn label(&self) -> String {
        match self.all.as_slice() {
            [] => String::new(),
            [one] => one.to_string(),
            [one, other] if one + 1 < *other => format!("{one},{other}"),
            [one, .., last] if last - one + 1 == self.all.len() => format!("{one}-{last}"),
            [one, .., last] => format!("{one}..{last}"),
        }
    }

    fn right(&self) -> f64 {
        self.left + text::width(&self.label(), LABEL_SIZE)
    }
}

/// The numbers of described events, by position. Where they have no room beside each other, they share a label.
fn numbers(frame: &Frame, marks: &[Mark], events: &[Mark]) -> Vec<Numbers> {
    let mut labels: Vec<Numbers> = Vec::new();
    for (index, event) in events.iter().enumerate().take(MAX_DESCRIBED) {
        let on_axis = (0.0..=1.0).contains(&frame.x.position(event.at));
        if !on_axis || !marks.iter().take(MAX_MARKS).any(|mark| mark == event) {
            continue;
        }
        let number = index + 1;
        let center = frame.plot.left + frame.x.position(event.at) * frame.plot.width;
        let left = center - text::width(&number.to_string(), LABEL_SIZE) / 2.0;
        match labels.last_mut() {
            Some(last) if left < last.right() + NUMBER_GAP => last.all.push(number),
            _ => labels.push(Numbers { left, color: event.color, all: vec![number] }),
        }
    }
    labels
}

fn draw_numbers(svg: &mut Svg, frame: &Frame, marks: &[Mark], events: &[Mark]) {
    for numbers in numbers(frame, marks, events) {
        let at = (numbers.left, frame.plot.top - 5.0);
        let style = Text { color: numbers.color, ..Text::new(at, Anchor::Start, LABEL_SIZE) };
        svg.text(&style, &numbers.label());
    }
}

#[cfg(test)]
pub(crate) mod tests;
