mod xml;

use super::*;
use xml::{Element, parse};

/// Name, colour and points of a line.
pub(crate) type Drawn<'a> = (&'a str, &'a str, Vec<(f64, f64)>);

pub(crate) fn lines_of(panel: &Panel) -> Vec<Drawn<'_>> {
    let Content::Lines(lines) = &panel.content else { panic!("not lines") };
    lines.iter().map(|line| (line.key.name.as_str(), line.key.color, line.points.clone())).collect()
}

/// Whether a text is in it.
pub(crate) fn has(picture: &Picture, text: &str) -> bool {
    picture.0.contains(text)
}

/// Checks a picture: it is well-formed, all of it is inside its borders, no two texts overlap, and it has these texts.
pub(crate) fn assert_drawn(picture: &Picture, parts: &[&str]) {
    let elements = parse(&picture.0);
    let root = &elements[0];
    assert_eq!(root.name, "svg");
    let (width, height) = (root.number("width"), root.number("height"));
    assert_eq!(root.attributes["viewBox"], format!("0 0 {width} {height}"));
    for element in &elements[1..] {
        let (left, top, right, bottom) = bounds(element);
        let inside = left >= 0.0 && top >= 0.0 && right <= width && bottom <= height;
        assert!(inside, "outside {width} x {height}: {element:?}");
    }
    let texts: Vec<_> = elements.iter().filter(|element| element.name == "text").collect();
    for (number, text) in texts.iter().enumerate() {
        let overlapping = texts[number + 1..].iter().find(|other| overlap(text, other));
        assert!(overlapping.is_none(), "{text:?} overlaps {overlapping:?}");
    }
    for part in parts {
        let mut texts = elements.iter().map(|element| &element.text);
        assert!(texts.any(|text| text.contains(part)), "{part}");
    }
    for wrong in ["NaN", "inf"] {
        assert!(!elements.iter().flat_map(|element| element.attributes.values()).any(|text| text == wrong));
    }
}

/// Corners of the rectangle around what an element draws.
fn bounds(element: &Element) -> (f64, f64, f64, f64) {
    let number = |attribute: &str| element.number(attribute);
    let points: Vec<(f64, f64)> = match element.name.as_str() {
        "rect" => {
            let (x, y) = (number("x"), number("y"));
            assert!(number("width") >= 0.0 && number("height") >= 0.0, "{element:?}");
            vec![(x, y), (x + number("width"), y + number("height"))]
        }
        "line" => vec![(number("x1"), number("y1")), (number("x2"), number("y2"))],
        "path" => path_points(&element.attributes["d"]),
        "text" => corners(element),
        _ => {
            assert_eq!(element.name, "title");
            return (0.0, 0.0, 0.0, 0.0);
        }
    };
    let fold = |of: fn(&(f64, f64)) -> f64, pick: fn(f64, f64) -> f64| {
        points.iter().map(of).reduce(pick).expect("there are points")
    };
    (fold(|p| p.0, f64::min), fold(|p| p.1, f64::min), fold(|p| p.0, f64::max), fold(|p| p.1, f64::max))
}

fn path_points(path: &str) -> Vec<(f64, f64)> {
    let points = path.split(['M', 'Z', ' ']).filter(|point| !point.is_empty());
    let point = |point: &str| {
        let (x, y) = point.split_once(',').unwrap_or_else(|| panic!("{point}"));
        (x.parse().unwrap(), y.parse().unwrap())
    };
    points.map(point).collect()
}

/// The angle of a text in degrees.
fn angle(text: &Element) -> f64 {
    let turned = text.attributes.get("transform").and_then(|turned| turned.strip_prefix("rotate("));
    turned.map_or(0.0, |turned| turned.split(' ').next().unwrap().parse().unwrap())
}

/// Those of a text, by its estimated size.
fn corners(text: &Element) -> Vec<(f64, f64)> {
    let (x, y, size) = (text.number("x"), text.number("y"), text.number("font-size"));
    let width = text::width(&text.text, size);
    let left = match text.attributes.get("text-anchor").map(String::as_str) {
        Some("middle") => -width / 2.0,
        Some("end") => -width,
        _ => 0.0,
    };
    let (sine, cosine) = angle(text).to_radians().sin_cos();
    // Capitals and digits; few labels have a descender.
    let (top, bottom) = (-0.75 * size, 0.05 * size);
    let corners = [(left, top), (left + width, top), (left + width, bottom), (left, bottom)];
    corners.map(|(dx, dy)| (x + dx * cosine - dy * sine, y + dx * sine + dy * cosine)).to_vec()
}

