//! Timestamps as PostgreSQL prints them with `DateStyle = ISO`, which the replication connection sets.

/// Milliseconds of Unix time; `None` for `infinity` and for what is no timestamp. Without a zone it counts as UTC.
///
/// `2026-12-01 15:00:00.123456+00`, `12026-01-01 00:00:00`, `0044-03-15 12:00:00+01:24:30 BC`: years have four digits or more
/// (`EncodeDateTime` in PostgreSQL's `datetime.c`).
#[must_use]
pub fn unix_ms(text: &str) -> Option<i64> {
    let (text, is_bc) = text.strip_suffix(" BC").map_or((text, false), |text| (text, true));
    let (date, time) = text.split_once(' ')?;
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    // There is no year 0: 1 BC comes before AD 1.
    let year = if is_bc { 1 - year } else { year };
    let (time, zone) = match time.find(['+', '-']) {
        Some(at) => time.split_at(at),
        None => (time, "+0"),
    };
    let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let fraction_ms = number(format!("{fraction:0<3}").get(..3)?)?;
    let offset = match zone.split_at(1) {
        ("-", zone) => -seconds(zone)?,
        (_, zone) => seconds(zone)?,
    };
    let seconds = days_from_epoch(year, month, day)?.checked_mul(86_400)? + seconds(whole)? - offset;
    seconds.checked_mul(1000)?.checked_add(fraction_ms)
}

fn number(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// `hours[:minutes[:seconds]]`.
fn seconds(text: &str) -> Option<i64> {
    text.split(':').chain(["0", "0"]).take(3).try_fold(0, |sum, part| Some(sum * 60 + number(part)?))
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar, counted in years that begin in March, so that the leap day is the
/// last of a year.
fn days_from_epoch(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_postgresql_prints() {
        let cases = [
            ("1970-01-01 00:00:00+00", Some(0)),
            ("2026-12-01 15:00:00.123456+00", Some(1_796_137_200_123)),
            ("2026-12-01 15:00:00.1", Some(1_796_137_200_100)),
            ("2026-12-01 17:30:00+02:30", Some(1_796_137_200_000)),
            ("2000-02-29 23:59:59-01", Some(951_872_399_000)),
            ("1969-12-31 23:59:59.999+00", Some(-1)),
            ("12026-01-01 00:00:00", Some(317_336_745_600_000)),
            ("0001-01-01 00:00:00+00 BC", Some(-62_167_219_200_000)),
            ("infinity", None),
            ("-infinity", None),
            ("", None),
            ("2026-13-01 00:00:00", None),
            ("2026-12-01", None),
            ("2026-12-01 x", None),
        ];
        for (text, expected) in cases {
            assert_eq!(unix_ms(text), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text: String, days in -10_000_000i64..10_000_000) {
            let _ = unix_ms(&text);
            let _ = unix_ms(&format!("{days}-01-01 00:00:00"));
        }
    }
}
