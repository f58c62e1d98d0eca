//! Short texts with a syntax: parsed, printed, parsed to the same value.

use std::fmt::Display;
use std::str::FromStr;

use endpoints::{Mac, Name};
use hive::config::{format_duration, parse_duration};
use labels::Label;
use loadbalancer::{LbAddress, ServiceName};
use runtime_options::RuntimeOption;

use crate::input::{parts, text};

/// Two texts; the second is a value where one is needed.
pub(crate) fn run(data: &[u8]) {
    let [first, second] = parts(data).map(text);
    // A name, or an error with a message.
    if let Err(error) = first.parse::<Name>() {
        assert!(!error.to_string().is_empty());
    }
    round_trip::<Mac>(&first);
    round_trip::<LbAddress>(&first);
    if let Ok(duration) = parse_duration(&first) {
        assert_eq!(parse_duration(&format_duration(duration)), Ok(duration), "{first}");
    }
    label(&first);
    option(&first, &second);
    let name = ServiceName::new(&first, &second);
    assert_eq!(name.to_string(), name.as_str());
    let _ = (name.name(), name.namespace(), name.cluster());
}

fn round_trip<T: FromStr + Display + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let printed = value.to_string();
        assert_eq!(printed.parse::<T>().ok(), Some(value), "{text} is printed as {printed}");
    }
}

fn label(text: &str) {
    let label = Label::parse(text);
    let printed = label.to_string();
    assert_eq!(Label::parse(&printed), label, "{text} is printed as {printed}");
    let json = serde_json::to_string(&label).unwrap();
    assert_eq!(serde_json::from_str::<Label>(&json).unwrap(), label);
}

/// Values of `PATCH /config` are printed, and their printed form is accepted with the same meaning.
fn option(name: &str, value: &str) {
    if let Ok(option) = RuntimeOption::new(name, value) {
        assert_eq!(RuntimeOption::new(option.name, &option.value).as_ref(), Ok(&option), "{name}={value}");
    }
}
