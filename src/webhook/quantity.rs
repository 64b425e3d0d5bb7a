//! Quantities of a resource in Kubernetes' format: `100m`, `64Mi`, `1.5`, `2e3`.
//!
//! The original text is kept. The number is used to compare, because `1` and `1000m` are the same
//! CPU.

use std::cmp::Ordering;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A quantity that is not negative.
#[derive(Clone, Debug)]
pub struct Quantity {
    text: String,
    /// In billionths, the finest unit of Kubernetes.
    nano: i128,
}

impl Quantity {
    /// Parses a quantity; `None` if Kubernetes does not accept it, or it is negative.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let nano = nano(text)?;
        Some(Self {
            text: text.to_owned(),
            nano,
        })
    }

    /// Returns whether it is zero.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.nano == 0
    }
}

fn nano(text: &str) -> Option<i128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || fraction.contains('.') {
        return None;
    }
    let (binary, power) = scale(suffix)?;
    let scaled = digits.parse::<i128>().ok()?.checked_mul(binary)?;
    if scaled == 0 {
        return Some(0);
    }
    // The decimal point and the unit are combined first: each alone may overflow.
    let power = power.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let factor = 10_i128.checked_pow(power.unsigned_abs());
    if power >= 0 {
        return scaled.checked_mul(factor?);
    }
    // Kubernetes rounds up below its finest unit.
    Some(factor.map_or(i128::from(scaled > 0), |divisor| {
        scaled / divisor + i128::from(scaled % divisor > 0)
    }))
}

/// Returns the value of a suffix, in billionths: a binary factor, and a power of ten.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    let exponent = suffix.strip_prefix(['e', 'E']);
    if let Some(exponent) = exponent.and_then(|text| text.parse::<i32>().ok()) {
        return Some((1, exponent.checked_add(9)?));
    }
    let binary = |power: u32| Some((1024_i128.pow(power), 9));
    let decimal = |power: i32| Some((1, 9 + power));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => None,
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// Accepts a bare number, too, as kubectl does.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Number(serde_json::Number),
        }

        let text = match Written::deserialize(deserializer) {
            Ok(Written::Text(text)) => text,
            Ok(Written::Number(number)) => number.to_string(),
            Err(_) => return Err(D::Error::custom("a quantity is a string like 100m or 64Mi")),
        };
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom(format_args!(
                "{text:?} is not a quantity; write 100m or 64Mi"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    #[test]
    fn spellings_of_one_quantity_are_equal() {
        for (one, other) in [
            ("1", "1000m"),
            ("1.5", "1500m"),
            ("0.5Gi", "512Mi"),
            ("2e3", "2k"),
            ("1E", "1e18"),
            ("5e-3", "5m"),
            // Rounded up.
            ("1e-10", "1n"),
            ("9999999.e-15", "10n"),
            ("1e-99", "1n"),
            // More places than there are billionths in the unit, or than fit beside it.
            (".524766457248E", "524766457248M"),
            ("0.000000000000001Ei", "1152.921504606846976"),
            ("+1", "1."),
            (".5", "500m"),
            ("0", "0m"),
        ] {
            assert_eq!(amount(one), amount(other), "{one} {other}");
        }
        assert!(amount("64Mi") > amount("64M"));
        assert!(amount("0").is_zero() && !amount("1n").is_zero());
    }

    #[test]
    fn quantity_that_kubernetes_refuses_is_refused() {
        for bad in [
            "",
            "m",
            "-1",
            "1 Gi",
            "1gi",
            "1KB",
            "1.2.3",
            ".",
            "1e",
            "1e99",
            "0x10",
            "9999999999999999999999999999999999999999",
        ] {
            assert!(Quantity::parse(bad).is_none(), "{bad:?}");
        }
    }
}
