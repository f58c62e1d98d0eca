//! Cells that exist for one subcommand of the program only.

use crate::builder::schema;
use crate::cell::Cell;
use crate::config::{Foreign, Sources, parse_args};
use crate::graph::Graph;

/// A subcommand with its names and its cells.
pub(crate) struct Command {
    pub(crate) words: Vec<String>,
    pub(crate) cells: Vec<Cell>,
}

impl Command {
    /// Whether the first word of the command line, values of options left out, is a name of this subcommand.
    pub(crate) fn is_called(&self, others: &[Cell], sources: &Sources, foreign: &[Foreign]) -> bool {
        // Whether a word is the value of an option depends on the declared options, those of this subcommand included.
        if !sources.args.iter().any(|arg| self.words.contains(arg)) {
            return false;
        }
        let mut graph = Graph::new();
        graph.register(others);
        graph.register(&self.cells);
        let schema = schema(&mut graph, sources, foreign.to_vec(), vec![]);
        let (arguments, _) = parse_args(&sources.args, &schema, &mut vec![]);
        arguments.words.first().is_some_and(|word| self.words.contains(word))
    }
}
