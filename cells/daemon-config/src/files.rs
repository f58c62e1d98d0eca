//! The configuration in force, stored for those who look for what has changed between runs.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use hive::Settings;
use hive::config::Source;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use crate::error::{Error, file};

/// Writes `agent-runtime-config.json` and `viper-agent-config.yaml`; those of the two runs before stay as `-1` and
/// `-2`.
pub(crate) fn store(
    state: &Path,
    running: &BTreeMap<String, Value>,
    settings: &Settings,
) -> Result<(), Error> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(state).map_err(file("create", state))?;
    rotate_and_write(state, "agent-runtime-config", "json", &json(running))?;
    rotate_and_write(state, "viper-agent-config", "yaml", &yaml(settings))
}

fn rotate_and_write(state: &Path, name: &str, extension: &str, content: &[u8]) -> Result<(), Error> {
    let path = |suffix: &str| state.join(format!("{name}{suffix}.{extension}"));
    for (from, to) in [("-1", "-2"), ("", "-1")] {
        match fs::rename(path(from), path(to)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(file("rotate", path(from))(error));
            }
            _ => {}
        }
    }
    // Under another name until it is whole.
    let (new, path) = (path(".new"), path(""));
    let write = || {
        let mut open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
        open.write_all(content)?;
        fs::rename(&new, &path)
    };
    write().map_err(file("write", &path))
}

/// Indented by one blank, as the original does.
fn json(running: &BTreeMap<String, Value>) -> Vec<u8> {
    let mut content = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut content, PrettyFormatter::with_indent(b" "));
    // Maps of JSON values can be written.
    let _ = running.serialize(&mut serializer);
    content.push(b'\n');
    content
}

/// What came from the configuration folder or file, `{}` if nothing did. A JSON string is a YAML string.
fn yaml(settings: &Settings) -> Vec<u8> {
    let lines: String = settings
        .iter()
        .filter(|setting| matches!(setting.source, Source::Directory(_) | Source::File(_)))
        .map(|setting| format!("{}: {}\n", setting.key, Value::from(setting.value.as_str())))
        .collect();
    if lines.is_empty() { b"{}\n".to_vec() } else { lines.into_bytes() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_three_runs_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        for run in 1..=4 {
            store(&state, &BTreeMap::from([("Run".to_owned(), json!(run))]), &Settings::default()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(state.join(name)).unwrap();
        assert_eq!(read("agent-runtime-config.json"), "{\n \"Run\": 4\n}\n");
        assert_eq!(read("agent-runtime-config-1.json"), "{\n \"Run\": 3\n}\n");
        assert_eq!(read("agent-runtime-config-2.json"), "{\n \"Run\": 2\n}\n");
        assert_eq!(read("viper-agent-config.yaml"), "{}\n");
        assert_eq!(fs::read_dir(&state).unwrap().count(), 6);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state), 0o750);
        assert_eq!(mode(&state.join("agent-runtime-config.json")), 0o644);
    }
}
