//! `debuginfo`: everything that the agent's REST API knows about it, as one text or JSON.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::{Map, Value};

use crate::client::Agent;
use crate::output::Format;

#[derive(Debug, Args)]
pub(crate) struct DebuginfoOptions {
    /// Formats: markdown, json, jsonpath='{...}'
    #[arg(long = "output", value_name = "FORMATS", value_delimiter = ',', default_value = "markdown")]
    formats: Vec<Document>,
    /// Write a file for each format: cilium-debuginfo-TIME.md and others
    #[arg(short, long)]
    file: bool,
    /// Folder of the files (default: the current one)
    #[arg(long, value_name = "PATH", requires = "file")]
    output_directory: Option<PathBuf>,
}

/// A form of the answer.
#[derive(Clone, Debug)]
enum Document {
    Markdown,
    Data(Format),
}

impl FromStr for Document {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "markdown" => Ok(Self::Markdown),
            _ => text.parse().map(Self::Data).map_err(|error| format!("{error}, or markdown")),
        }
    }
}

impl Document {
    fn extension(&self) -> &'static str {
        match self {
            Self::Markdown => "md",
            Self::Data(Format::Json) => "json",
            Self::Data(Format::Yaml) => "yaml",
            Self::Data(Format::JsonPath(_)) => "jsonpath",
        }
    }

    fn write(&self, state: &Map<String, Value>, out: &mut dyn Write) -> anyhow::Result<()> {
        match self {
            Self::Markdown => Ok(markdown(state, out)?),
            Self::Data(format) => format.write(state, out),
        }
    }
}

/// Writes each part of the answer under a title.
fn markdown(state: &Map<String, Value>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "# Cilium debug information")?;
    let mut part = |title: &str, value: &Value| match value {
        Value::String(text) => writeln!(out, "\n#### {title}\n\n```\n{}\n```", text.trim_end()),
        value => writeln!(out, "\n#### {title}\n\n```json\n{value:#}\n```"),
    };
    for (title, value) in state {
        match value {
            // Each cell's own text.
            Value::Object(texts) if title == "subsystem" => {
                texts.iter().try_for_each(|(name, text)| part(name, text))?;
            }
            value => part(title, value)?,
        }
    }
    Ok(())
}

/// Prints the answer, or writes it to files.
pub(crate) fn run(agent: &mut Agent, options: &DebuginfoOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let state: Map<String, Value> = agent.get("/debuginfo").context("cannot get debug information")?;
    ensure!(!options.formats.is_empty(), "name a format with --output");
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = jiff::Timestamp::from_second(seconds.cast_signed()).unwrap_or_default();
    for document in &options.formats {
        if !options.file {
            document.write(&state, out)?;
            continue;
        }
        let name =
            format!("cilium-debuginfo-{}.{}", time.strftime("%Y%m%d-%H%M%S+0000-UTC"), document.extension());
        let path = options.output_directory.clone().unwrap_or_default().join(name);
        let mut text = Vec::new();
        document.write(&state, &mut text)?;
        write_file(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "{} output at {}", document.extension(), path.display())?;
    }
    Ok(())
}

/// Writes a new file that only its owner reads. A link of its name, as others can make in `/tmp`, is not followed.
fn write_file(path: &Path, text: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn parts_have_titles() {
        let state =
            json!({"cilium-version": "1.20.0\n", "policy": {"revision": 1}, "subsystem": {"ipam": "a\nb"}});
        let mut text = Vec::new();
        markdown(state.as_object().unwrap(), &mut text).unwrap();
        let expected = "# Cilium debug information\n\n#### cilium-version\n\n```\n1.20.0\n```\n\n#### policy\n\n```json\n{\n  \
            \"revision\": 1\n}\n```\n\n#### ipam\n\n```\na\nb\n```\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
    #[test]
    fn files_are_new_and_of_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, victim) =
            (folder.path().join("a.md"), folder.path().join("b.md"), folder.path().join("victim"));
        write_file(&file, b"x").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert_eq!(write_file(&link, b"x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(!victim.exists());
    }
}
