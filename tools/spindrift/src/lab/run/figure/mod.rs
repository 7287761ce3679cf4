//! A picture of an experiment: a column for each flow, and under each other what arrived, over which planes, what was lost, and the
//! states of the entropy values.

mod timeline;

use anyhow::{Result, anyhow};
use kuva::backend::png::PngBackend;
use kuva::backend::svg::SvgBackend;
use kuva::plot::legend::LegendPosition;
use kuva::plot::text::TextPlot;
use kuva::plot::{LinePlot, StackedAreaPlot};
use kuva::render::annotations::ReferenceLine;
use kuva::render::figure::Figure;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;
use kuva::render::render::Scene;

use super::outcome::{EventKind, EventOutcome, FlowOutcome, Outcome};
use super::report::STEP_MS;
use super::series::{Step, steps};
use crate::bench::samples::{PathSample, PlaneSample};

/// Steps that a picture shows. Of longer experiments each is a multiple of what the table of samples has.
const MAX_STEPS: usize = 1000;
/// Events that are told in words. The summary tells all.
const MAX_EVENTS: usize = 12;
/// Pixels of the PNG for each unit of the picture.
const SCALE: f32 = 1.5;

/// Width of a column, and heights of its panels, of an entry of a legend, of a row of a panel, and of a line of text.
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 190.0;
const ENTRY_HEIGHT: f64 = 18.0;
const ROW_HEIGHT: f64 = 14.0;
const LINE_HEIGHT: f64 = 19.0;
/// Above and below a panel.
const BORDER: f64 = 60.0;
/// Room for names at the left and legends at the right: the same everywhere, so that times stand under each other.
const MARGINS: (f64, f64) = (155.0, 130.0);

/// Size of the title, and its width for each of its characters and units of size.
const TITLE_SIZE: f64 = 20.0;
const TITLE_CHAR: f64 = 0.56;
/// Most paths of a flow that are drawn one by one.
const MAX_PATHS: usize = 8;

/// Colours that people who see colours differently can tell apart (after Okabe and Ito).
const PLANES: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#f0e442"];
const ARRIVED: &str = "#0072b2";
const LOST: &str = "#d55e00";
const USED: &str = "#009e73";
const SKIPPED: &str = "#f0e442";
const RESERVE: &str = "#56b4e9";
const BAD: &str = "#d55e00";
const DENIED: &str = "#000000";
const DOWN: &str = "#bbbbbb";
const FAULT: &str = "#c1272d";
const REPAIR: &str = "#2e8b57";
const FLOW: &str = "#555555";

/// Entropy values of a plane, by state: name, colour, and how many there are of it.
type StateCount = fn(&PlaneSample) -> u64;
const STATES: [(&str, &str, StateCount); 6] = [
    ("good", USED, |plane| if plane.up { plane.good } else { 0 }),
    ("skipped once", SKIPPED, |plane| if plane.up { plane.skip } else { 0 }),
    ("in reserve", RESERVE, |plane| if plane.up { plane.reserve } else { 0 }),
    ("assumed bad", BAD, |plane| if plane.up { plane.assumed_bad } else { 0 }),
    ("denied", DENIED, |plane| if plane.up { plane.denied } else { 0 }),
    ("own port down", DOWN, |plane| if plane.up { 0 } else { plane.evs() }),
];

/// A picture, to be written in a format.
pub(super) struct Picture(Scene);

impl Picture {
    pub(super) fn svg(&self) -> String {
        SvgBackend::new().render_scene(&self.0)
    }

    pub(super) fn png(&self) -> Result<Vec<u8>> {
        let png = PngBackend::new().with_scale(SCALE).render_scene(&self.0);
        png.map_err(|error| anyhow!("cannot draw figure.png: {error}"))
    }
}

/// Axes with what is drawn on them.
struct Panel {
    plots: Vec<Plot>,
    layout: Layout,
}

impl Panel {
    fn new(label: &str, plots: Vec<Plot>) -> Self {
        let layout = Layout::auto_from_plots(&plots)
            .with_y_label(label)
            .with_x_axis_min(0.0)
            .with_y_axis_min(0.0)
            .with_legend_position(LegendPosition::OutsideRightTop)
            .with_legend_box(false)
            .with_force_margins(MARGINS.0, MARGINS.1);
        Self { plots, layout }
    }

    fn map_layout(self, map: impl FnOnce(Layout) -> Layout) -> Self {
        Self { layout: map(self.layout), plots: self.plots }
    }
}

