//! Intervals of numbers as settings declare them: `[0, 1)`, `(0, inf)`, `[1, period]`.

use std::str::FromStr;

/// An interval.
pub(crate) struct Interval {
    pub(crate) low: End,
    pub(crate) high: End,
}

/// One end of an interval.
pub(crate) struct End {
    /// Set if the interval has this end: `[` and `]`.
    pub(crate) included: bool,
    pub(crate) at: At,
}

/// The place of an end.
pub(crate) enum At {
    /// `-inf` as the lower end, `inf` as the upper one.
    Infinity,
    /// A number, as it is written.
    Number(String),
    /// The value of another field.
    Field(String),
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an interval such as `[0, 1)`, `(0, inf)` or `[1, other_field]`");
        let (left, right) = text.split_once(',').ok_or_else(wrong)?;
        let low = left.strip_prefix('[').map(|at| (true, at)).or_else(|| Some((false, left.strip_prefix('(')?)));
        let high = right.strip_suffix(']').map(|at| (true, at)).or_else(|| Some((false, right.strip_suffix(')')?)));
        let end = |(included, at): (bool, &str), infinity| Some(End { included, at: At::of(at.trim(), infinity)? });
        let low = low.and_then(|low| end(low, "-inf")).ok_or_else(wrong)?;
        let high = high.and_then(|high| end(high, "inf")).ok_or_else(wrong)?;
        if let (At::Number(lowest), At::Number(highest)) = (&low.at, &high.at) {
            let [lowest, highest] = [lowest, highest].map(|number| number.parse::<f64>().unwrap_or(f64::NAN));
            if !(lowest < highest || lowest == highest && low.included && high.included) {
                return Err(format!("`{text}` is empty"));
            }
        }
        Ok(Interval { low, high })
    }
}

impl At {
    fn of(text: &str, infinity: &str) -> Option<Self> {
        let is_name = text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        match text {
            "inf" | "-inf" => (text == infinity).then_some(At::Infinity),
            _ if is_name => Some(At::Field(text.to_owned())),
            // Not `-nan` and `+inf`, which parse as numbers.
            _ if text.ends_with(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok() => {
                Some(At::Number(text.to_owned()))
            }
            _ => None,
        }
    }

    fn words(&self) -> String {
        match self {
            At::Infinity => "infinity".to_owned(),
            At::Number(number) => number.clone(),
            At::Field(name) => name.replace('_', "-"),
        }
    }
}

impl Interval {
    /// Returns the words that follow "must be" in an error, for whole numbers or others.
    pub(crate) fn words(&self, whole: bool) -> String {
        let Interval { low, high } = self;
        let [from, to] = [low, high].map(|end| end.at.words());
        match (&low.at, &high.at) {
            (At::Infinity, At::Infinity) => "a finite number".to_owned(),
            (_, At::Infinity) => format!("{} {from}", if low.included { "at least" } else { "above" }),
            (At::Infinity, _) => format!("{} {to}", if high.included { "at most" } else { "below" }),
            (At::Number(_), At::Number(_)) if whole && low.included && high.included => format!("{from} to {to}"),
            _ => {
                format!(
                    "in {}{from}, {to}{}",
                    if low.included { '[' } else { '(' },
                    if high.included { ']' } else { ')' }
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_read_and_has_words() {
        for (text, whole, words) in [
            ("[1, inf)", true, "at least 1"),
            ("(0,inf]", false, "above 0"),
            ("(-inf, 8]", true, "at most 8"),
            ("(-inf, fragment_size)", true, "below fragment-size"),
            ("[1, 32]", true, "1 to 32"),
            ("[bits, 32]", true, "in [bits, 32]"),
            ("[0, 1]", false, "in [0, 1]"),
            ("[0, 32)", true, "in [0, 32)"),
            ("(0, 1]", false, "in (0, 1]"),
            ("[1e-3, 1]", false, "in [1e-3, 1]"),
            ("[-1.5, 2]", false, "in [-1.5, 2]"),
            ("[4, 4]", true, "4 to 4"),
            ("(-inf, inf)", false, "a finite number"),
        ] {
            let interval: Interval = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(interval.words(whole), words, "{text}");
        }
    }

    #[test]
    fn what_is_no_interval_is_named() {
        for text in ["", "1", "1, 2", "[1, 2", "0, 1]", "[1 2]", "[a b, 1]", "[, 1]"] {
            let error = text.parse::<Interval>().err().expect(text);
            assert!(error.starts_with(&format!("`{text}` is not an interval")), "{error}");
        }
        for text in ["[inf, 1]", "(0, -inf)", "[1, 2, 3]", "[Most, 3]", "[-nan, 1]", "[-infinity, 1]"] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
        for text in ["[2, 1]", "(1, 1]", "[1, 1)"] {
            assert_eq!(text.parse::<Interval>().err(), Some(format!("`{text}` is empty")));
        }
    }
}
