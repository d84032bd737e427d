//! Sizes, shares and spans of time: parsing, and display for people.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use castnet_rules::CollectiveMode;
use castnet_wire::Qpn;
use serde::Serialize;

/// A number of bytes: `1500`, `64KiB`, `1GB`. `k`, `M` and `G` alone are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A share between 0 and 1: `1%`, `0.5%`, `0.01`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ratio(pub f64);

/// A span of time: `500ms`, `10s`, `2m`, `1h`; a bare number is in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

fn number_and_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault =
            || format!("'{text}' is no size: write bytes or a unit, such as 1500, 64KiB, 64MiB or 1GB");
        let (number, unit) = number_and_unit(text);
        let scale: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "ki" | "kib" => 1 << 10,
            "m" | "mi" | "mib" => 1 << 20,
            "g" | "gi" | "gib" => 1 << 30,
            "t" | "ti" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(fault()),
        };
        let number = number.replace('_', "");
        if let Ok(whole) = number.parse::<u64>() {
            return whole
                .checked_mul(scale)
                .map(Self)
                .ok_or_else(|| format!("'{text}' is too large"));
        }
        let broken: f64 = number.parse().map_err(|_| fault())?;
        let bytes = broken * scale as f64;
        if bytes.fract() != 0.0 {
            return Err(format!("'{text}' is no whole number of bytes"));
        }
        if bytes > 9e15 {
            Err(format!("'{text}' is too large"))
        } else {
            Ok(Self(bytes as u64))
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&bytes(self.0))
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("'{text}' is no share: write a percentage or a fraction, such as 1% or 0.01");
        let trimmed = text.trim();
        let (number, scale) = match trimmed.strip_suffix('%') {
            Some(percent) => (percent.trim(), 100.0),
            None => (trimmed, 1.0),
        };
        let value: f64 = number.parse().map_err(|_| fault())?;
        let share = value / scale;
        if (0.0..=1.0).contains(&share) {
            Ok(Self(share))
        } else {
            Err(format!("'{text}' lies outside 0 % to 100 %"))
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded: 0.07 * 100 is 7.000000000000001.
        write!(f, "{}%", (self.0 * 1e9).round() / 1e7)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("'{text}' is no span of time: write such as 500ms, 10s, 2m or 1h");
        let (number, unit) = number_and_unit(text);
        let scale = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(fault()),
        };
        let value: f64 = number.replace('_', "").parse().map_err(|_| fault())?;
        Duration::try_from_secs_f64(value * scale)
            .map(Self)
            .map_err(|_| fault())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&span(self.0))
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl Serialize for Ratio {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.0)
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.0.as_secs_f64())
    }
}

/// Bytes for people: `64 MiB`, `1.5 KiB`, `999 B`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    // 1023.96 would be written as 1024.0.
    while value >= 1023.95 && (unit > 0 || value >= 1024.0) && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A bit rate for people, with decimal prefixes: `2.31 Gb/s`.
pub fn bit_rate(bits_per_second: f64) -> String {
    const UNITS: [&str; 5] = ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"];
    let (mut value, mut unit) = (bits_per_second.max(0.0), 0);
    // As it is rounded.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.995 { 0 } else { 2 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Bits per second; 0 if no time passed.
pub fn rate_of(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        bytes as f64 * 8.0 / seconds
    } else {
        0.0
    }
}

/// A number with groups of three digits: `1 234 567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// `1 group`, `2 groups`.
pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// A span of time for people: `740 us`, `12.3 ms`, `4.56 s`, `3 m 20 s`.
pub fn span(span: Duration) -> String {
    // As they are rounded.
    match span.as_secs_f64() {
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.999_95 => format!("{:.1} ms", s * 1e3),
        s if s < 59.995 => format!("{s:.2} s"),
        s if s < 60.0 => "1 m 0 s".to_owned(),
        s if s < 3600.0 => format!("{} m {:.0} s", (s / 60.0) as u64, (s % 60.0).floor()),
        s => format!("{} h {} m", (s / 3600.0) as u64, (s % 3600.0 / 60.0) as u64),
    }
}

/// The first `most` of some things with commas between them, and how many more there are.
pub fn first_of<T: ToString>(all: impl ExactSizeIterator<Item = T>, most: usize) -> String {
    let more = match all.len().saturating_sub(most) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named: Vec<String> = all.take(most).map(|thing| thing.to_string()).collect();
    named.join(", ") + &more
}

/// Decodes hexadecimal digits. Spaces, colons, line ends and a leading `0x` are skipped.
pub fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    let text = text.strip_prefix("0x").unwrap_or(text);
    let mut digits = Vec::with_capacity(text.len());
    for c in text.chars().filter(|c| !c.is_whitespace() && *c != ':') {
        let digit = c
            .to_digit(16)
            .ok_or_else(|| format!("'{c}' is no hexadecimal digit"))?;
        digits.push(digit as u8);
    }
    if digits.len() % 2 == 1 {
        return Err("an odd number of hexadecimal digits: each byte has two".to_owned());
    }
    Ok(digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect())
}

/// The name of a host, switch, group or job, by the one rule that controller and switches have for all of them.
pub fn name(text: &str) -> Result<String, String> {
    let checked = castnet_proto::convert::name_from_proto("", text);
    checked.map_err(|invalid| invalid.to_string())
}