/// A picture of the first `length_ms` of an experiment.
pub(super) fn draw(title: &str, planes: usize, length_ms: usize, outcome: &Outcome) -> Picture {
    let step_ms = step_ms(length_ms);
    let columns: Vec<Vec<Panel>> = outcome
        .flows
        .iter()
        .map(|flow| {
            let steps = steps(flow, planes, length_ms, step_ms);
            let possible = possible(flow, outcome, length_ms as f64);
            vec![
                goodput(&steps, &possible),
                of_planes(&steps),
                losses(&steps, step_ms),
                of_paths(&steps, step_ms),
                states(&steps),
            ]
        })
        .collect();
    let columns = without_empty_rows(columns);
    let lives: Vec<_> =
        outcome.flows.iter().map(|flow| timeline::lives(&flow.sender, length_ms as f64)).collect();
    let mut heights = vec![HEIGHT; columns.first().map_or(0, Vec::len)];
    if let Some(of_planes) = heights.get_mut(1) {
        *of_planes = HEIGHT.max(ENTRY_HEIGHT * planes as f64 + BORDER);
    }
    let longest = lives.iter().map(Vec::len).max().unwrap_or_default();
    if longest > 0 {
        heights.push(ROW_HEIGHT * longest as f64 + BORDER);
    }
    let end_s = length_ms as f64 / 1e3;
    let columns = columns.into_iter().zip(&lives).map(|(column, lives)| {
        let timeline = (longest > 0).then(|| timeline::panel(lives));
        let panels = column.into_iter().chain(timeline);
        panels.map(|panel| panel.map_layout(|layout| layout.with_x_axis_max(end_s))).collect()
    });
    arrange(title, outcome, columns.collect(), heights)
}

/// Leaves out what no column has anything of.
fn without_empty_rows(columns: Vec<Vec<Panel>>) -> Vec<Vec<Panel>> {
    let rows = columns.iter().map(Vec::len).max().unwrap_or_default();
    let drawn =
        |row: usize| columns.iter().filter_map(|column| column.get(row)).any(|panel| !panel.plots.is_empty());
    let drawn: Vec<_> = (0..rows).map(drawn).collect();
    let kept = |column: Vec<Panel>| {
        column.into_iter().zip(&drawn).filter_map(|(panel, drawn)| drawn.then_some(panel)).collect()
    };
    columns.into_iter().map(kept).collect()
}

/// Panels become one picture, with what happened in words below it.
fn arrange(title: &str, outcome: &Outcome, columns: Vec<Vec<Panel>>, mut heights: Vec<f64>) -> Picture {
    let (rows, flows) = (heights.len(), columns.len());
    let mut columns: Vec<_> = columns.into_iter().map(IntoIterator::into_iter).collect();
    let (mut plots, mut layouts) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for (column, flow) in columns.iter_mut().zip(&outcome.flows) {
            let Some(Panel { plots: drawn, mut layout }) = column.next() else { continue };
            if row == 0 {
                layout = layout.with_title(format!("flow {}", flow.name));
            }
            if row + 1 == rows {
                layout = layout.with_x_label("s");
            }
            layouts.push(with_events(layout, outcome, row == 0));
            plots.push(drawn);
        }
    }
    let mut structure: Vec<_> = (0..rows * flows).map(|cell| vec![cell]).collect();
    let told = told(outcome);
    if !told.is_empty() {
        structure.push((rows * flows..(rows + 1) * flows).collect());
        plots.push(vec![Plot::Text(TextPlot::new().with_body(told.join("\n")).with_padding(4.0))]);
        layouts.push(Layout::auto_from_plots(&[]).with_force_margins(MARGINS.0, 0.0));
        heights.push(LINE_HEIGHT * (told.len() + 1) as f64);
    }
    let figure = Figure::new(heights.len(), flows)
        .with_structure(structure)
        .with_plots(plots)
        .with_layouts(layouts)
        .with_cell_size(WIDTH, HEIGHT)
        .with_spacing(4.0)
        .with_title_size(title_size(title, flows))
        .with_title(title);
    let figure =
        heights.iter().enumerate().fold(figure, |figure, (row, &height)| figure.with_row_height(row, height));
    Picture(figure.render())
}

/// So that the title has room above so many columns.
fn title_size(title: &str, columns: usize) -> u32 {
    let room = (WIDTH * columns as f64) / (title.chars().count().max(1) as f64 * TITLE_CHAR);
    room.min(TITLE_SIZE) as u32
}

/// Milliseconds of a step.
fn step_ms(length_ms: usize) -> usize {
    length_ms.div_ceil(STEP_MS * MAX_STEPS).max(1) * STEP_MS
}

/// A line at each event, with its number at the top.
fn with_events(layout: Layout, outcome: &Outcome, numbered: bool) -> Layout {
    outcome.events.iter().enumerate().fold(layout, |layout, (number, event)| {
        let color = match event.kind {
            EventKind::Fault => FAULT,
            EventKind::Repair => REPAIR,
            EventKind::Flow => FLOW,
        };
        let mut line = ReferenceLine::vertical(event.at_ms / 1e3).with_color(color).with_dasharray("3 3");
        if numbered {
            line = line.with_label((number + 1).to_string());
        }
        layout.with_reference_line(line)
    })
}

