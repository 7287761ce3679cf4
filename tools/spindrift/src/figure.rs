//! Pictures of experiments: columns of panels, with what happened as lines in them and in words below.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Result, anyhow};
use kuva::backend::png::PngBackend;
use kuva::backend::svg::SvgBackend;
use kuva::plot::legend::LegendPosition;
use kuva::plot::text::TextPlot;
use kuva::render::annotations::ReferenceLine;
use kuva::render::figure::Figure;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;
use kuva::render::render::Scene;

use crate::output::put;

/// Events that are told in words. The summary tells all.
const MAX_TOLD: usize = 12;
/// Share of the axis that the number of an event takes.
const NUMBER_SHARE: f64 = 0.025;
/// Events that have a line.
const MAX_MARKS: usize = 200;
/// Pixels of the PNG for each unit of the picture.
const SCALE: f32 = 1.5;

/// Widths of a column, from one that is alone to one of many.
const WIDTH: f64 = 800.0;
const LEAST_WIDTH: f64 = 480.0;
/// Columns share this width once they are more than fit into it.
const PAGE_WIDTH: f64 = 3200.0;
/// Heights of a panel, of an entry of a legend, of a line of text, and of the name of a column.
const HEIGHT: f64 = 190.0;
const ENTRY_HEIGHT: f64 = 18.0;
const LINE_HEIGHT: f64 = 19.0;
const HEADING_HEIGHT: f64 = 37.0;
/// Above and below a panel.
pub(crate) const BORDER: f64 = 60.0;
/// Room for names at the left and legends at the right: the same everywhere, so that times stand under each other.
const MARGINS: (f64, f64) = (155.0, 130.0);

/// Size of the title, and its width for each of its characters and units of size.
const TITLE_SIZE: f64 = 20.0;
const TITLE_CHAR: f64 = 0.56;

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

/// A picture, to be written in a format.
pub(crate) struct Picture(Scene);

impl Picture {
    /// Writes `figure.svg` and `figure.png` to a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        put(folder, "figure.svg", |file| file.write_all(self.svg().as_bytes()))?;
        let png = self.png()?;
        put(folder, "figure.png", |file| file.write_all(&png))
    }

    fn svg(&self) -> String {
        SvgBackend::new().render_scene(&self.0)
    }

    fn png(&self) -> Result<Vec<u8>> {
        let png = PngBackend::new().with_scale(SCALE).render_scene(&self.0);
        png.map_err(|error| anyhow!("cannot draw figure.png: {error}"))
    }
}

/// Axes with what is drawn on them.
pub(crate) struct Panel {
    pub(crate) plots: Vec<Plot>,
    pub(crate) layout: Layout,
    height: f64,
}

impl Panel {
    /// With a legend of one entry for each plot.
    pub(crate) fn new(label: &str, plots: Vec<Plot>) -> Self {
        let layout = Layout::auto_from_plots(&plots)
            .with_y_label(label)
            .with_y_axis_min(0.0)
            .with_legend_position(LegendPosition::OutsideRightTop)
            .with_legend_box(false)
            .with_force_margins(MARGINS.0, MARGINS.1);
        let height = HEIGHT.max(ENTRY_HEIGHT * plots.len() as f64 + BORDER);
        Self { plots, layout, height }
    }

    pub(crate) fn with_height(self, height: f64) -> Self {
        Self { height, ..self }
    }

    pub(crate) fn map_layout(self, map: impl FnOnce(Layout) -> Layout) -> Self {
        Self { layout: map(self.layout), ..self }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    /// Where on the horizontal axis.
    pub(crate) at: f64,
    pub(crate) color: &'static str,
    pub(crate) told: String,
}

/// Panels under each other.
pub(crate) struct Column {
    pub(crate) heading: String,
    pub(crate) panels: Vec<Panel>,
    pub(crate) marks: Vec<Mark>,
}

/// What becomes one picture.
pub(crate) struct Page<'a> {
    pub(crate) title: &'a str,
    /// What is below the lowest panels.
    pub(crate) x_label: &'a str,
    /// The end of all horizontal axes, which begin at 0; without it, each is as long as what is on it.
    pub(crate) x_max: Option<f64>,
    pub(crate) columns: Vec<Column>,
}

