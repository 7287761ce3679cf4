//! `spindrift lab graph`: a picture of a fabric, as SVG.

use std::fmt::Write as _;

use spindrift_srv6::{Fabric, Link, Node};

/// A node's box, the space between two of them, and the distance of the rows.
const BOX: (u32, u32) = (92, 26);
const GAP: u32 = 18;
const ROW: u32 = 130;
const MARGIN: u32 = 24;
/// Around the planes, which are drawn side by side.
const PLANE_GAP: u32 = 48;
/// Colours of planes, in turn: those of Okabe and Ito that read well on white.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Where the middle of a node's box is.
struct Layout<'a> {
    fabric: &'a Fabric,
    /// Nodes in the widest row of a plane.
    across: u32,
    width: u32,
}

/// What is wrong with a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) down: bool,
    pub(super) faults: Vec<String>,
}

impl Look {
    /// For the title: in brackets, if there is something.
    fn words(&self) -> String {
        let down = self.down.then_some("down").into_iter();
        let faults = self.faults.iter().map(String::as_str).filter(|&fault| fault != "down");
        let words = down.chain(faults).collect::<Vec<_>>().join(" ");
        if words.is_empty() { words } else { format!(" ({words})") }
    }
}

/// Draws a fabric. Links that are down are grey and dashed, those with other faults black and dotted.
pub(super) fn draw(fabric: &Fabric, look: impl Fn(Link) -> Look) -> String {
    let layout = Layout::new(fabric);
    let height = layout.row(0) + BOX.1 / 2 + MARGIN;
    let mut svg = String::new();
    let width = layout.width;
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    for plane in 0..fabric.shape().planes {
        let x = layout.plane_left(plane) + layout.plane_width() / 2;
        let colour = colour(plane);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{MARGIN}\" text-anchor=\"middle\" fill=\"{colour}\">plane {plane}</text>"
        );
    }
    for link in fabric.links() {
        let ((x1, y1), (x2, y2)) = (layout.middle(link.0), layout.middle(link.1));
        // Boxes hide what is behind them.
        let (from, to) = if y1 == y2 { (y1, y2) } else { (y1 - BOX.1 / 2, y2 + BOX.1 / 2) };
        let look = look(link);
        let (stroke, dash) = match &look {
            Look { down: true, .. } => ("#999999", " stroke-dasharray=\"4 4\""),
            Look { faults, .. } if !faults.is_empty() => {
                ("black", " stroke-width=\"2\" stroke-dasharray=\"1 3\"")
            }
            _ => (link.1.plane().map_or("black", colour), ""),
        };
        let (a, b) = (fabric.name(link.0), fabric.name(link.1));
        let state = look.words();
        let _ = writeln!(
            svg,
            "<line x1=\"{x1}\" y1=\"{from}\" x2=\"{x2}\" y2=\"{to}\" stroke=\"{stroke}\"{dash}><title>{a}:{b}{state}</title></line>"
        );
    }
    for node in fabric.nodes() {
        let (x, y) = layout.middle(node);
        let (left, top, (wide, high)) = (x - BOX.0 / 2, y - BOX.1 / 2, BOX);
        let stroke = node.plane().map_or("#333333", colour);
        let name = fabric.name(node);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{wide}\" height=\"{high}\" rx=\"4\" fill=\"white\" stroke=\"{stroke}\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            y + 4,
            short(&name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

impl<'a> Layout<'a> {
    fn new(fabric: &'a Fabric) -> Self {
        let shape = fabric.shape();
        let across = (0..3).map(|tier| u32::from(shape.of_tier(tier))).max().unwrap_or(0);
        let planes = u32::from(shape.planes);
        let of_planes = planes * across * (BOX.0 + GAP) + (planes - 1) * PLANE_GAP;
        let of_hosts = fabric.hosts().len() as u32 * (BOX.0 + GAP);
        Self { fabric, across, width: of_planes.max(of_hosts) + 2 * MARGIN }
    }

    fn plane_width(&self) -> u32 {
        self.across * (BOX.0 + GAP)
    }

    /// The planes are in the middle where the hosts are wider.
    fn plane_left(&self, plane: u8) -> u32 {
        let planes = u32::from(self.fabric.shape().planes);
        let all = planes * self.plane_width() + (planes - 1) * PLANE_GAP;
        (self.width - all) / 2 + u32::from(plane) * (self.plane_width() + PLANE_GAP)
    }

    /// The middle of a row: that of the hosts is 0, and there is one for each tier.
    fn row(&self, up: u32) -> u32 {
        2 * MARGIN + BOX.1 / 2 + (u32::from(self.fabric.shape().tiers()) - up) * ROW
    }

    /// The middle of a node's box.
    fn middle(&self, node: Node) -> (u32, u32) {
        let shape = self.fabric.shape();
        let in_tier = |tier: u8, plane, at| {
            let across = self.plane_left(plane) + spread(self.plane_width(), at, shape.of_tier(tier));
            (across, self.row(u32::from(tier) + 1))
        };
        match node {
            Node::Host(host) => (
                MARGIN + spread(self.width - 2 * MARGIN, host, self.fabric.hosts().len() as u16),
                self.row(0),
            ),
            Node::T0 { plane, number } => in_tier(0, plane, number),
            Node::T1 { plane, number } => in_tier(1, plane, number),
            Node::T2 { plane, number } => in_tier(2, plane, number),
        }
    }
}

/// The middle of one of `of` equal parts of a width.
fn spread(width: u32, at: u16, of: u16) -> u32 {
    width * (2 * u32::from(at) + 1) / (2 * u32::from(of))
}

fn colour(plane: u8) -> &'static str {
    COLOURS.get(usize::from(plane) % COLOURS.len()).copied().unwrap_or("black")
}

/// A name that fits its box.
fn short(name: &str) -> String {
    if name.len() <= 13 { name.to_owned() } else { format!("{}..", name.get(..11).unwrap_or(name)) }
}

#[cfg(test)]
mod tests {
    use spindrift_srv6::{FabricHost, Shape};

    use super::*;

    fn fabric(planes: u8, t0: u16, t1: u16, hosts: u16) -> Fabric {
        let host = |n: u16| FabricHost { name: format!("h{n}"), t0: n % t0, downlink: n / t0 };
        Fabric::new(Shape { planes, t0, t1, ..Shape::default() }, (0..hosts).map(host).collect()).unwrap()
    }

    #[test]
    fn every_node_and_link_is_drawn_inside_and_no_two_boxes_touch() {
        for (planes, t0, t1, hosts) in [(1, 1, 0, 2), (2, 2, 4, 4), (4, 1, 0, 12), (2, 3, 6, 3), (2, 2, 0, 4)]
        {
            let fabric = fabric(planes, t0, t1, hosts);
            let layout = Layout::new(&fabric);
            let svg = draw(&fabric, |_| Look::default());
            assert_eq!(svg.matches("<line ").count(), fabric.links().count());
            assert_eq!(svg.matches("<rect ").count(), 1 + fabric.nodes().count());
            assert!(!svg.contains("stroke-dasharray"));
            let middles: Vec<_> = fabric.nodes().map(|node| layout.middle(node)).collect();
            for (at, &(x, y)) in middles.iter().enumerate() {
                assert!(x >= MARGIN + BOX.0 / 2 && x + BOX.0 / 2 + MARGIN <= layout.width, "{x}");
                let apart = |&&(other, row): &&(u32, u32)| row == y && other.abs_diff(x) < BOX.0;
                assert_eq!(middles[at + 1..].iter().find(apart), None, "{planes} {t0} {t1} {hosts}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_links_is_seen() {
        let fabric = fabric(2, 2, 2, 2);
        let broken = fabric.links().nth(3).unwrap();
        let name = format!("{}:{}", fabric.name(broken.0), fabric.name(broken.1));
        for (down, faults, stroke, words) in [
            (true, &["down"] as &[_], "4 4", " (down)"),
            (true, &[], "4 4", " (down)"),
            (true, &["down", "loss=1%"], "4 4", " (down loss=1%)"),
            (false, &["loss=1%", "rate=1Gbit"], "1 3", " (loss=1% rate=1Gbit)"),
        ] {
            let look = Look { down, faults: faults.iter().map(ToString::to_string).collect() };
            let svg = draw(&fabric, |link| if link == broken { look.clone() } else { Look::default() });
            let dashed: Vec<_> = svg.lines().filter(|line| line.contains("stroke-dasharray")).collect();
            let (dash, title) = (format!("\"{stroke}\""), format!("<title>{name}{words}</title>"));
            assert!(
                dashed.len() == 1 && dashed[0].contains(&dash) && dashed[0].contains(&title),
                "{dashed:?}"
            );
        }
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(
            (short("a-name-of-13-"), short("a-name-of-14--")),
            ("a-name-of-13-".into(), "a-name-of-1..".into())
        );
    }
}
