//! A configuration file: YAML or JSON, with the options at top level.

use std::collections::HashSet;
use std::path::Path;

use figment::value::Value;
use yaml_values::{Reader, Version};

use super::error::{ConfigError, shown};
use super::kind::plain;

/// The maximum number of errors that are reported for a file.
const MAX_REPORTED_ERRORS: usize = 10;

/// Returns the options of a text and, for YAML, the keys that are given more than once, by path. Parsers of
/// JSON traditionally take the last of them.
fn parse(text: &str, extension: &str) -> Result<(serde_json::Value, Vec<String>), String> {
    if extension == "json" {
        let value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
        return Ok((value, Vec::new()));
    }
    let mut reader = Reader::new(text, Version::V1_2).with_repeated();
    let value = reader.only().map_err(|fault| fault.to_string())?;
    Ok((value, reader.take_repeated()))
}

/// Returns the keys that differ only in case: names of options are compared without it.
fn same_but_for_case<'a>(keys: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut seen = HashSet::new();
    keys.map(|key| key.to_ascii_lowercase()).filter_map(|key| seen.replace(key)).collect()
}

/// Reads the options of a file: the key in lower case and the value as text. Keys without a value are left out.
pub(crate) fn read(path: &Path, errors: &mut Vec<ConfigError>) -> Vec<(String, String)> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if !matches!(extension, "yaml" | "yml" | "json") {
        let reason = "its name must end in .yaml, .yml or .json".to_owned();
        errors.push(ConfigError::BadFile { path: path.to_owned(), reason });
        return vec![];
    }
    let text = match super::dir::value(path) {
        Ok(text) => text,
        Err(reason) => {
            errors.push(ConfigError::Unreadable { path: path.to_owned(), reason });
            return vec![];
        }
    };
    if text.trim().is_empty() {
        return vec![];
    }
    let mut refuse = |reason: String| errors.push(ConfigError::BadFile { path: path.to_owned(), reason });
    let (options, mut repeated) = match parse(&text, extension) {
        Ok((serde_json::Value::Object(options), repeated)) => (options, repeated),
        Ok((serde_json::Value::Null, _)) => return vec![],
        Ok(_) => {
            refuse("its options are no map; write a line `key: value` for each".to_owned());
            return vec![];
        }
        Err(reason) => {
            refuse(reason);
            return vec![];
        }
    };
    if extension != "json" {
        repeated.extend(same_but_for_case(options.keys()));
    }
    for key in repeated.into_iter().take(MAX_REPORTED_ERRORS) {
        refuse(format!("{} is there more than once; keep the one that is meant", shown(&key)));
    }
    let given = options.into_iter().filter(|(_, value)| !value.is_null());
    let texts = given.filter_map(|(key, value)| Some((key, plain(&Value::serialize(value).ok()?))));
    texts.map(|(key, value)| (key.to_ascii_lowercase(), value)).collect()
}
