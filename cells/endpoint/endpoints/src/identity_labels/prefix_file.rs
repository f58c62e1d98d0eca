//! The file of `--label-prefix-file`.

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

/// The supported version of the file.
const VERSION: u32 = 1;

/// Maximum size of the file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The contents of the file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PrefixFile {
    version: u32,
    pub(crate) valid_prefixes: Vec<Listed>,
}

/// A prefix of keys.
#[derive(Debug, Deserialize)]
pub(crate) struct Listed {
    pub(crate) prefix: String,
    pub(crate) source: String,
    /// Whether labels with the prefix are excluded.
    #[serde(default)]
    pub(crate) invert: bool,
}

/// Why the prefixes of a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}; the form is {{\"version\": 1, \"valid-prefixes\": [{{\"prefix\": \"app\", \"source\": \"k8s\", \"invert\": false}}]}}"
)]
pub struct BadFile(String);

impl PrefixFile {
    pub(crate) fn parse(json: &str) -> Result<PrefixFile, BadFile> {
        let file: PrefixFile = serde_json::from_str(json).map_err(|error| BadFile(error.to_string()))?;
        if file.version != VERSION {
            return Err(BadFile(format!("version {} is not known", file.version)));
        }
        for (at, Listed { prefix, source, .. }) in file.valid_prefixes.iter().enumerate() {
            if prefix.is_empty() || source.is_empty() {
                return Err(BadFile(format!("valid-prefixes[{at}]: prefix and source must not be empty")));
            }
        }
        Ok(file)
    }
}

/// Returns the file's text.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_the_form() {
        for (json, problem) in [
            ("{", "EOF"),
            (r#"{"version": 2, "valid-prefixes": []}"#, "version 2 is not known"),
            (r#"{"version": 1}"#, "missing field `valid-prefixes`"),
            (
                r#"{"version": 1, "valid-prefixes": [{"prefix": "a", "source": ""}]}"#,
                "valid-prefixes[0]: prefix and source must not be empty",
            ),
        ] {
            let error = PrefixFile::parse(json).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{error}");
            assert!(error.ends_with(r#""source": "k8s", "invert": false}]}"#), "{error}");
        }
    }
}