/// Decimal, or with `0x`.
pub fn number(text: &str) -> Result<u64, String> {
    let fault = || format!("'{text}' is no number: write it decimal or with 0x");
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| fault()),
        None => text.parse().map_err(|_| fault()),
    }
}

/// The number of a queue pair.
pub fn qpn(text: &str) -> Result<Qpn, String> {
    qpn_from(2, text).ok_or_else(|| format!("'{text}' is no QPN of a queue pair: 2 to 0xfffffe"))
}

/// The number that hosts send to.
pub fn virtual_qpn(text: &str) -> Result<Qpn, String> {
    qpn_from(1, text).ok_or_else(|| format!("'{text}' is no QPN of a switch: 1 to 0xfffffe"))
}

fn qpn_from(least: u64, text: &str) -> Option<Qpn> {
    let value = number(text).ok()?;
    (least..0xFF_FFFF)
        .contains(&value)
        .then(|| Qpn::new(value as u32))
}

/// How switches carry the connections of a collective group.
pub fn mode(text: &str) -> Result<CollectiveMode, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is no mode: translated, augmented or terminated"))
}

/// A time that must not be 0.
pub fn positive_span(text: &str) -> Result<Span, String> {
    match text.parse()? {
        Span(Duration::ZERO) => Err(format!("'{text}' is no time to wait: give more than 0")),
        span => Ok(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let size = |text: &str| text.parse::<Size>().map(|s| s.0);
        assert_eq!(size("1500"), Ok(1500));
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("64 MiB"), Ok(64 << 20));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("1GB"), Ok(1_000_000_000));
        assert_eq!(size("1.5KiB"), Ok(1536));
        assert_eq!(size("1_000"), Ok(1000));
        assert_eq!(size("0"), Ok(0));
        for bad in [
            "",
            "MiB",
            "12 parsecs",
            "-1",
            "1.0001KiB",
            "99999999999TiB",
            "1e9",
            "0x10",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_stay_between_nothing_and_all() {
        let share = |text: &str| text.parse::<Ratio>().map(|r| r.0);
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5 %"), Ok(0.005));
        assert_eq!(share("0.01"), Ok(0.01));
        assert_eq!(share("100%"), Ok(1.0));
        for bad in ["101%", "-1%", "1.1", "one", "", "NaN", "inf"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert_eq!(Ratio(0.01).to_string(), "1%");
        assert_eq!(Ratio(0.07).to_string(), "7%");
        assert_eq!(Ratio(0.0005).to_string(), "0.05%");
    }

    #[test]
    fn names_are_those_that_controllers_and_switches_accept() {
        assert_eq!(name("leaf-1.rack_2"), Ok("leaf-1.rack_2".to_owned()));
        let long = "x".repeat(64);
        for bad in ["", "a b", "h@1", "g/0", "h\u{e9}", &long] {
            assert!(
                name(bad).is_err_and(|why| why.contains("1 to 63 letters")),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_time_limit_is_not_0() {
        assert!(positive_span("1us").is_ok_and(|s| s.0 == Duration::from_micros(1)));
        assert!(positive_span("0s").is_err_and(|why| why.contains("more than 0")));
        assert!(positive_span("soon").is_err());
    }

    #[test]
    fn spans_have_units() {
        let of = |text: &str| text.parse::<Span>().map(|s| s.0);
        assert_eq!(of("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(of("10"), Ok(Duration::from_secs(10)));
        assert_eq!(of("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "10 fortnights", "-1s"] {
            assert!(of(bad).is_err(), "{bad}");
        }
        assert_eq!(span(Duration::from_millis(4560)), "4.56 s");
        assert_eq!(span(Duration::from_secs(200)), "3 m 20 s");
        assert_eq!(span(Duration::from_micros(740)), "740 us");
        for (nanos, text) in [
            (999_400, "999 us"),
            (999_600, "1.0 ms"),
            (999_940_000, "999.9 ms"),
            (999_960_000, "1.00 s"),
            (59_994_000_000, "59.99 s"),
            (59_996_000_000, "1 m 0 s"),
            (60_000_000_000, "1 m 0 s"),
        ] {
            assert_eq!(span(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(999), "999 B");
        assert_eq!([1023, 1024].map(bytes), ["1023 B", "1 KiB"]);
        assert_eq!(
            [(1 << 20) - 52, (1 << 20) - 1].map(bytes),
            ["1023.9 KiB", "1.0 MiB"]
        );
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(count(12), "12");
        assert_eq!(bit_rate(2.31e9), "2.31 Gb/s");
        assert_eq!(bit_rate(999.0), "999 b/s");
        assert_eq!([99.99e6, 99.999e6].map(bit_rate), ["99.99 Mb/s", "100 Mb/s"]);
        assert_eq!([999.4e3, 999.9e3].map(bit_rate), ["999 kb/s", "1.00 Mb/s"]);
        assert_eq!(rate_of(1000, 0.0), 0.0);
    }

    #[test]
    fn hexadecimal_digits_are_bytes() {
        assert_eq!(from_hex("0x02:00 fF\n"), Ok(vec![2, 0, 255]));
        assert!(from_hex("0g").is_err());
        assert!(from_hex("012").is_err());
    }
}
