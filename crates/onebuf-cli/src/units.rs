//! Parsing and formatting of sizes and times.

const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];

/// A size such as `4096`, `32MiB`, `1.5 GiB` or `64k`; units are powers of 1024.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_lowercase();
    let fits = |(name, _): &&(&str, u32)| {
        let name = name.to_lowercase();
        unit == name
            || (unit.len() == 1 && name.starts_with(&unit))
            || unit == name.replace('i', "")
    };
    let shift =
        if unit.is_empty() { Some(0) } else { UNITS.iter().find(fits).map(|(_, shift)| *shift) };
    let wrong = || format!("`{text}` is not a size: write 4096, 64KiB, 32MiB or 1.5GiB");
    let shift = shift.ok_or_else(wrong)?;
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift),
        Err(_) => {
            let exact = number.parse::<f64>().map_err(|_| wrong())? * (1u64 << shift) as f64;
            (exact < u64::MAX as f64).then_some(exact as u64)
        }
    };
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("`{text}`: at least 1, and less than 2^64"))
}

/// A size for people: `32 MiB`, `10 KiB`, `17 B`.
pub fn bytes(bytes: u64) -> String {
    let fits = |(_, shift): &&(&str, u32)| bytes >> shift > 0;
    let (name, shift) = UNITS.iter().rev().skip_while(|u| u.1 == 0).find(fits).unwrap_or(&UNITS[4]);
    let value = bytes as f64 / (1u64 << shift) as f64;
    if value.fract() == 0.0 { format!("{value} {name}") } else { format!("{value:.1} {name}") }
}

/// A duration for people, from microseconds.
pub fn time(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us:.1} µs"),
        _ if us < 1e6 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

/// A measured value that may be missing.
pub fn known(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}

#[cfg(test)]
mod tests {
    use super::{bytes, known, parse_bytes, time};

    #[test]
    fn sizes_are_read() {
        let read = |text| parse_bytes(text).ok();
        assert_eq!(read("4096"), Some(4096));
        assert_eq!(read("32MiB"), Some(32 << 20));
        assert_eq!(read("32 mb"), Some(32 << 20));
        assert_eq!(read("64k"), Some(64 << 10));
        assert_eq!(read("1.5GiB"), Some(3 << 29));
        assert_eq!(read("7b"), Some(7));
        for wrong in [
            "",
            "0",
            "MiB",
            "3 apples",
            "-1",
            "1e9",
            "99999999TiB",
            "1.2.3k",
            "0.1",
            "16777216.0TiB",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_and_times_are_written() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(32 << 20), "32 MiB");
        assert_eq!(bytes((32 << 20) + (1 << 19)), "32.5 MiB");
        assert_eq!(time(3.25), "3.2 µs");
        assert_eq!(time(12_345.0), "12.35 ms");
        assert_eq!([1e3, 1e6].map(time), ["1.00 ms", "1.00 s"]);
        assert_eq!([Some(2.25), None].map(known), ["2.2", "-"]);
    }
}
