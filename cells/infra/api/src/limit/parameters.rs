//! The parameters of a limit, and the parser of `--api-rate-limit`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Kind;
use crate::error::Error;

/// Cilium's parameters of a limit. Durations, rates and counts of zero stand for no limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) rate_limit: f64,
    pub(crate) rate_burst: u64,
    pub(crate) parallel_requests: u64,
    pub(crate) min_parallel_requests: u64,
    pub(crate) max_parallel_requests: u64,
    pub(crate) min_wait_duration: Duration,
    pub(crate) max_wait_duration: Duration,
    pub(crate) estimated_processing_duration: Duration,
    pub(crate) auto_adjust: bool,
    pub(crate) mean_over: u64,
    pub(crate) skip_initial: u64,
    pub(crate) delayed_adjustment_factor: f64,
    pub(crate) max_adjustment_factor: f64,
    pub(crate) log: bool,
}

impl Parameters {
    /// Returns Cilium's defaults, before `--api-rate-limit` is applied.
    pub(crate) fn of(kind: Kind) -> Self {
        let base = Self {
            rate_limit: 0.0,
            rate_burst: 1,
            parallel_requests: 4,
            min_parallel_requests: 1,
            max_parallel_requests: 0,
            min_wait_duration: Duration::ZERO,
            max_wait_duration: Duration::ZERO,
            estimated_processing_duration: Duration::from_millis(200),
            auto_adjust: true,
            mean_over: 10,
            skip_initial: 0,
            delayed_adjustment_factor: 0.5,
            max_adjustment_factor: 100.0,
            log: false,
        };
        match kind {
            Kind::Create => Self {
                estimated_processing_duration: Duration::from_secs(2),
                rate_limit: 0.5,
                rate_burst: 4,
                min_parallel_requests: 2,
                skip_initial: 4,
                max_wait_duration: Duration::from_secs(60),
                ..base
            },
            Kind::Delete => Self { min_parallel_requests: 4, ..base },
            Kind::Get => Self {
                rate_limit: 4.0,
                rate_burst: 4,
                min_parallel_requests: 2,
                skip_initial: 4,
                max_wait_duration: Duration::from_secs(10),
                ..base
            },
            Kind::Patch => Self {
                estimated_processing_duration: Duration::from_secs(1),
                rate_limit: 0.5,
                rate_burst: 4,
                skip_initial: 4,
                max_wait_duration: Duration::from_secs(15),
                ..base
            },
            Kind::List => Self {
                estimated_processing_duration: Duration::from_millis(300),
                rate_limit: 1.0,
                rate_burst: 4,
                parallel_requests: 2,
                min_parallel_requests: 2,
                ..base
            },
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key.to_ascii_lowercase().as_str() {
            "rate-limit" => self.rate_limit = rate(value)?,
            "rate-burst" => self.rate_burst = integer(value)?.max(1),
            "min-wait-duration" => self.min_wait_duration = duration(value)?,
            "max-wait-duration" => self.max_wait_duration = duration(value)?,
            "estimated-processing-duration" => self.estimated_processing_duration = duration(value)?,
            "auto-adjust" => self.auto_adjust = boolean(value)?,
            "parallel-requests" => self.parallel_requests = integer(value)?,
            "min-parallel-requests" => self.min_parallel_requests = integer(value)?.max(1),
            "max-parallel-requests" => self.max_parallel_requests = integer(value)?,
            "mean-over" => self.mean_over = integer(value)?.max(1),
            "log" => self.log = boolean(value)?,
            "delayed-adjustment-factor" => self.delayed_adjustment_factor = float(value)?,
            "max-adjustment-factor" => self.max_adjustment_factor = float(value)?,
            "skip-initial" => self.skip_initial = integer(value)?,
            _ => return Err(format!("unknown rate limiting option {key:?}")),
        }
        Ok(())
    }
}

/// Parses `KIND=OPTION:VALUE,OPTION:VALUE,KIND=...`, or a JSON object of kinds with the options as text.
pub(crate) fn parse_config(config: &str) -> Result<BTreeMap<Kind, Parameters>, Error> {
    let mut limits = BTreeMap::new();
    for (name, options) in sections(config).map_err(Error::RateLimit)? {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let mut other = Parameters::of(Kind::Delete);
        let parameters = match kind {
            Some(kind) => limits.entry(kind).or_insert_with(|| Parameters::of(kind)),
            None => {
                let known = Kind::ALL.map(Kind::name).join(", ");
                tracing::warn!(name, known, "api-rate-limit for an unknown API call has no effect");
                &mut other
            }
        };
        for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once(':').ok_or_else(|| {
                let form = "must be in the form name=option:value[,option:value]";
                Error::RateLimit(format!("unable to parse rate limit option {option:?}, {form}"))
            })?;
            parameters.set(key.trim(), value.trim()).map_err(|reason| {
                let what = format!("unable to parse rate limit option {key:?} with value {value:?}");
                Error::RateLimit(format!("{what}: {reason}"))
            })?;
        }
    }
    Ok(limits)
}

/// Splits the text into the options of each kind. Commas separate options as well as kinds; a kind begins with `NAME=`.
fn sections(config: &str) -> Result<Vec<(String, String)>, String> {
    let config = config.trim();
    if config.starts_with('{') {
        let object: BTreeMap<String, String> =
            serde_json::from_str(config).map_err(|error| format!("unable to parse {config:?}: {error}"))?;
        return Ok(object.into_iter().collect());
    }
    let mut sections: Vec<(String, String)> = Vec::new();
    for part in config.split(',').filter(|part| !part.trim().is_empty()) {
        match (part.split_once('='), sections.last_mut()) {
            (Some((name, options)), _) => sections.push((name.trim().to_owned(), options.to_owned())),
            (None, Some((_, options))) => {
                options.push(',');
                options.push_str(part);
            }
            (None, None) => {
                let form = "must be in the form name=option:value[,option:value]";
                return Err(format!("unable to parse rate limit option {part:?}, {form}"));
            }
        }
    }
    Ok(sections)
}

/// Parses a rate such as `10/s`, `1/5m`, `0.5/100ms`; returns requests per second.
fn rate(text: &str) -> Result<f64, String> {
    let fail = |reason: String| format!("unable to parse rate {text:?}: {reason}");
    let (number, interval) =
        text.split_once('/').ok_or_else(|| fail("not in the form number/interval".to_owned()))?;
    let number = float(number).map_err(fail)?;
    if interval.parse::<i64>().is_ok() {
        return Err(fail(format!("interval {interval:?} must contain duration suffix")));
    }
    let interval = match interval.starts_with(|first: char| first.is_ascii_digit()) {
        true => duration(interval),
        false => duration(&format!("1{interval}")),
    };
    let seconds = interval.map_err(fail)?.as_secs_f64();
    let rate = number / seconds;
    if rate.is_finite() && rate >= 0.0 {
        return Ok(rate);
    }
    Err(fail("the rate must be a number of requests that is not negative".to_owned()))
}

fn integer(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("unable to parse integer {text:?}"))
}

fn float(text: &str) -> Result<f64, String> {
    let number: Result<f64, _> = text.parse();
    number.ok().filter(|number| number.is_finite()).ok_or_else(|| format!("unable to parse float {text:?}"))
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("unable to parse bool {text:?}")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    hive::config::parse_duration(text).map_err(|_| format!("unable to parse duration {text:?}"))
}