/// Of parallel texts, whether they overlap; of others, whether the rectangles around them do.
fn overlap(one: &Element, other: &Element) -> bool {
    let (sine, cosine) =
        if (angle(one) - angle(other)).abs() < 1e-9 { angle(one).to_radians().sin_cos() } else { (0.0, 1.0) };
    let extent = |text: &Element, (along_x, along_y): (f64, f64)| {
        let along = corners(text).into_iter().map(|(x, y)| x * along_x + y * along_y).collect::<Vec<_>>();
        (along.iter().copied().fold(f64::MAX, f64::min), along.iter().copied().fold(f64::MIN, f64::max))
    };
    [(cosine, sine), (-sine, cosine)].into_iter().all(|direction| {
        let (one, other) = (extent(one, direction), extent(other, direction));
        one.0 < other.1 - 1e-6 && other.0 < one.1 - 1e-6
    })
}

fn line(points: &[(f64, f64)]) -> Line {
    Line::new(Key::new("line", "#0072b2"), points.to_vec())
}

/// A panel with this many lines.
fn panel(lines: usize) -> Panel {
    Panel::new("", Content::Lines(vec![line(&[]); lines]))
}

fn column(panels: Vec<Panel>) -> Column {
    Column { heading: String::new(), panels, marks: Vec::new() }
}

fn with_lines(rows: &[usize]) -> Column {
    column(rows.iter().map(|&lines| panel(lines)).collect())
}

fn page(columns: Vec<Column>) -> Page<'static> {
    Page { title: "title", x_label: "s", x_max: Some(2.0), columns }
}

fn mark(at: f64, color: &'static str, description: &str) -> Mark {
    Mark { at, color, description: description.to_owned() }
}

fn frame(x_max: f64) -> Frame {
    let plot = Rect { left: 100.0, top: 50.0, width: 500.0, height: 100.0 };
    Frame {
        plot,
        margins: (100.0, 100.0),
        labels: 20.0,
        x: Ticks::up_to(x_max, 500.0, 12.0),
        y: Ticks::covering(1.0, 5),
    }
}

/// Elements of a picture with this name.
fn elements(picture: &Picture, name: &str) -> Vec<Element> {
    let mut elements = parse(&picture.0);
    elements.retain(|element| element.name == name);
    elements
}

#[test]
fn a_row_that_is_empty_in_each_column_has_no_place() {
    let mut columns = vec![with_lines(&[1, 0, 0, 2]), with_lines(&[1, 0, 3, 0])];
    leave_out_empty_rows(&mut columns);
    let left = columns.iter().map(|column| column.panels.iter().map(|panel| panel.legend().len()).collect());
    assert_eq!(left.collect::<Vec<Vec<_>>>(), [[1, 0, 2], [1, 3, 0]]);
}

/// Legends have room, as have titles and headings, in the whole row.
#[test]
fn rows_are_as_high_as_their_highest_panel() {
    let mut columns = vec![with_lines(&[1, 32]), with_lines(&[1, 1])];
    let rows =
        |columns: &[Column]| [0, 1].map(|row| row_layout(columns, row)).map(|row| (row.above, row.plot));
    let legend = chart::ENTRY_HEIGHT * 32.0;
    assert_eq!(rows(&columns), [(ABOVE, HEIGHT), (ABOVE, legend)]);
    columns[1].heading = "b".to_owned();
    assert_eq!(rows(&columns), [(ABOVE + HEADING_HEIGHT, HEIGHT), (ABOVE, legend)]);
    columns[1].panels[1].title = "t".to_owned();
    assert_eq!(rows(&columns)[1], (ABOVE + PANEL_TITLE_HEIGHT, legend));
}