impl Page<'_> {
    pub(crate) fn draw(self) -> Picture {
        let Self { title, x_label, x_max, mut columns } = self;
        leave_out_empty_rows(&mut columns);
        let heights = row_heights(&columns);
        share_scales(&mut columns, heights.len());
        let (rows, count) = (heights.len(), columns.len());
        let told = told(&columns);
        let mut cells: Vec<Vec<(Vec<Plot>, Layout)>> = (0..rows).map(|_| Vec::new()).collect();
        for Column { heading, panels, marks } in columns {
            for (row, (panel, cells)) in panels.into_iter().zip(&mut cells).enumerate() {
                let Panel { plots, mut layout, .. } = panel;
                if row == 0 && !heading.is_empty() {
                    layout = layout.with_title(heading.clone());
                }
                if row + 1 == rows {
                    layout = layout.with_x_label(x_label);
                }
                if let Some(end) = x_max {
                    layout = layout.with_x_axis_min(0.0).with_x_axis_max(end);
                }
                cells.push((plots, with_marks(layout, &marks, (row == 0).then_some(&told))));
            }
        }
        assemble(title, count, cells, heights, &lines(&told))
    }
}

/// Leaves out what no column has anything of.
fn leave_out_empty_rows(columns: &mut [Column]) {
    let rows = columns.iter().map(|column| column.panels.len()).max().unwrap_or_default();
    let drawn = |row: usize| {
        let mut panels = columns.iter().filter_map(|column| column.panels.get(row));
        panels.any(|panel| !panel.plots.is_empty())
    };
    let drawn: Vec<_> = (0..rows).map(drawn).collect();
    for column in columns {
        let mut drawn = drawn.iter();
        column.panels.retain(|_| drawn.next() == Some(&true));
    }
}

/// The highest panel of each row, and the headings above the first.
fn row_heights(columns: &[Column]) -> Vec<f64> {
    let rows = columns.iter().map(|column| column.panels.len()).max().unwrap_or_default();
    let panels = |row: usize| columns.iter().filter_map(move |column| column.panels.get(row));
    let mut heights: Vec<_> =
        (0..rows).map(|row| panels(row).map(|panel| panel.height).fold(0.0, f64::max)).collect();
    if let Some(first) = heights.first_mut()
        && columns.iter().any(|column| !column.heading.is_empty())
    {
        *first += HEADING_HEIGHT;
    }
    heights
}

/// What stands side by side has one scale, unless it has one of its own.
fn share_scales(columns: &mut [Column], rows: usize) {
    for row in 0..rows {
        let mut panels: Vec<_> = columns.iter_mut().filter_map(|column| column.panels.get_mut(row)).collect();
        panels.retain(|panel| panel.layout.y_axis_max.is_none());
        let most = |ends: &mut dyn Iterator<Item = f64>| ends.fold(0.0, f64::max);
        let padded = most(&mut panels.iter().map(|panel| panel.layout.y_range.1));
        let data =
            most(&mut panels.iter().filter_map(|panel| panel.layout.data_y_range).map(|range| range.1));
        for panel in panels {
            // Ticks are chosen by these, whatever the axis then shows.
            panel.layout.y_range = (0.0, padded);
            panel.layout.data_y_range = Some((0.0, data));
        }
    }
}

/// What happened in any of the columns, by time; each has its place in the list as its number.
fn told(columns: &[Column]) -> Vec<Mark> {
    let mut all: Vec<Mark> = Vec::new();
    for mark in columns.iter().flat_map(|column| column.marks.iter().take(MAX_MARKS)) {
        if !all.contains(mark) {
            all.push(mark.clone());
        }
    }
    all.sort_by(|one, other| one.at.total_cmp(&other.at));
    all
}

/// A line at each mark; with its number among `told` at the top, if that is given, the picture tells what the number means,
/// and it has room beside the others.
fn with_marks(layout: Layout, marks: &[Mark], told: Option<&Vec<Mark>>) -> Layout {
    let room = NUMBER_SHARE * layout.x_axis_max.unwrap_or(layout.x_range.1);
    let mut numbered: Vec<f64> = Vec::new();
    marks.iter().take(MAX_MARKS).fold(layout, |layout, mark| {
        let mut line = ReferenceLine::vertical(mark.at).with_color(mark.color).with_dasharray("3 3");
        let told = told.and_then(|told| told.iter().take(MAX_TOLD).position(|other| other == mark));
        if let Some(number) = told
            && numbered.iter().all(|at| (mark.at - at).abs() >= room)
        {
            line = line.with_label((number + 1).to_string());
            numbered.push(mark.at);
        }
        layout.with_reference_line(line)
    })
}

