//! Files with the running configuration and that of the two previous runs, for tools that compare them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hive::Settings;
use hive::config::Source;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};
use state_file::StateFile;

/// The two configuration files of a run.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Each file with the names of its two previous versions and the content to write.
    files: [(StateFile, [PathBuf; 2], Vec<u8>); 2],
    /// Whether each file is written: a retry of [`Stored::write`] must not rename the previous versions again.
    written: Mutex<[bool; 2]>,
}

impl Stored {
    /// Formats `agent-runtime-config.json` and `viper-agent-config.yaml` as Cilium does. Other programs read them, so
    /// their mode is 0644, and they carry no version of the state folder.
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

    /// Writes each file that is not written yet; those of the two previous runs are kept as `-1` and `-2`.
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

/// Formats JSON with an indentation of one space, as Cilium does.
fn json(running: &BTreeMap<String, Value>) -> Vec<u8> {
    let mut content = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut content, PrettyFormatter::with_indent(b" "));
    // Serializing JSON values with string keys into memory cannot fail.
    let _ = running.serialize(&mut serializer);
    content.push(b'\n');
    content
}

/// Returns the options set by the configuration folder or file as YAML, `{}` if there are none. Values are written as
/// JSON strings, which are valid YAML.
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
