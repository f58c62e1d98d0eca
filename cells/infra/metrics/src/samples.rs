//! Parser of Prometheus' text format into samples by name and labels.

use std::collections::BTreeMap;

/// A value with its name and labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    /// In order of name.
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: Number,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Number {
    Plain(f64),
    Histogram(Histogram),
}

impl Number {
    /// Returns the number itself, or the 90th percentile of a histogram.
    pub(crate) fn single(&self) -> f64 {
        match self {
            Number::Plain(value) => *value,
            Number::Histogram(histogram) => histogram.quantile(0.9),
        }
    }
}

/// Upper bounds with the cumulative count of observations, in order; observations above the last bound are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    /// Returns the number of observations.
    pub(crate) fn total(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// Returns the observations since `before`; all of them if the bounds differ.
    pub(crate) fn since(&self, before: &Histogram) -> Histogram {
        let same = self.0.len() == before.0.len() && self.0.iter().zip(&before.0).all(|(a, b)| a.0 == b.0);
        if !same {
            return self.clone();
        }
        Histogram(self.0.iter().zip(&before.0).map(|(now, then)| (now.0, now.1 - then.1)).collect())
    }

    /// Returns the median, the 90th and the 99th percentile.
    pub(crate) fn percentiles(&self) -> [f64; 3] {
        [0.5, 0.9, 0.99].map(|part| self.quantile(part))
    }

    /// Returns the quantile of the observations, interpolated within its bucket; the first bucket starts at 0.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let total = self.total();
        if total == 0.0 {
            return 0.0;
        }
        let rank = part * total;
        let at = self.0.partition_point(|(_, count)| *count < rank).min(self.0.len() - 1);
        let (end, count) = self.0[at];
        match at.checked_sub(1).map(|before| self.0[before]) {
            None => end * (rank / count),
            Some((begin, below)) => begin + (end - begin) * ((rank - below) / (count - below)),
        }
    }
}

impl Sample {
    /// `a=1 b=2`.
    pub(crate) fn labels_text(&self) -> String {
        self.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }
}

/// Parses the text; returns samples ordered by name and labels.
pub(crate) fn samples(text: &str) -> Vec<Sample> {
    let mut found: BTreeMap<(String, String), Sample> = BTreeMap::new();
    let mut histogram = "";
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            histogram = kind.strip_suffix(" histogram").unwrap_or_default();
            continue;
        }
        let Some((name, mut labels, value)) = sample(line) else { continue };
        let part = Some(name).filter(|_| !histogram.is_empty()).and_then(|name| name.strip_prefix(histogram));
        match part {
            Some("_bucket") => {
                let bound = labels.remove("le").and_then(|bound| bound.parse().ok());
                let empty = Number::Histogram(Histogram::default());
                let sample = Sample { name: histogram.to_owned(), labels, value: empty };
                let key = (sample.name.clone(), sample.labels_text());
                let sample = found.entry(key).or_insert(sample);
                if let (Number::Histogram(Histogram(buckets)), Some(bound)) = (&mut sample.value, bound)
                    && f64::is_finite(bound)
                {
                    buckets.push((bound, value));
                }
            }
            Some("_sum" | "_count") => {}
            _ => {
                let sample = Sample { name: name.to_owned(), labels, value: Number::Plain(value) };
                found.insert((sample.name.clone(), sample.labels_text()), sample);
            }
        }
    }
    found.into_values().collect()
}

/// Parses a line `name{label="value",...} 1.5`.
fn sample(line: &str) -> Option<(&str, BTreeMap<String, String>, f64)> {
    let end = line.find(['{', ' ']).filter(|_| !line.starts_with('#'))?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(begun) = rest.strip_prefix('{') {
        rest = begun;
        while let Some((label, after)) = rest.split_once("=\"") {
            let (value, after) = value(after)?;
            labels.insert(label.to_owned(), value);
            let Some(next) = after.strip_prefix(',') else {
                rest = after;
                break;
            };
            rest = next;
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = match rest.split_whitespace().next()? {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        number => number.parse().ok()?,
    };
    Some((name, labels, value))
}

/// Parses a label's value up to its closing quote; returns it with the rest of the line.
fn value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_read_back() {
        let text = "# HELP a Text.\n# TYPE a_total counter\na_total{y=\"2\",x=\"q\\\"\\\\}, \"} 3\na_total 1.5\n\
                    # TYPE h histogram\nh_sum 1.0\nh_count 4\nh_bucket{le=\"0.5\"} 2\nh_bucket{le=\"1.0\"} 3\nh_bucket{le=\"+Inf\"} 4\n\
                    # TYPE z gauge\nz +Inf\nbroken{x=\"1\n";
        let found = samples(text);
        let names: Vec<String> = found.iter().map(|s| format!("{} {}", s.name, s.labels_text())).collect();
        assert_eq!(names, ["a_total ", "a_total x=q\"\\},  y=2", "h ", "z "]);
        let Number::Histogram(histogram) = &found[2].value else { panic!("{found:?}") };
        assert_eq!([0.25, 0.5, 0.75, 1.0].map(|q| histogram.quantile(q)), [0.1875, 0.375, 0.625, 1.0]);
        assert_eq!(Histogram::default().quantile(0.5), 0.0);
        assert_eq!(found[3].value.single(), f64::INFINITY);
    }
}
