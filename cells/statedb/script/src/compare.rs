//! The comparison of a table with a text.

use anyhow::{Context, ensure};
use regex::bytes::Regex;
use similar::{ChangeTag, TextDiff};
use statedb::{AnyObj, AnyTable};

use crate::show::columns;

/// What rows are expected: columns by header, cells by the places at which their headers begin.
pub(crate) struct Expected {
    header: Vec<String>,
    picked: Vec<usize>,
    starts: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Expected {
    /// Reads a table as it is shown. Lines of blanks do not count.
    pub(crate) fn parse(text: &str, table: &dyn AnyTable) -> anyhow::Result<Self> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().context("missing table header")?;
        ensure!(!first.starts_with([' ', '\t']), "the header must begin in column 0");
        let (mut header, mut starts, mut at) = (vec![], vec![], 0);
        for word in first.split([' ', '\t']) {
            if !word.is_empty() {
                header.push(word.to_owned());
                starts.push(at);
            }
            at += word.len() + 1;
        }
        let (header, picked) = columns(table, &header)?;
        // A header with tabs means cells between tabs.
        let tabs = first.contains('\t');
        let rows = lines
            .map(|line| if tabs { by_tabs(line, header.len()) } else { by_places(line, &starts) })
            .collect();
        Ok(Expected { header, picked, starts, rows })
    }

    /// The difference, if there is one.
    pub(crate) fn difference(&self, rows: &[AnyObj], only: Option<&Regex>) -> Option<String> {
        let cells = |row: &AnyObj| -> Vec<String> {
            let row = row.row();
            self.picked.iter().map(|column| row.get(*column).cloned().unwrap_or_default()).collect()
        };
        let actual = rows.iter().map(cells);
        let actual: Vec<Vec<String>> =
            actual.filter(|row| only.is_none_or(|only| only.is_match(self.joined(row).as_bytes()))).collect();
        if actual == self.rows {
            return None;
        }
        let show = |rows: &[Vec<String>]| {
            hive_script::render::table(
                &std::iter::once(&self.header).chain(rows).cloned().collect::<Vec<_>>(),
            )
        };
        let (actual, expected) = (show(&actual), show(&self.rows));
        let difference = TextDiff::from_lines(&actual, &expected);
        Some(difference.iter_all_changes().fold(String::new(), |text, change| {
            let sign = match change.tag() {
                ChangeTag::Equal => "  ",
                ChangeTag::Delete => "- ",
                ChangeTag::Insert => "+ ",
            };
            text + sign + change.value()
        }))
    }

    /// A row in the places of the header.
    fn joined(&self, row: &[String]) -> String {
        let mut text = String::new();
        for (cell, start) in row.iter().zip(&self.starts) {
            while text.len() < *start {
                text.push(' ');
            }
            text.push_str(cell);
        }
        text
    }
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
