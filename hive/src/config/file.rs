//! A configuration file: YAML or JSON, with the options at top level.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use figment::providers::{Format, Yaml};
use figment::{Profile, Provider};
use serde_core::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::error::{ConfigError, shown};
use super::kind::plain;

/// The maximum nesting of brackets: the parser's run time is quadratic in the depth.
const DEEPEST: usize = 500;

/// The maximum number of errors that are reported for a file.
const MAX_REPORTED_ERRORS: usize = 10;

fn depth(text: &str) -> usize {
    let step = |(now, most): (usize, usize), byte| match byte {
        b'[' | b'{' => (now + 1, most.max(now + 1)),
        b']' | b'}' => (now.saturating_sub(1), most),
        _ => (now, most),
    };
    text.bytes().fold((0, 0), step).1
}

/// Returns keys that occur more than once; names of options are compared without case. Cilium refuses duplicates in
/// YAML and takes the last one in JSON.
fn repeated<'a>(text: &str, extension: &str, options: impl Iterator<Item = &'a String>) -> Vec<String> {
    if extension == "json" {
        return vec![];
    }
    let Repeated(mut repeated) = Yaml::from_str(text).unwrap_or_default();
    let mut seen = HashSet::new();
    repeated.extend(options.map(|key| key.to_ascii_lowercase()).filter_map(|key| seen.replace(key)));
    repeated
}

/// Keys that a map contains more than once, by path: `log-opt.level`. The parser silently keeps the last of them.
#[derive(Default)]
struct Repeated(Vec<String>);

impl<'de> Deserialize<'de> for Repeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = Repeated;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Repeated, A::Error> {
        let (mut keys, mut repeated) = (HashSet::new(), Repeated::default());
        while let Some((key, Repeated(inside))) = map.next_entry::<String, Repeated>()? {
            repeated.0.extend(inside.iter().map(|inside| format!("{key}.{inside}")));
            repeated.0.extend(keys.replace(key));
        }
        Ok(repeated)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Repeated, A::Error> {
        let mut repeated = Repeated::default();
        while let Some(Repeated(inside)) = items.next_element()? {
            repeated.0.extend(inside);
        }
        Ok(repeated)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_unit<E>(self) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }
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
            for key in repeated(&text, extension, options.keys()).into_iter().take(MAX_REPORTED_ERRORS) {
                let reason = format!("{} is there more than once; keep the one that is meant", shown(&key));
                errors.push(ConfigError::BadFile { path: path.to_owned(), reason });
            }
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
