//! A configuration file: YAML or JSON, the options at its top.

use std::path::Path;

use figment::providers::{Format, Yaml};
use figment::{Profile, Provider};

use super::error::ConfigError;
use super::kind::plain;

/// How deep brackets may be nested: the time that the parser takes grows with the square.
const DEEPEST: usize = 500;

fn depth(text: &str) -> usize {
    let step = |(now, most): (usize, usize), byte| match byte {
        b'[' | b'{' => (now + 1, most.max(now + 1)),
        b']' | b'}' => (now.saturating_sub(1), most),
        _ => (now, most),
    };
    text.bytes().fold((0, 0), step).1
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
    if depth(&text) > DEEPEST {
        let reason =
            format!("it is nested more than {DEEPEST} levels deep; an option is a value, a list or a map");
        errors.push(ConfigError::BadFile { path: path.to_owned(), reason });
        return vec![];
    }
    match Yaml::string(&text).data() {
        Ok(mut profiles) => {
            let options = profiles.remove(&Profile::Default).unwrap_or_default();
            let given =
                options.into_iter().filter(|(_, value)| !matches!(value, figment::value::Value::Empty(..)));
            given.map(|(key, value)| (key.to_ascii_lowercase(), plain(&value))).collect()
        }
        Err(error) => {
            errors.push(ConfigError::BadFile { path: path.to_owned(), reason: error.to_string() });
            vec![]
        }
    }
}
