//! Durations as kubectl prints them in its column AGE: at most two units, and never more digits
//! than a reader needs.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// kubectl ignores leap years.
const YEAR: u64 = 365 * DAY;

/// How durations below a limit are printed.
struct Scale {
    below: u64,
    unit: (u64, char),
    /// The unit of the remainder, where it is printed.
    rest: Option<(u64, char)>,
}

/// The limits of `HumanDuration` in k8s.io/apimachinery/pkg/util/duration.
const SCALES: [Scale; 8] = [
    scale(2 * MINUTE, (1, 's'), None),
    scale(10 * MINUTE, (MINUTE, 'm'), Some((1, 's'))),
    scale(3 * HOUR, (MINUTE, 'm'), None),
    scale(8 * HOUR, (HOUR, 'h'), Some((MINUTE, 'm'))),
    scale(2 * DAY, (HOUR, 'h'), None),
    scale(8 * DAY, (DAY, 'd'), Some((HOUR, 'h'))),
    scale(2 * YEAR, (DAY, 'd'), None),
    scale(8 * YEAR, (YEAR, 'y'), Some((DAY, 'd'))),
];

const fn scale(below: u64, unit: (u64, char), rest: Option<(u64, char)>) -> Scale {
    Scale { below, unit, rest }
}

/// Returns the duration as kubectl prints ages: `119s`, `5m30s`, `12m`, `3h20m`, `2d3h`, `10d`,
/// `2y4d`. Fractions are cut off, not rounded.
#[must_use]
pub fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let Some(scale) = SCALES.iter().find(|scale| seconds < scale.below) else {
        return format!("{}y", seconds / YEAR);
    };
    let (length, unit) = scale.unit;
    let first = format!("{}{unit}", seconds / length);
    match scale.rest {
        Some((rest_length, rest_unit)) if seconds % length >= rest_length => {
            format!("{first}{}{rest_unit}", seconds % length / rest_length)
        }
        _ => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_kubectl_prints_ages() {
        let cases = [
            (0, "0s"),
            (2 * MINUTE - 1, "119s"),
            (2 * MINUTE, "2m"),
            (5 * MINUTE + 30, "5m30s"),
            (10 * MINUTE - 1, "9m59s"),
            (10 * MINUTE + 1, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 20 * MINUTE + 59, "3h20m"),
            (8 * HOUR - 1, "7h59m"),
            (8 * HOUR + 59 * MINUTE, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 3 * HOUR, "2d3h"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY + 23 * HOUR, "8d"),
            (10 * DAY, "10d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR + 23 * HOUR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (8 * YEAR - 1, "7y364d"),
            (8 * YEAR + 364 * DAY, "8y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(human(Duration::from_secs(seconds)), expected, "{seconds} s");
        }
    }

    #[test]
    fn fractions_of_a_second_are_cut_off() {
        assert_eq!(human(Duration::from_millis(999)), "0s");
        assert_eq!(human(Duration::from_millis(119_999)), "119s");
    }

    #[test]
    fn longest_duration_is_printed() {
        assert_eq!(human(Duration::MAX), "584942417355y");
    }
}
