//! The options of the filter of labels: `--labels` and the file of `--label-prefix-file`.

use std::fs;
use std::io;
use std::path::Path;

use labels::{BadPrefix, Filter};
use serde::Deserialize;

/// The supported version of the file.
const VERSION: u32 = 1;

/// Maximum size of the file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The contents of the file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct PrefixFile {
    version: u32,
    valid_prefixes: Vec<Listed>,
}

/// A prefix of keys.
#[derive(Debug, Deserialize)]
struct Listed {
    prefix: String,
    source: String,
    /// Whether labels with the prefix are excluded.
    #[serde(default)]
    invert: bool,
}

/// Why the prefixes of a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}; the form is {{\"version\": 1, \"valid-prefixes\": [{{\"prefix\": \"app\", \"source\": \"k8s\", \"invert\": false}}]}}"
)]
pub struct BadFile(String);

/// Returns a filter with the prefixes of a file in the place of the defaults. The agent's own labels are always included.
///
/// ```
/// let file = r#"{"version": 1, "valid-prefixes": [{"prefix": "app", "source": "k8s"}]}"#;
/// let filter = identity_core::filter_of_file(file)?;
/// let labels = labels::Labels::parse(["k8s:app=web", "k8s:version=7", "reserved:host"]);
/// assert_eq!(filter.split(&labels).0.texts(), ["k8s:app=web", "reserved:host"]);
/// # Ok::<(), identity_core::BadFile>(())
/// ```
pub fn filter_of_file(json: &str) -> Result<Filter, BadFile> {
    let prefixes = PrefixFile::parse(json)?.valid_prefixes.into_iter();
    Ok(prefixes.fold(Filter::all(), |filter, Listed { prefix, source, invert }| {
        filter.with_text(source, prefix, invert)
    }))
}

/// Why the options of a filter cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// A prefix of `labels`.
    #[error("option labels")]
    Prefix(#[from] BadPrefix),
    /// The file cannot be read.
    #[error("option label-prefix-file: cannot read {path}")]
    Read {
        /// The path of the file.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file has another form.
    #[error("option label-prefix-file: {path}")]
    File {
        /// The path of the file.
        path: String,
        /// The cause.
        #[source]
        source: BadFile,
    },
}

/// Returns the filter of the options `labels` and `label-prefix-file`. Reads the file, if there is one.
pub fn filter_of_options(prefixes: &[String], path: &str) -> Result<Filter, FilterError> {
    let base = match path.is_empty() {
        true => Filter::default(),
        false => {
            let text = read(Path::new(path));
            let text = text.map_err(|source| FilterError::Read { path: path.to_owned(), source })?;
            filter_of_file(&text).map_err(|source| FilterError::File { path: path.to_owned(), source })?
        }
    };
    Ok(base.with(prefixes.iter().map(String::as_str))?)
}

impl PrefixFile {
    fn parse(json: &str) -> Result<PrefixFile, BadFile> {
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
fn read(path: &Path) -> io::Result<String> {
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

    fn keys(filter: &Filter, labels: &[&str]) -> Vec<String> {
        filter.split(&labels::Labels::parse(labels.iter().copied())).0.0.into_keys().collect()
    }

    #[test]
    fn a_file_replaces_the_defaults() {
        let file = r#"{"version": 1, "valid-prefixes": [
            {"prefix": "a.", "source": "k8s"}, {"prefix": "a.b", "source": "k8s", "invert": true}]}"#;
        let labels =
            ["k8s:a.c=1", "k8s:a.bc=1", "k8s:axb=1", "container:a.c=1", "reserved:host", "k8s:app=1"];
        let filter = filter_of_file(file).unwrap();
        assert_eq!(keys(&filter, &labels[..3]), ["a.c"]);
        assert_eq!(keys(&filter, &labels[3..]), ["host"]);
        assert_eq!(keys(&filter.with(["k8s:app"]).unwrap(), &labels[4..]), ["app", "host"]);
        let only_without =
            r#"{"version": 1, "valid-prefixes": [{"prefix": "b", "source": "k8s", "invert": true}]}"#;
        let filter = filter_of_file(only_without).unwrap();
        assert_eq!(keys(&filter, &["k8s:b=1", "k8s:pod-template-hash=1"]), ["pod-template-hash"]);
    }
}
