//! Data of SVG paths.

use super::svg::{Rect, hundredths};

/// A position in hundredths of a pixel.
type Point = (i64, i64);

/// The path through these points, as far as it is inside a rectangle. A point that is not finite is a gap.
pub(super) fn polyline(points: impl Iterator<Item = (f64, f64)>, within: &Rect) -> String {
    let mut runs: Vec<Vec<Point>> = Vec::new();
    let mut last: Option<(f64, f64)> = None;
    for point in points {
        if !point.0.is_finite() || !point.1.is_finite() {
            last = None;
            continue;
        }
        // A first point is a segment without a length.
        if let Some((from, to)) = clip(last.unwrap_or(point), point, within) {
            let (from, to) = (rounded(from), rounded(to));
            match runs.last_mut() {
                Some(run) if last.is_some() && run.last() == Some(&from) => extend(run, to),
                _ => {
                    let mut run = vec![from];
                    extend(&mut run, to);
                    runs.push(run);
                }
            }
        }
        last = Some(point);
    }
    runs.iter().map(|run| written(run)).collect()
}

/// The outline of the area between two curves of the same positions, with all points inside a rectangle.
pub(super) fn band(upper: &[(f64, f64)], lower: &[(f64, f64)], within: &Rect) -> String {
    let clamped = |&(x, y): &(f64, f64)| {
        rounded((x.clamp(within.left, within.right()), y.clamp(within.top, within.bottom())))
    };
    let mut outline = Vec::new();
    for point in upper.iter().chain(lower.iter().rev()).map(clamped) {
        extend(&mut outline, point);
    }
    if outline.is_empty() { String::new() } else { written(&outline) + "Z" }
}

fn rounded((x, y): (f64, f64)) -> Point {
    ((x * 100.0).round() as i64, (y * 100.0).round() as i64)
}

/// Adds a point. In the middle of a level line, points are left out.
fn extend(run: &mut Vec<Point>, to: Point) {
    if run.last() == Some(&to) {
        return;
    }
    if let [.., before, last] = run.as_mut_slice()
        && before.1 == last.1
        && last.1 == to.1
        && (before.0 <= last.0) == (last.0 <= to.0)
    {
        *last = to;
        return;
    }
    run.push(to);
}

/// A subpath. A single point becomes a line without a length, of which the caps show.
fn written(run: &[Point]) -> String {
    let point = |&(x, y): &Point| format!("{},{}", hundredths(x), hundredths(y));
    let mut points: Vec<_> = run.iter().map(point).collect();
    if let [only] = points.as_slice() {
        points.push(only.clone());
    }
    format!("M{}", points.join(" "))
}

/// The part of a segment that is inside a rectangle (after Liang and Barsky).
fn clip(from: (f64, f64), to: (f64, f64), within: &Rect) -> Option<((f64, f64), (f64, f64))> {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let edges = [
        (-dx, from.0 - within.left),
        (dx, within.right() - from.0),
        (-dy, from.1 - within.top),
        (dy, within.bottom() - from.1),
    ];
    // The part of the segment that is on the inner side of all edges, as shares of its length.
    let (mut first, mut last) = (0.0_f64, 1.0_f64);
    for (outward, distance) in edges {
        if outward < 0.0 {
            first = first.max(distance / outward);
        } else if outward > 0.0 {
            last = last.min(distance / outward);
        } else if distance < 0.0 {
            return None;
        }
    }
    let at = |share: f64| {
        if share <= 0.0 {
            from
        } else if share >= 1.0 {
            to
        } else {
            (from.0 + share * dx, from.1 + share * dy)
        }
    };
    (first <= last).then(|| (at(first), at(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Rect = Rect { left: 0.0, top: 0.0, width: 10.0, height: 10.0 };

    fn path(points: &[(f64, f64)]) -> String {
        polyline(points.iter().copied(), &WITHIN)
    }

    #[test]
    fn paths_are_compact() {
        assert_eq!(path(&[(0.0, 1.0), (1.0 / 3.0, 2.5), (2.0, 0.0)]), "M0,1 0.33,2.5 2,0");
        let level = [(0.0, 3.0), (1.0, 3.0), (2.0, 3.001), (3.0, 3.0), (4.0, 5.0), (4.0, 5.0)];
        assert_eq!(path(&level), "M0,3 3,3 4,5");
        assert_eq!(path(&[(5.0, 5.0)]), "M5,5 5,5", "a single point");
        assert_eq!(path(&[]), "");
    }

    #[test]
    fn what_is_outside_is_cut_off() {
        assert_eq!(path(&[(-5.0, 5.0), (5.0, 5.0), (5.0, 25.0), (8.0, 5.0)]), "M0,5 5,5 5,10M7.25,10 8,5");
        assert_eq!(path(&[(-5.0, 5.0), (15.0, 6.0)]), "M0,5.25 10,5.75");
        assert_eq!(path(&[(-5.0, 5.0), (5.0, 25.0)]), "", "it passes a corner outside");
        assert_eq!(path(&[(11.0, 5.0)]), "");
        assert_eq!(path(&[(10.0, 0.0), (0.0, 0.0)]), "M10,0 0,0", "the edge is inside");
    }

    #[test]
    fn points_that_are_no_numbers_are_gaps() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let points = [(nan, 1.0), (1.0, 1.0), (2.0, nan), (3.0, 1.0), (4.0, 2.0), (5.0, inf), (-inf, 3.0)];
        assert_eq!(path(&points), "M1,1 1,1M3,1 4,2");
        assert_eq!(path(&[(1.0, 1.0), (nan, nan), (1.0, 1.0), (2.0, 2.0)]), "M1,1 1,1M1,1 2,2");
    }

    #[test]
    fn bands_are_closed() {
        let upper = [(0.0, 2.0), (4.0, 2.0), (8.0, 1.0)];
        let lower = [(0.0, 9.0), (4.0, 9.0), (8.0, 12.0)];
        assert_eq!(band(&upper, &lower, &WITHIN), "M0,2 4,2 8,1 8,10 4,9 0,9Z");
        assert_eq!(band(&[], &[], &WITHIN), "");
    }
}