#[test]
fn panels_side_by_side_have_one_scale() {
    let up_to = |y: f64| Panel::new("", Content::Lines(vec![line(&[(0.0, y / 2.0), (1.0, y)])]));
    let row = |name: &str| Row { name: name.to_owned(), spans: Vec::new() };
    let timeline = Timeline { keys: Vec::new(), rows: vec![row("a"), row("b")] };
    let timeline = Panel::new("", Content::Timeline(timeline));
    let columns = [column(vec![up_to(10.0), timeline]), column(vec![up_to(400.0), up_to(90.0)])];
    let ends = [0, 1].map(|row| row_layout(&columns, row).y.end() as u32);
    assert_eq!(ends, [400, 100], "a timeline has rows of its own");
    let paths = elements(&page(columns.into()).draw(), "path");
    let rises = paths.iter().map(|path| {
        let points = path_points(&path.attributes["d"]);
        points[0].1 - points[1].1
    });
    let expected = [HEIGHT * 5.0 / 400.0, HEIGHT * 200.0 / 400.0, HEIGHT * 45.0 / 100.0];
    for (rise, expected) in rises.zip(expected) {
        assert!((rise - expected).abs() < 0.02, "{rise} {expected}");
    }
}

#[test]
fn plots_of_all_rows_and_columns_align() {
    let with = |y: f64, name: &str| {
        let line = Line::new(Key::new(name, "black"), vec![(0.0, y), (2.0, y)]);
        Panel::new("label", Content::Lines(vec![line]))
    };
    let column = || column(vec![with(0.01, "a"), with(123_456.0, "a longer name")]);
    let paths = elements(&page(vec![column(), column()]).draw(), "path");
    let ends = paths.iter().map(|path| {
        let points = path_points(&path.attributes["d"]);
        (points[0].0, points[1].0)
    });
    let ends: Vec<_> = ends.collect();
    assert_eq!(ends.len(), 4);
    assert_eq!((ends[0], ends[2]), (ends[1], ends[3]));
    assert!((ends[2].0 - ends[0].0 - WIDTH).abs() < 1e-9);
}

/// An event of several columns has one number and one description.
#[test]
fn marks_are_numbered_by_time() {
    let (first, second, third) =
        (mark(1.0, FAULT, "at 1, a"), mark(2.0, FLOW, "at 2, b"), mark(2.0, REPAIR, "at 2, c"));
    let with = |marks: &[&Mark]| Column {
        heading: String::new(),
        panels: vec![panel(1), panel(1)],
        marks: marks.iter().copied().cloned().collect(),
    };
    let columns = vec![with(&[&second, &third]), with(&[&first, &third])];
    let events = events(&columns);
    assert_eq!(descriptions(&events), ["1: at 1, a", "2: at 2, b", "3: at 2, c"]);
    let of = |column: usize| -> Vec<_> {
        let labels = numbers(&frame(4.0), &columns[column].marks, &events);
        labels.iter().map(|label| (label.label(), label.color)).collect()
    };
    assert_eq!(of(0), [("2-3".to_owned(), FLOW)]);
    assert_eq!(of(1), [("1".to_owned(), FAULT), ("3".to_owned(), REPAIR)]);
    let picture = Page { x_max: Some(4.0), ..page(columns) }.draw();
    let lines = elements(&picture, "line");
    let dashed = lines.iter().filter(|line| line.attributes.contains_key("stroke-dasharray"));
    assert_eq!(dashed.count(), 8, "each mark in each panel of its column");
    let texts = elements(&picture, "text");
    assert_eq!(texts.iter().filter(|text| text.text == "2-3").count(), 1, "in the first panel alone");
    assert_drawn(&picture, &["3: at 2, c"]);
}

#[test]
fn numbers_have_room() {
    let many: Vec<_> = (0..14).map(|at| mark(f64::from(at), FAULT, "x")).collect();
    let lines = descriptions(&many);
    assert_eq!((lines.len(), lines[12].as_str()), (13, "and 2 more"));
    let labels = |x_max: f64, marks: &[Mark]| -> Vec<String> {
        let labels = numbers(&frame(x_max), marks, &many);
        assert!(labels.windows(2).all(|pair| pair[0].right() + NUMBER_GAP <= pair[1].left));
        labels.iter().map(Numbers::label).collect()
    };
    assert_eq!(labels(14.0, &many).len(), 12, "a number stands for a line of text");
    assert_eq!(labels(60.0, &many), ["1-3", "4-6", "7-11", "12"]);
    assert_eq!(labels(5000.0, &many), ["1-12"]);
    // A column does not have all of the events.
    let some: Vec<_> = many.iter().step_by(3).cloned().collect();
    assert_eq!(labels(5000.0, &some), ["1..10"]);
    assert_eq!(labels(5000.0, &some[..2]), ["1,4"]);
    assert_eq!(labels(5.0, &many), ["1", "2", "3", "4", "5", "6"], "those on the axis");
}

