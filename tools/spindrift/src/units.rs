//! Parsers of sizes, rates, times, lists and numbers.

use std::time::Duration;

use spindrift::wire::Qpn;

/// Below, one packet takes longer than a second.
const MIN_RATE: f64 = 64e3;
const MAX_RATE: f64 = 1e12;

/// Parses `64`, `64K`, `4KiB`, `1M`, `2GiB`: bytes, with factors of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return Err(format!("`{text}` is not a size; write bytes, or 64K, 4KiB, 1M (factors of 1024)")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size; write bytes, or 64K, 4KiB, 1M (factors of 1024)"))?;
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` does not fit in 64 bits"))
}

/// Prints a size the way it can be given: the largest unit that divides it.
pub(crate) fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// Parses bits per second with factors of 1000: `100M`, `1.5Gbit`.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    let bad = || {
        format!("\"{text}\" is not a rate; write bits per second, as in 100M or 1.5Gbit (factors of 1000)")
    };
    let short = text.strip_suffix("bit").or_else(|| text.strip_suffix("bit/s")).unwrap_or(text);
    let number = short.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match short.get(number.len()..) {
        Some("") => 1.0,
        Some("k" | "K") => 1e3,
        Some("M") => 1e6,
        Some("G") => 1e9,
        _ => return Err(bad()),
    };
    let rate = number.trim().parse::<f64>().map_err(|_| bad())? * factor;
    if (MIN_RATE..=MAX_RATE).contains(&rate) {
        Ok(rate.round() as u64)
    } else {
        Err(format!("{text} is outside 64kbit to 1000Gbit"))
    }
}

/// Prints a rate the way it can be given: the largest unit that divides it.
pub(crate) fn format_rate(rate: u64) -> String {
    for (factor, unit) in [(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")] {
        if rate != 0 && rate.is_multiple_of(factor) {
            return format!("{}{unit}bit", rate / factor);
        }
    }
    format!("{rate}bit")
}

/// Parses `2s`, `300ms`, `1m 30s`; a number alone is seconds, as perftest has it.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    match parse_offset(Some(text)) {
        Ok(Duration::ZERO) => Err(no_duration(text)),
        other => other,
    }
}

/// Parses a time after the start: a duration, or nothing in any unit, as where none is given.
pub(crate) fn parse_offset(text: Option<&str>) -> Result<Duration, String> {
    let Some(text) = text.map(str::trim) else { return Ok(Duration::ZERO) };
    let duration = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    duration.ok_or_else(|| no_duration(text))
}

fn no_duration(text: &str) -> String {
    format!("`{}` is not a duration; write seconds, or 300ms, 2s, 1m", text.trim())
}

/// Parses a 24-bit number, decimal or hexadecimal with `0x`.
pub(crate) fn parse_qpn(text: &str) -> Result<Qpn, String> {
    match parse_number(text) {
        Some(number) if number < 1 << 24 => Ok(Qpn::new(number)),
        _ => Err(format!("`{text}` is not a queue pair number; give 0 to 16777215, or 0x0 to 0xffffff")),
    }
}

/// Parses an entropy value, decimal or hexadecimal with `0x`.
pub(crate) fn parse_ev(text: &str) -> Result<u32, String> {
    parse_number(text).ok_or_else(|| {
        format!("`{text}` is not an entropy value; give 32 bits, as in 0x80000000 or 2147483648")
    })
}

/// So many of something: `1 link`, `2 links`.
pub(crate) fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

pub(crate) fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // `from_str_radix` would take a sign, too.
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_all_spellings() {
        for (text, bytes) in [
            ("64", 64),
            ("64K", 65_536),
            ("4KiB", 4096),
            ("1M", 1 << 20),
            ("8 MiB", 8 << 20),
            ("2g", 2 << 30),
            ("12b", 12),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "64X", "99999999999999999999", "18014398509481984K"] {
            assert!(parse_size(text).is_err_and(|error| error.contains(text)), "{text}");
        }
    }

    #[test]
    fn sizes_print_as_they_can_be_given() {
        for bytes in [0, 1, 1000, 1024, 1536, 4096, 1 << 20, 3 << 20, 1 << 31] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(1536), "1536 B");
        assert_eq!(format_size(65_536), "64 KiB");
    }

    #[test]
    fn durations_in_all_spellings() {
        for (text, ms) in [("2", 2000), ("0.5", 500), ("300ms", 300), ("1m 30s", 90_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "0", "0us", "-1", "soon", "inf", "5 parsecs"] {
            assert!(parse_duration(text).is_err_and(|error| error.contains(text)), "{text}");
        }
    }

    #[test]
    fn times_after_the_start_may_be_nothing() {
        for (text, ms) in [(None, 0), (Some("0"), 0), (Some(" 0us"), 0), (Some("300ms"), 300)] {
            assert_eq!(parse_offset(text), Ok(Duration::from_millis(ms)), "{text:?}");
        }
        assert!(parse_offset(Some("soon")).is_err_and(|error| error.contains("`soon`")));
    }

    #[test]
    fn one_of_something_is_no_plural() {
        assert_eq!([0, 1, 2].map(|number| count(number, "link")), ["0 links", "1 link", "2 links"]);
    }

    #[test]
    fn queue_pair_numbers_have_24_bits() {
        assert_eq!(parse_qpn("0x42"), Ok(Qpn::new(0x42)));
        assert_eq!(parse_qpn("66"), Ok(Qpn::new(66)));
        assert!(parse_qpn("16777216").is_err());
        assert!(parse_qpn("x").is_err());
    }

    #[test]
    fn entropy_values_have_32_bits() {
        for (text, ev) in [("0x80000000", 1 << 31), ("0XFfffFfff", u32::MAX), ("12", 12)] {
            assert_eq!(parse_ev(text), Ok(ev));
        }
        for text in ["", "0x", "0x100000000", "4294967296", "-1", "0x+1", "x"] {
            assert!(parse_ev(text).is_err_and(|error| error.contains(text)), "{text}");
        }
    }
}
