//! YAML documents of a part of a file.

use std::collections::HashMap;

use yaml_values::{Reader, Version};

use super::{Fault, Read, Reads};
use crate::problem::Problem;

/// Parses the documents of a part: usually one, several if they are ended by `...`. `aliases` is the number of nodes
/// and bytes that aliases may still add; it is reduced by those that they add.
pub(super) fn read<'t>(text: &'t str, aliases: &mut usize) -> Result<Reads<'t>, Fault> {
    let mut reader = Reader::new(text, Version::V1_1).with_aliases(*aliases);
    let mut reads = Vec::new();
    loop {
        let document = reader.document();
        *aliases = reader.aliases();
        match document.map_err(Fault::from) {
            Ok(Some((line, value))) if !value.is_null() => {
                reads.push(Ok(Read { line, value, text, text_line: 1 }))
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(reads),
            Err(fault) if reads.is_empty() => return Err(fault),
            Err(fault) => {
                reads.push(Err(fault));
                return Ok(reads);
            }
        }
    }
}

/// Returns the line of every field of the first document, by path, as far as the text can be parsed. Aliases are not
/// limited: the limit was checked when the content was parsed.
pub(super) fn lines(text: &str) -> HashMap<String, usize> {
    let mut reader = Reader::new(text, Version::V1_1).with_aliases(usize::MAX).with_lines();
    _ = reader.document();
    reader.into_lines()
}

impl From<yaml_values::Fault> for Fault {
    fn from(fault: yaml_values::Fault) -> Fault {
        let yaml_values::Fault { line, path, reason, .. } = fault;
        Fault { line, problem: Problem::new(path, reason) }
    }
}
