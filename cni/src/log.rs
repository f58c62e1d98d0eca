//! The plugin's log: stderr, and a file when the configuration names one.

use crate::config::NetworkConfig;
use crate::invocation::Invocation;
use jiff::Timestamp;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file that has grown to this size is renamed to `FILE.1`, that one to `FILE.2`, and so on.
const MAX_FILE: u64 = 100 << 20;
const OLD_FILES: u32 = 7;

/// The destinations of one call's lines.
#[derive(Debug)]
pub(crate) struct Log {
    file: Option<File>,
    json: bool,
    debug: bool,
    fields: [(&'static str, String); 3],
}

impl Log {
    /// Opens the log. A log file that cannot be written loses its lines; the call does not fail.
    pub(crate) fn open(config: &NetworkConfig, invocation: &Invocation) -> Self {
        let path = Path::new(&config.log_file);
        let file = if config.log_file.is_empty() {
            None
        } else {
            rotate(path, MAX_FILE);
            OpenOptions::new().create(true).append(true).open(path).ok()
        };
        let fields = [
            ("containerID", invocation.container_id.clone()),
            ("netns", invocation.netns().display().to_string()),
            ("ifName", invocation.interface.clone()),
        ];
        Self { file, json: config.log_format.starts_with("json"), debug: config.debug, fields }
    }

    pub(crate) fn debug(&mut self, message: &str) {
        if self.debug {
            self.line("debug", message);
        }
    }

    pub(crate) fn warning(&mut self, message: &str) {
        self.line("warning", message);
    }

    pub(crate) fn error(&mut self, message: &str) {
        self.line("error", message);
    }

    fn line(&mut self, level: &str, message: &str) {
        let time = timestamp(SystemTime::now());
        let line = if self.json {
            let mut object =
                serde_json::json!({ "time": time, "level": level, "msg": message, "subsys": "cilium-cni" });
            for (name, value) in &self.fields {
                object[*name] = value.as_str().into();
            }
            object.to_string()
        } else {
            let mut line = format!("time={time:?} level={level} msg={message:?} subsys=cilium-cni");
            for (name, value) in self.fields.iter().filter(|(_, value)| !value.is_empty()) {
                let _ = write!(line, " {name}={value:?}");
            }
            line
        };
        let _ = writeln!(std::io::stderr(), "{line}");
        if let Some(file) = &mut self.file {
            let _ = writeln!(file, "{line}");
        }
    }
}

fn rotate(path: &Path, limit: u64) {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() >= limit) {
        let old = |n: u32| PathBuf::from(format!("{}.{n}", path.display()));
        for n in (1..OLD_FILES).rev() {
            let _ = fs::rename(old(n), old(n + 1));
        }
        let _ = fs::rename(path, old(1));
    }
}

/// Formats a time as RFC 3339 in UTC with milliseconds.
fn timestamp(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or_default();
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn timestamps() {
        let at = |seconds: u64| timestamp(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_795_262_399), "2026-11-21T11:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
    }

    #[test]
    fn a_full_file_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cni.log");
        for text in ["first", "second", "third"] {
            rotate(&path, 1);
            fs::write(&path, text).unwrap();
        }
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!([read("cni.log"), read("cni.log.1"), read("cni.log.2")], ["third", "second", "first"]);
    }
}
