//! The configuration in force, stored for tools that compare it between runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hive::Settings;
use hive::config::Source;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};
use state_file::StateFile;

/// The stored configuration of a run.
#[derive(Debug)]
pub(crate) struct Stored {
    files: [(StateFile, [PathBuf; 2], Vec<u8>); 2],
    /// Those that are written; the others are tried again, these are not moved on once more.
    written: Mutex<[bool; 2]>,
}

impl Stored {
    /// `agent-runtime-config.json` and `viper-agent-config.yaml`, in Cilium's form, for readers outside: mode
    /// 0644, no version.
    pub(crate) fn new(state: &Path, running: &BTreeMap<String, Value>, settings: &Settings) -> Stored {
        let file = |name: &str, extension: &str, content| {
            let path = |suffix: &str| state.join(format!("{name}{suffix}.{extension}"));
            (StateFile::new(path("")).mode(0o644), [path("-1"), path("-2")], content)
        };
        let files = [
            file("agent-runtime-config", "json", json(running)),
            file("viper-agent-config", "yaml", yaml(settings)),
        ];
        Stored { files, written: Mutex::default() }
    }

    /// Writes them, each once; those of the two runs before stay as `-1` and `-2`.
    pub(crate) fn write(&self) -> Result<(), state_file::Error> {
        let mut written = self.written.lock();
        for ((file, older, content), written) in
            self.files.iter().zip(written.iter_mut()).filter(|(_, w)| !**w)
        {
            file.write_keeping(content, older)?;
            *written = true;
        }
        Ok(())
    }
}

/// Indented by one blank, as Cilium does.
fn json(running: &BTreeMap<String, Value>) -> Vec<u8> {
    let mut content = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut content, PrettyFormatter::with_indent(b" "));
    // Maps of JSON values can be written.
    let _ = running.serialize(&mut serializer);
    content.push(b'\n');
    content
}

/// Returns the options of the configuration folder or file, `{}` if there are none. A JSON string is a YAML string.
fn yaml(settings: &Settings) -> Vec<u8> {
    let lines: String = settings
        .iter()
        .chain(settings.unused())
        .filter(|setting| matches!(setting.source, Source::Directory(_) | Source::File(_)))
        .map(|setting| format!("{}: {}\n", setting.key, Value::from(setting.value.as_str())))
        .collect();
    if lines.is_empty() { b"{}\n".to_vec() } else { lines.into_bytes() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_three_runs_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        for run in 1..=4 {
            let running = BTreeMap::from([("Run".to_owned(), json!(run))]);
            let stored = Stored::new(&state, &running, &Settings::default());
            stored.write().unwrap();
            stored.write().unwrap();
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
