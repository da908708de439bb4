//! Dates of the Gregorian calendar, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// The date of today, as `2026-11-18`.
pub fn today() -> String {
    // A clock before 1970 is not set.
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    written(seconds / 86_400)
}

/// Whether the text is a date: `2026-11-18`, with a month that has this day.
pub fn is_date(text: &str) -> bool {
    let digits = |text: &str, n| text.len() == n && text.bytes().all(|byte| byte.is_ascii_digit());
    let [year, month, day] = text.split('-').collect::<Vec<_>>()[..] else { return false };
    if !digits(year, 4) || !digits(month, 2) || !digits(day, 2) {
        return false;
    }
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let months = month_lengths(number(year));
    let length = number(month).checked_sub(1).and_then(|at| months.get(at as usize));
    length.is_some_and(|length| (1..=*length).contains(&number(day)))
}

/// The date of a number of days after 1970-01-01.
fn written(mut days: u64) -> String {
    let mut year = 1970;
    loop {
        let months = month_lengths(year);
        let length: u64 = months.iter().sum();
        if days >= length {
            days -= length;
            year += 1;
            continue;
        }
        let mut month = 0;
        while days >= months[month] {
            days -= months[month];
            month += 1;
        }
        return format!("{year:04}-{:02}-{:02}", month + 1, days + 1);
    }
}

fn month_lengths(year: u64) -> [u64; 12] {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        let known = [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (19_782, "2024-02-29"),
            (20_775, "2026-11-18"),
        ];
        for (days, text) in known {
            assert_eq!(written(days), text);
            assert!(is_date(text), "{text}");
        }
        assert!(is_date(&today()) && today().as_str() > "2026-01-01");
    }

    #[test]
    fn other_texts_are_none() {
        let wrong = ["", "2026-11", "2026-11-31", "2025-02-29", "1900-02-29", "2026-00-10"];
        for text in wrong.into_iter().chain(["2026-13-01", "26-11-18", "2026-11-1x", "2026-1-018"])
        {
            assert!(!is_date(text), "{text}");
        }
    }
}