/// Titles that are too long for their picture are smaller, and cut if they are far too long.
#[test]
fn titles_fit() {
    for (length, size) in [(10, "20"), (84, "14"), (400, "12")] {
        let title = "x".repeat(length);
        let picture = Page { title: &title, ..page(vec![with_lines(&[1])]) }.draw();
        let text = &elements(&picture, "text")[0];
        assert_eq!((text.attributes["font-size"].as_str(), text.text.ends_with('…')), (size, length == 400));
        assert_drawn(&picture, &[&title]);
    }
}

#[test]
fn many_columns_are_narrower() {
    assert_eq!(
        [1, 4, 5, 6, 7, 40].map(|columns| column_width(columns) as u32),
        [800, 800, 640, 533, 480, 480]
    );
    // But names and legends do not take all of the width.
    let long = Line::new(Key::new(&"long name ".repeat(9), "black"), Vec::new());
    let columns = (0..9).map(|_| column(vec![Panel::new("", Content::Lines(vec![long.clone()]))]));
    let picture = page(columns.collect()).draw();
    assert!(parse(&picture.0)[0].number("width") > 9.0 * (MAX_RIGHT + LEAST_PLOT));
    assert_drawn(&picture, &["long name"]);
}

#[test]
fn headings_titles_and_descriptions_are_in_the_picture() {
    let columns = (0..3).map(|number| Column {
        heading: format!("column {number}"),
        panels: vec![Panel::new("rate, Gb/s", Content::Lines(vec![line(&[(0.0, 1.0)])]))],
        marks: vec![mark(0.5, FAULT, "at 0.5 s, \"it\" breaks")],
    });
    let picture = Page { title: "Much & <little>", ..page(columns.collect()) }.draw();
    assert!(picture.0.contains("Much &amp; &lt;little&gt;"));
    let parts =
        ["Much & <little>", "column 0", "column 2", "rate, Gb/s", "1: at 0.5 s, \"it\" breaks", "line"];
    assert_drawn(&picture, &parts);
}

fn bars(names: &[String], values: &[f64]) -> Panel {
    let group = |name: &String| Group { name: name.clone(), values: values.to_vec() };
    let keys = vec![Key::new("slowest", "#56b4e9"), Key::new("fastest", "#009e73")];
    let content = Content::Bars(Bars { keys, groups: names.iter().map(group).collect() });
    Panel { title: "workload".to_owned(), ..Panel::new("message, us", content) }
}

#[test]
fn long_names_below_bars_are_sloped() {
    let slope = |count: usize, chars: usize| {
        let names: Vec<_> = (0..count).map(|number| format!("{number}{}", "x".repeat(chars))).collect();
        let page = Page { x_label: "", x_max: None, ..page(vec![column(vec![bars(&names, &[1.0, 2.0])])]) };
        let picture = page.draw();
        assert_drawn(&picture, &["workload", "slowest", "0xx", ", fastest: 2"]);
        let texts = elements(&picture, "text");
        let names: Vec<_> = texts.iter().filter(|text| text.text.contains("xx")).collect();
        (angle(names[0]), names.len())
    };
    // Steeper where more have to be beside each other, or where the first would be cut at the edge.
    let slopes = [(1, 5), (3, 15), (3, 40), (3, 400), (16, 5), (16, 10), (30, 8), (45, 10), (100, 10)];
    let expected = [
        (0.0, 1),
        (0.0, 3),
        (-20.0, 3),
        (-20.0, 3),
        (-20.0, 16),
        (-45.0, 16),
        (-45.0, 30),
        (-90.0, 45),
        (-90.0, 34),
    ];
    for ((count, chars), expected) in slopes.into_iter().zip(expected) {
        assert_eq!(slope(count, chars), expected, "{count} names of {chars}");
    }
}

