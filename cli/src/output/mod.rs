//! Output formats: aligned tables and relative times for interactive use; JSON, YAML and JSONPath of `-o` for programs.
//!
//! Sibling folders that it uses: none.

pub(crate) mod jsonpath;
mod printable;
mod table;
pub(crate) mod time;

pub(crate) use printable::printable;
pub(crate) use table::align;

use clap::Args;
use jsonpath::JsonPath;
use serde::Serialize;
use std::io::{self, Write};
use std::str::FromStr;

/// The option `-o` that nearly every command has.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Output {
    /// json | yaml | jsonpath='{...}'
    #[arg(short = 'o', long = "output", value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
}

/// A format of `-o`.
#[derive(Clone, Debug)]
pub(crate) enum Format {
    Json,
    Yaml,
    JsonPath(JsonPath),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "json" => Ok(Self::Json),
            None if text == "yaml" => Ok(Self::Yaml),
            Some(("jsonpath", path)) => path.parse().map(Self::JsonPath),
            _ => Err("want json, yaml or jsonpath='{...}'".to_owned()),
        }
    }
}

impl Output {
    /// Writes `data` in the format of `-o`; returns false if there is none.
    pub(crate) fn write(&self, data: &impl Serialize, out: &mut dyn Write) -> anyhow::Result<bool> {
        let Some(format) = &self.format else { return Ok(false) };
        format.write(data, out)?;
        Ok(true)
    }
}

impl Format {
    pub(crate) fn write(&self, data: &impl Serialize, out: &mut dyn Write) -> anyhow::Result<()> {
        match self {
            Self::Json => serde_json::to_writer_pretty(&mut *out, data)?,
            Self::Yaml => {
                // Its last line ends with a newline already.
                out.write_all(k8s_types::yaml::print(&serde_json::to_value(data)?).as_bytes())?;
                return Ok(());
            }
            Self::JsonPath(path) => out.write_all(path.evaluate(&serde_json::to_value(data)?)?.as_bytes())?,
        }
        Ok(writeln!(out)?)
    }
}

/// Writes rows as an aligned table.
pub(crate) fn table(text: &str, minimum: usize, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(crate::output::align(text, minimum).as_bytes())
}
