//! The comparison of a table with a text.

use anyhow::ensure;
use regex::bytes::Regex;
use statedb::{AnyObj, AnyTable};

use crate::show::columns;

/// Expected rows: columns by header, cells by the positions at which their headers begin.
pub(crate) struct Expected {
    header: String,
    picked: Vec<usize>,
    starts: Vec<usize>,
    rows: Vec<Row>,
}

/// A line of the text.
struct Row {
    cells: Vec<String>,
    /// The line in the format of differences.
    line: String,
}

impl Expected {
    /// Parses the text of a file in the format of `db/show`. Blank lines are ignored; a header with tabs means that
    /// tabs separate the cells.
    pub(crate) fn parse(file: &str, text: &str, table: &dyn AnyTable) -> anyhow::Result<Self> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let known = || table.columns().join(" ");
        let Some(first) = lines.next() else {
            anyhow::bail!("\"{file}\" missing header line, e.g. \"{}\"", known())
        };
        let first = first.trim_end();
        let word = first.trim_start();
        let indent = first.len() - word.len();
        let begin = &first[..indent + word.find([' ', '\t']).unwrap_or(word.len())];
        ensure!(indent == 0, "column \"{begin}\" not part of [{}]", known());
        let (mut header, mut starts, mut at) = (vec![], vec![], 0);
        for word in first.split([' ', '\t']) {
            if !word.is_empty() {
                header.push(word.to_owned());
                starts.push(at);
            }
            at += word.len() + 1;
        }
        let (header, picked) = columns(table, &header)?;
        let tabs = first.contains('\t');
        let row = |line: &str| match tabs {
            true => {
                let cells = by_tabs(line, header.len());
                Row { line: joined(&cells, &starts), cells }
            }
            false => Row { cells: by_places(line, &starts), line: line.to_owned() },
        };
        let rows = lines.map(row).collect();
        let header = if tabs { joined(&header, &starts) } else { first.to_owned() };
        Ok(Expected { header, picked, starts, rows })
    }

    /// Returns the difference, if there is one: row by row the actual (`-`) and the expected one (`+`).
    pub(crate) fn difference(&self, rows: &[AnyObj], only: Option<&Regex>) -> Option<String> {
        let cells = |row: &AnyObj| -> Vec<String> {
            let row = row.row();
            self.picked.iter().map(|column| row.get(*column).cloned().unwrap_or_default()).collect()
        };
        let actual: Vec<(Vec<String>, String)> = rows
            .iter()
            .map(cells)
            .map(|cells| (joined(&cells, &self.starts), cells))
            .filter(|(line, _)| only.is_none_or(|only| only.is_match(line.as_bytes())))
            .map(|(line, cells)| (cells, line))
            .collect();
        if actual.iter().map(|(cells, _)| cells).eq(self.rows.iter().map(|row| &row.cells)) {
            return None;
        }
        let mut text = format!("  {}\n", self.header);
        for at in 0..actual.len().max(self.rows.len()) {
            match (actual.get(at), self.rows.get(at)) {
                (Some((cells, line)), Some(row)) if *cells == row.cells => text += &format!("  {line}\n"),
                (actual, expected) => {
                    actual.iter().for_each(|(_, line)| text += &format!("- {line}\n"));
                    expected.iter().for_each(|row| text += &format!("+ {}\n", row.line));
                }
            }
        }
        Some(text)
    }
}

/// Returns a line with the cells at the positions of their headers.
fn joined(cells: &[String], starts: &[usize]) -> String {
    let mut text = String::new();
    for (cell, start) in cells.iter().zip(starts) {
        while text.len() < *start {
            text.push(' ');
        }
        text.push_str(cell);
    }
    text
}

fn by_places(line: &str, starts: &[usize]) -> Vec<String> {
    let cell = |(column, start): (usize, &usize)| {
        let end = starts.get(column + 1).copied().unwrap_or(line.len()).min(line.len());
        let bytes = line.as_bytes().get(*start..end).unwrap_or_default();
        String::from_utf8_lossy(bytes).trim_end_matches([' ', '\t']).to_owned()
    };
    starts.iter().enumerate().map(cell).collect()
}

fn by_tabs(line: &str, columns: usize) -> Vec<String> {
    let mut cells: Vec<String> = line.split('\t').map(|cell| cell.trim_end_matches(' ').to_owned()).collect();
    cells.resize(columns, String::new());
    cells
}