/// Marks in words.
fn lines(told: &[Mark]) -> Vec<String> {
    let numbered = told.iter().enumerate().take(MAX_TOLD);
    let mut lines: Vec<_> = numbered.map(|(number, mark)| format!("{}: {}", number + 1, mark.told)).collect();
    match told.len().saturating_sub(MAX_TOLD) {
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    lines
}

/// Rows of panels become one picture, with lines of text below them.
fn assemble(
    title: &str,
    columns: usize,
    cells: Vec<Vec<(Vec<Plot>, Layout)>>,
    mut heights: Vec<f64>,
    told: &[String],
) -> Picture {
    let rows = heights.len();
    let (mut plots, mut layouts): (Vec<_>, Vec<_>) = cells.into_iter().flatten().unzip();
    let mut structure: Vec<_> = (0..rows * columns).map(|cell| vec![cell]).collect();
    if !told.is_empty() {
        structure.push((rows * columns..(rows + 1) * columns).collect());
        plots.push(vec![Plot::Text(TextPlot::new().with_body(told.join("\n")).with_padding(4.0))]);
        layouts.push(Layout::auto_from_plots(&[]).with_force_margins(MARGINS.0, 0.0));
        heights.push(LINE_HEIGHT * (told.len() + 1) as f64);
    }
    let width = column_width(columns);
    let figure = Figure::new(heights.len(), columns)
        .with_structure(structure)
        .with_plots(plots)
        .with_layouts(layouts)
        .with_cell_size(width, HEIGHT)
        .with_spacing(4.0)
        .with_title_size(title_size(title, width * columns as f64))
        .with_title(title);
    let figure =
        heights.iter().enumerate().fold(figure, |figure, (row, &height)| figure.with_row_height(row, height));
    Picture(figure.render())
}

fn column_width(columns: usize) -> f64 {
    (PAGE_WIDTH / columns.max(1) as f64).clamp(LEAST_WIDTH, WIDTH)
}

/// So that the title has room in such a width.
fn title_size(title: &str, width: f64) -> u32 {
    let room = width / (title.chars().count().max(1) as f64 * TITLE_CHAR);
    room.min(TITLE_SIZE) as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use kuva::plot::LinePlot;

    use super::*;

    /// What a line is called, its colour and its points.
    pub(crate) type Drawn<'a> = (&'a str, &'a str, Vec<(f64, f64)>);

    pub(crate) fn lines_of(panel: &Panel) -> Vec<Drawn<'_>> {
        let mut all = Vec::new();
        for plot in &panel.plots {
            let Plot::Line(line) = plot else { panic!("not a line") };
            let points = line.data.iter().map(|point| (point.x, point.y)).collect();
            all.push((line.legend_label.as_deref().unwrap_or_default(), line.color.as_str(), points));
        }
        all
    }

    /// Checks a picture that is drawn in both formats: these parts are in it.
    pub(crate) fn assert_drawn(picture: &Picture, parts: &[&str]) {
        let svg = picture.svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for part in parts {
            assert!(svg.contains(part), "{part}");
        }
        assert_eq!(picture.png().unwrap().get(..8), Some(b"\x89PNG\r\n\x1a\n".as_slice()));
    }

    fn panel(plots: usize) -> Panel {
        Panel::new("", (0..plots).map(|_| Plot::Line(LinePlot::new())).collect())
    }

    fn column(rows: &[usize]) -> Column {
        let panels = rows.iter().map(|&plots| panel(plots)).collect();
        Column { heading: String::new(), panels, marks: Vec::new() }
    }

    fn mark(at: f64, color: &'static str, told: &str) -> Mark {
        Mark { at, color, told: told.to_owned() }
    }

    #[test]
    fn a_row_that_no_column_has_anything_of_has_no_place() {
        let mut columns = vec![column(&[1, 0, 0, 2]), column(&[1, 0, 3, 0])];
        leave_out_empty_rows(&mut columns);
        let left = columns.iter().map(|column| column.panels.iter().map(|panel| panel.plots.len()).collect());
        assert_eq!(left.collect::<Vec<Vec<_>>>(), [[1, 0, 2], [1, 3, 0]]);
    }

    /// Legends and panels with a height of their own have room, in the whole row.
    #[test]
    fn rows_are_as_high_as_their_highest_panel() {
        let mut columns = vec![column(&[1, 32]), column(&[1, 1])];
        assert_eq!(row_heights(&columns), [HEIGHT, ENTRY_HEIGHT * 32.0 + BORDER]);
        columns[1].panels.push(panel(1).with_height(20.0));
        assert!((row_heights(&columns)[2] - 20.0).abs() < 1e-9);
        columns[1].heading = "b".to_owned();
        assert_eq!(row_heights(&columns)[..2], [HEIGHT + HEADING_HEIGHT, ENTRY_HEIGHT * 32.0 + BORDER]);
    }

    #[test]
    fn panels_side_by_side_have_one_scale() {
        let up_to =
            |y: f64| Panel::new("", vec![Plot::Line(LinePlot::new().with_data([(0.0, y / 2.0), (1.0, y)]))]);
        let own = |y| up_to(y).map_layout(|layout| layout.with_y_axis_max(7.0));
        let page = |panels: Vec<Panel>| Column { heading: String::new(), panels, marks: Vec::new() };
        let mut columns = vec![page(vec![up_to(10.0), own(1.0)]), page(vec![up_to(400.0), up_to(90.0)])];
        share_scales(&mut columns, 2);
        let ends = |column: usize, row: usize| {
            let layout = &columns[column].panels[row].layout;
            (layout.y_range, layout.data_y_range.unwrap())
        };
        assert_eq!(ends(0, 0), ends(1, 0));
        assert_eq!([ends(0, 0).1, ends(0, 1).1, ends(1, 1).1], [(0.0, 400.0), (0.5, 1.0), (0.0, 90.0)]);
    }

    /// What happened in several columns has one number, and is told once.
    #[test]
    fn marks_are_numbered_by_time() {
        let (first, second, third) =
            (mark(1.0, FAULT, "at 1, a"), mark(2.0, FLOW, "at 2, b"), mark(2.0, REPAIR, "at 2, c"));
        let with = |marks: &[&Mark]| Column {
            heading: String::new(),
            panels: vec![panel(1)],
            marks: marks.iter().copied().cloned().collect(),
        };
        let columns = [with(&[&second, &third]), with(&[&first, &third])];
        let told = told(&columns);
        assert_eq!(lines(&told), ["1: at 1, a", "2: at 2, b", "3: at 2, c"]);
        let drawn = |told| {
            let layout = with_marks(Layout::new((0.0, 1.0), (0.0, 1.0)), &columns[1].marks, told);
            let line = |line: &ReferenceLine| (line.value, line.color.clone(), line.label.clone());
            layout.reference_lines.iter().map(line).collect::<Vec<_>>()
        };
        let number = |number: &str| Some(number.to_owned());
        assert_eq!(
            drawn(Some(&told)),
            [(1.0, FAULT.to_owned(), number("1")), (2.0, REPAIR.to_owned(), number("3"))]
        );
        assert!(drawn(None).iter().all(|(.., label)| label.is_none()));
        let many: Vec<_> = (0..14).map(|at| mark(f64::from(at), FAULT, "x")).collect();
        assert_eq!((lines(&many).len(), lines(&many)[12].as_str()), (13, "and 2 more"));
        let layout = with_marks(Layout::new((0.0, 1.0), (0.0, 1.0)), &many, Some(&many));
        let numbered = layout.reference_lines.iter().filter(|line| line.label.is_some());
        assert_eq!(
            (layout.reference_lines.len(), numbered.count()),
            (14, 12),
            "a number stands for a line of text"
        );
        let long = with_marks(Layout::new((0.0, 60.0), (0.0, 1.0)), &many, Some(&many));
        let numbered: Vec<_> = long.reference_lines.iter().filter_map(|line| line.label.as_deref()).collect();
        assert_eq!(numbered, ["1", "3", "5", "7", "9", "11"], "numbers have room");
    }

    /// Titles that are too long for their picture are smaller.
    #[test]
    fn titles_have_room() {
        let sizes = [("short", 1), (&"x".repeat(84), 1), (&"x".repeat(84), 2), ("", 1)];
        assert_eq!(
            sizes.map(|(title, columns)| title_size(title, WIDTH * f64::from(columns))),
            [20, 17, 20, 20]
        );
    }

    #[test]
    fn many_columns_are_narrower() {
        assert_eq!(
            [1, 4, 5, 6, 7, 40].map(|columns| column_width(columns) as u32),
            [800, 800, 640, 533, 480, 480]
        );
    }

    #[test]
    fn headings_titles_and_words_are_in_the_picture() {
        let columns = (0..3).map(|number| Column {
            heading: format!("column {number}"),
            panels: vec![Panel::new("rate, Gb/s", vec![Plot::Line(LinePlot::new().with_data([(0.0, 1.0)]))])],
            marks: vec![mark(0.5, FAULT, "at 0.5 s, it breaks")],
        });
        let page =
            Page { title: "Much & <little>", x_label: "s", x_max: Some(2.0), columns: columns.collect() };
        let parts =
            ["Much &amp; &lt;little&gt;", "column 0", "column 2", "rate, Gb/s", "1: at 0.5 s, it breaks"];
        assert_drawn(&page.draw(), &parts);
    }
}