/// Values that are no numbers, that are out of range, or of any size.
#[test]
fn all_values_can_be_drawn() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e-320, 3e-7, 5.0, 1e12, f64::MAX];
    for x_max in [None, Some(f64::NAN), Some(0.0), Some(3.0), Some(1e300)] {
        let each = odd.iter().map(|&most| {
            let points: Vec<_> = odd.iter().map(|&x| (x, most)).chain([(1.0, 1.0), (2.0, most)]).collect();
            let series = |name: &str| Series { key: Key::new(name, "black"), values: odd.to_vec() };
            let area = StackedArea { x: odd.to_vec(), series: vec![series("a"), series("b")] };
            let span = |from: f64, to: f64, key: usize| Span { from, to, key };
            let spans = vec![span(most, 1.0, 0), span(0.0, most, 0), span(0.0, 1.0, 7)];
            let row = Row { name: "a row with quite a long name".to_owned(), spans };
            let timeline = Timeline { keys: vec![Key::new("key", "black")], rows: vec![row.clone(), row] };
            Column {
                heading: "heading ".repeat(30),
                panels: vec![
                    Panel::new("lines", Content::Lines(vec![line(&points), line(&[(0.5, most)])])),
                    Panel::new("area of a very long label indeed", Content::StackedArea(area)),
                    bars(&["a".to_owned(), "b".to_owned()], &[most, 2.0]),
                    Panel::new("EV (queue pair, plane)", Content::Timeline(timeline)),
                ],
                marks: vec![mark(most, FAULT, &format!("event at {most} {}", "and more ".repeat(40)))],
            }
        });
        let draw = |columns| Page { x_max, ..page(columns) }.draw();
        assert_drawn(&draw(each.clone().collect()), &["heading", "lines", "event at 5"]);
        for column in each {
            assert_drawn(&draw(vec![column]), &["heading"]);
        }
    }
    assert_drawn(&page(Vec::new()).draw(), &["title"]);
    assert_drawn(&page(vec![column(Vec::new())]).draw(), &["title"]);
}

#[test]
fn lines_and_areas_are_where_their_values_are() {
    let picture = |content| {
        let page = Page { x_max: Some(10.0), ..page(vec![column(vec![Panel::new("", content)])]) };
        let paths = elements(&page.draw(), "path");
        paths.iter().map(|path| path_points(&path.attributes["d"])).collect::<Vec<_>>()
    };
    let corners = picture(Content::Lines(vec![line(&[(0.0, 0.0), (10.0, 4.0)]), line(&[(5.0, 2.0)])]));
    let [(left, bottom), (right, top)] = corners[0][..] else { panic!("two points") };
    assert!((bottom - top - HEIGHT).abs() < 0.02, "the scale ends at 4");
    let middle = (f64::midpoint(left, right), f64::midpoint(top, bottom));
    assert_eq!(corners[1], [middle, middle], "a single point shows");
    let series = |values: [f64; 2]| Series { key: Key::new("line", "black"), values: values.to_vec() };
    let (low, high) = (series([1.0, 1.0]), series([3.0, 0.0]));
    let none = series([0.0, 0.0]);
    let area = StackedArea { x: vec![0.0, 10.0], series: vec![low, none, high] };
    let areas = picture(Content::StackedArea(area));
    let up = |value: f64| bottom - (bottom - top) * value / 4.0;
    assert_eq!(
        areas,
        [
            vec![(left, up(1.0)), (right, up(1.0)), (right, bottom), (left, bottom)],
            vec![(left, top), (right, up(1.0)), (left, up(1.0))],
        ]
    );
}

/// A picture of long series stays small, and is the same each time.
#[test]
fn pictures_repeat_and_are_compact() {
    let draw = || {
        let wave = |step: u32| (f64::from(step) / 500.0, f64::from(step * 7919 % 1000) / 3.0);
        let points: Vec<_> = (0..1000).map(wave).collect();
        let level: Vec<_> = (0..1000).map(|step| (f64::from(step) / 500.0, 7.0)).collect();
        page(vec![column(vec![Panel::new("", Content::Lines(vec![line(&points), line(&level)]))])]).draw()
    };
    let picture = draw();
    assert_eq!(picture.0, draw().0);
    assert!(picture.0.len() < 20_000, "{}", picture.0.len());
    assert!(elements(&picture, "path")[1].attributes["d"].len() < 40);
}
