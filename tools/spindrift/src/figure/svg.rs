//! Elements of an SVG image, written as text.

use super::text;

/// Colour of text and axes.
pub(super) const INK: &str = "#222222";

/// A rectangle in pixels. The vertical axis points down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    pub(super) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub(super) fn center(&self) -> (f64, f64) {
        (self.left + self.width / 2.0, self.top + self.height / 2.0)
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stroke<'a> {
    pub(super) color: &'a str,
    pub(super) width: f64,
    /// Lengths of dashes and gaps; empty for a solid line.
    pub(super) dashes: &'static str,
}

impl Stroke<'_> {
    fn attributes(&self) -> String {
        let Self { color, width, dashes } = self;
        let dashes =
            if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
        format!("stroke=\"{color}\" stroke-width=\"{}\"{dashes}", number(*width))
    }
}

/// The point of a text that is at its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Position and style of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'a> {
    /// The anchor on the baseline.
    pub(super) at: (f64, f64),
    pub(super) anchor: Anchor,
    pub(super) size: f64,
    pub(super) color: &'a str,
    /// Degrees by which the text is turned clockwise around its position.
    pub(super) angle: f64,
    /// The available length; a longer text is cut.
    pub(super) room: f64,
}

impl Text<'_> {
    pub(super) fn new(at: (f64, f64), anchor: Anchor, size: f64) -> Self {
        Self { at, anchor, size, color: INK, angle: 0.0, room: f64::INFINITY }
    }
}

/// An SVG image under construction.
pub(super) struct Svg(String);

impl Svg {
    /// An empty image with a white background.
    pub(super) fn new(width: f64, height: f64) -> Self {
        let (width, height) = (number(width), number(height));
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n\
             <rect x=\"0\" y=\"0\" width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        ))
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    /// Writes an element with a tooltip, if that is not empty.
    fn element(&mut self, name: &str, attributes: &str, tooltip: &str) {
        let end = if tooltip.is_empty() {
            "/>".to_owned()
        } else {
            format!("><title>{}</title></{name}>", escape(tooltip))
        };
        self.0 += &format!("<{name} {attributes}{end}\n");
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &Stroke<'_>, tooltip: &str) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(number);
        let attributes = format!("x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {}", stroke.attributes());
        self.element("line", &attributes, tooltip);
    }

    pub(super) fn rect(&mut self, rect: &Rect, fill: &str, tooltip: &str) {
        let [x, y, width, height] = [rect.left, rect.top, rect.width, rect.height].map(number);
        let attributes = format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"");
        self.element("rect", &attributes, tooltip);
    }

    /// A path without a fill; see [`super::path::polyline`].
    pub(super) fn path(&mut self, path: &str, stroke: &Stroke<'_>, tooltip: &str) {
        // A round cap makes a single point visible, but closes the gaps between dashes.
        let cap = if stroke.dashes.is_empty() { " stroke-linecap=\"round\"" } else { "" };
        let attributes =
            format!("d=\"{path}\" fill=\"none\" {} stroke-linejoin=\"round\"{cap}", stroke.attributes());
        self.element("path", &attributes, tooltip);
    }

    /// A path that is filled and has no outline.
    pub(super) fn area(&mut self, path: &str, fill: &str, tooltip: &str) {
        self.element("path", &format!("d=\"{path}\" fill=\"{fill}\" fill-opacity=\"0.9\""), tooltip);
    }

    /// A text; if it is cut, its tooltip is the whole text.
    pub(super) fn text(&mut self, style: &Text<'_>, text: &str) {
        let shown = text::fit(text, style.size, style.room);
        let (x, y) = (number(style.at.0), number(style.at.1));
        let mut attributes = format!("x=\"{x}\" y=\"{y}\" font-size=\"{}\"", number(style.size));
        match style.anchor {
            Anchor::Start => {}
            Anchor::Middle => attributes += " text-anchor=\"middle\"",
            Anchor::End => attributes += " text-anchor=\"end\"",
        }
        if style.angle != 0.0 {
            attributes += &format!(" transform=\"rotate({} {x} {y})\"", number(style.angle));
        }
        let tooltip = if shown == text { String::new() } else { format!("<title>{}</title>", escape(text)) };
        self.0 +=
            &format!("<text {attributes} fill=\"{}\">{tooltip}{}</text>\n", style.color, escape(&shown));
    }
}

/// A number with at most two decimals.
pub(super) fn number(value: f64) -> String {
    hundredths((value.clamp(-1e9, 1e9) * 100.0).round() as i64)
}

/// A number of hundredths, as a decimal number.
pub(super) fn hundredths(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    let (whole, rest) = (value.unsigned_abs() / 100, value.unsigned_abs() % 100);
    match rest {
        0 => format!("{sign}{whole}"),
        rest if rest % 10 == 0 => format!("{sign}{whole}.{}", rest / 10),
        rest => format!("{sign}{whole}.{rest:02}"),
    }
}

/// Text for the content or an attribute of an element. Characters that XML does not allow are replaced.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{0}'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => {
                escaped.push(char::REPLACEMENT_CHARACTER);
            }
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_two_decimals() {
        let values = [0.0, -0.0, -0.001, 1.0, 1.5, -1.25, 1.005_1, 0.049_9, 1.0 / 3.0, 123_456.789];
        let written = ["0", "0", "0", "1", "1.5", "-1.25", "1.01", "0.05", "0.33", "123456.79"];
        assert_eq!(values.map(number), written);
        assert_eq!(
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300].map(number),
            ["0", "1000000000", "-1000000000", "1000000000"]
        );
    }

    #[test]
    fn markup_and_control_characters_are_escaped() {
        assert_eq!(escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
        assert_eq!(escape("µ\u{0}\u{1b}\u{ffff}\t"), "µ\u{fffd}\u{fffd}\u{fffd}\t");
    }

    #[test]
    fn a_text_that_is_cut_has_the_whole_in_its_tooltip() {
        let mut svg = Svg::new(10.0, 10.0);
        let style = Text { room: 50.0, ..Text::new((1.0, 2.0), Anchor::Start, 12.0) };
        svg.text(&style, "short");
        svg.text(&style, "<a long name>");
        let svg = svg.finish();
        assert!(svg.contains(">short</text>"), "{svg}");
        assert!(svg.contains("<title>&lt;a long name&gt;</title>&lt;a lo…</text>"), "{svg}");
    }
}
