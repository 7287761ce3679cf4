//! Estimates of the size of text, and text that fits a given width.

/// The width of a text in pixels, with a sans-serif font of the wider kind (`DejaVu Sans`).
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

/// The width of a character, as a share of the font's size.
fn advance(char: char) -> f64 {
    match char {
        'i' | 'j' | 'l' => 0.28,
        ' ' | '.' | ',' | ':' | ';' | '|' | '!' | '\'' | '/' | '\\' | 'I' | 'J' | 'f' => 0.36,
        '-' | '(' | ')' | '[' | ']' | 't' | 'r' => 0.42,
        'm' | 'w' | 'M' | 'W' | 'O' | 'Q' | '%' | '@' | '+' | '=' | '<' | '>' | '~' | '#' => 1.0,
        'A'..='Z' | '&' => 0.77,
        ' '..='~' => 0.64,
        _ => 1.0,
    }
}

/// A text that is not wider than `room`. The end of a longer text is replaced by an ellipsis.
pub(super) fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut left = room - width("…", size);
    let kept = text.chars().take_while(|&char| {
        left -= advance(char) * size;
        left >= 0.0
    });
    let kept: String = kept.collect();
    kept.trim_end().to_owned() + "…"
}

/// The largest size up to `most` in whole pixels at which a text fits, but at least `least`.
pub(super) fn size(text: &str, (least, most): (f64, f64), room: f64) -> f64 {
    if width(text, most) <= room { most } else { (room / width(text, 1.0)).floor().clamp(least, most) }
}

/// Lines of at most `room`, broken at spaces.
pub(super) fn wrap(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line, size) + width(" ", size) + width(word, size) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_are_wider() {
        assert!(width("iiii", 12.0) < width("nnnn", 12.0) && width("nnnn", 12.0) < width("MMMM", 12.0));
        assert!((width("ab", 20.0) - 2.0 * width("ab", 10.0)).abs() < 1e-9);
        assert!(width("", 12.0).abs() < 1e-9);
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(fit("p0-t0-1:h3", 12.0, 100.0), "p0-t0-1:h3");
        for room in [0.0, 13.0, 30.0, 50.0, 300.0] {
            let text = fit("a rather long name, with spaces in it", 12.0, room);
            assert!(width(&text, 12.0) <= room.max(12.0), "{room}: {text}");
            assert!(!text.contains(" …"), "{text}");
        }
        assert_eq!(fit("", 12.0, 0.0), "");
    }

    #[test]
    fn long_texts_are_smaller() {
        let long = "x".repeat(84);
        let of = |text: &str, room: f64| size(text, (11.0, 20.0), room) as u32;
        assert_eq!(
            [of("short", 780.0), of("", 780.0), of(&long, 1560.0), of(&long, 100.0)],
            [20, 20, 20, 11]
        );
        let smaller = of(&long, 780.0);
        assert!((12..20).contains(&smaller) && width(&long, smaller.into()) <= 780.0, "{smaller}");
    }

    #[test]
    fn lines_are_broken_at_spaces() {
        let text = "at 1.000 s, these links are down: h1:p0-t0-0, h2:p0-t0-0, h3:p0-t0-0";
        let lines = wrap(text, 12.0, 150.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| width(line, 12.0) <= 150.0), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert_eq!(wrap("unbroken", 12.0, 5.0), ["unbroken"]);
    }
}