/// The events in words.
fn told(outcome: &Outcome) -> Vec<String> {
    let line = |(number, event): (usize, &EventOutcome)| {
        format!("{}: at {:.3} s, {}", number + 1, event.at_ms / 1e3, event.in_short())
    };
    let mut lines: Vec<_> = outcome.events.iter().enumerate().take(MAX_EVENTS).map(line).collect();
    match outcome.events.len().saturating_sub(MAX_EVENTS) {
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    lines
}

/// What can pass, as the corners of a line: seconds and Gb/s.
fn possible(flow: &FlowOutcome, outcome: &Outcome, end_ms: f64) -> Vec<(f64, f64)> {
    let mut gbps = flow.baseline_bps / 1e9;
    let mut corners = vec![(flow.start_ms / 1e3, gbps)];
    for event in &outcome.events {
        let Some(effect) = event.flows.iter().find(|effect| effect.flow == flow.name) else { continue };
        let at_s = event.at_ms / 1e3;
        corners.push((at_s, gbps));
        gbps = effect.possible_gbps;
        corners.push((at_s, gbps));
    }
    corners.push((end_ms / 1e3, gbps));
    corners
}

/// A line through the middle of each step.
fn line<'a>(steps: &[Step<'a>], value: impl Fn(&Step<'a>) -> f64) -> LinePlot {
    let points = steps.iter().map(|step| (middle_s(step), value(step)));
    LinePlot::new().with_data(points).with_stroke_width(1.2)
}

fn middle_s(step: &Step<'_>) -> f64 {
    (step.span_ms.start + step.span_ms.end) as f64 / 2e3
}

fn goodput(steps: &[Step<'_>], possible: &[(f64, f64)]) -> Panel {
    let arrived = line(steps, |step| step.bps / 1e9).with_color(ARRIVED).with_legend("arrived");
    let possible = LinePlot::new().with_data(possible.iter().copied()).with_color("black").with_dashed();
    Panel::new("payload, Gb/s", vec![Plot::Line(arrived), Plot::Line(possible.with_legend("can pass"))])
}

fn of_planes(steps: &[Step<'_>]) -> Panel {
    let planes = steps.first().map_or(0, |step| step.planes.len());
    let plane = |(plane, color): (usize, &&str)| {
        let rate = line(steps, |step| step.planes.get(plane).map_or(0.0, |plane| plane.bps / 1e9));
        Plot::Line(rate.with_color(*color).with_legend(format!("plane {plane}")))
    };
    Panel::new("planes, Gb/s", PLANES.iter().cycle().enumerate().take(planes).map(plane).collect())
}

fn losses(steps: &[Step<'_>], step_ms: usize) -> Panel {
    let lost = line(steps, |step| step.losses).with_color(LOST).with_stroke_width(2.6).with_legend("lost");
    let again = line(steps, |step| step.retransmits).with_color(ARRIVED).with_legend("sent again");
    Panel::new(&format!("packets in {step_ms} ms"), vec![Plot::Line(lost), Plot::Line(again)])
}

/// Nothing where paths are unknown or too many.
fn of_paths(steps: &[Step<'_>], step_ms: usize) -> Panel {
    let known = steps.first().map_or(&[][..], |step| &step.paths);
    let known = if known.len() > MAX_PATHS { &[] } else { known };
    let path = |((number, path), color): ((usize, &PathSample), &&str)| {
        let taken = line(steps, |step| step.paths.get(number).map_or(0.0, |path| path.packets as f64));
        let ev = timeline::ev_name(path.ev);
        Plot::Line(taken.with_color(*color).with_legend(format!("{ev} ({})", path.plane)))
    };
    let lines = known.iter().enumerate().zip(PLANES.iter().cycle()).map(path);
    Panel::new(&format!("packets by EV in {step_ms} ms"), lines.collect())
}

fn states(steps: &[Step<'_>]) -> Panel {
    let area = StackedAreaPlot::new().with_x(steps.iter().map(middle_s)).with_strokes(false);
    let area = STATES.iter().fold(area.with_fill_opacity(0.9), |area, (name, color, count)| {
        let all = |step: &Step<'_>| step.planes.iter().map(|plane| count(&plane.state)).sum::<u64>() as f64;
        area.with_series(steps.iter().map(all)).with_color(*color).with_legend(*name)
    });
    Panel::new("entropy values", vec![Plot::StackedArea(area)])
}

#[cfg(test)]
mod tests;
