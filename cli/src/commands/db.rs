//! `apiary db`: rows of the agent's tables in the agent's format, by the commands `db/*` of its shell.
//!
//! Only the agent knows the columns, indexes and key syntax of its tables, so all of these verbs use the shell;
//! programs read rows over HTTP.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use crate::commands::shell::{ShellSocket, run_words};

/// Options of `db`.
#[derive(Debug, Args)]
pub(crate) struct DbOptions {
    #[command(flatten)]
    socket: ShellSocket,
    #[command(subcommand)]
    command: DbCommand,
}

#[derive(Debug, Subcommand)]
enum DbCommand {
    /// List tables: rows, indexes, who has yet to fill them, who wrote last
    #[command(visible_alias = "ls")]
    Tables,
    /// Show all rows of a table
    Show {
        /// The table
        table: String,
        #[command(flatten)]
        form: Form,
    },
    /// Show the first row with a key
    Get(Question),
    /// Show all rows with a key
    List(Question),
    /// Show all rows whose key starts with this
    Prefix(Question),
    /// Show all rows whose key is this or greater
    #[command(visible_alias = "lower-bound")]
    Lowerbound(Question),
    /// Show a table and then what changes, until interrupted
    Watch {
        /// The table
        table: String,
    },
    /// Write all tables as JSON
    Dump,
}

/// How rows are written.
#[derive(Debug, Args)]
struct Form {
    /// json: objects one after the other; yaml: documents
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum)]
    output: Option<RowFormat>,
    /// Columns to show, in this order
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', conflicts_with = "output")]
    columns: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RowFormat {
    Json,
    Yaml,
}

#[derive(Debug, Args)]
struct Question {
    /// The table
    table: String,
    /// The key, in the words of its index: a name, a number, an address, the parts of several joined by commas
    #[arg(allow_hyphen_values = true)]
    key: String,
    /// The index to look in; the primary one if not given
    #[arg(short, long)]
    index: Option<String>,
    #[command(flatten)]
    form: Form,
}

/// Options of a command that shows one table.
#[derive(Debug, Args)]
pub(crate) struct ShowOptions {
    #[command(flatten)]
    socket: ShellSocket,
    #[command(flatten)]
    form: Form,
}

/// Shows all rows of a table.
pub(crate) fn show(table: &str, options: &ShowOptions, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    run_words(&options.socket, &options.form.words("db/show", &[&table.to_owned()]), out)
}

/// Runs a verb.
pub(crate) fn run(options: &DbOptions, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    run_words(&options.socket, &options.command.words(), out)
}

impl DbCommand {
    /// Returns the command of the shell.
    fn words(&self) -> Vec<String> {
        let word = |word: &str| vec![word.to_owned()];
        match self {
            DbCommand::Tables => word("db"),
            DbCommand::Dump => word("db/dump"),
            DbCommand::Watch { table } => vec!["db/watch".to_owned(), "--".to_owned(), table.clone()],
            DbCommand::Show { table, form } => form.words("db/show", &[table]),
            DbCommand::Get(question) => question.words("db/get"),
            DbCommand::List(question) => question.words("db/list"),
            DbCommand::Prefix(question) => question.words("db/prefix"),
            DbCommand::Lowerbound(question) => question.words("db/lowerbound"),
        }
    }
}

impl Question {
    fn words(&self, command: &str) -> Vec<String> {
        let index = self.index.iter().map(|index| format!("--index={index}"));
        let mut words = self.form.words(command, &[&self.table, &self.key]);
        words.splice(1..1, index);
        words
    }
}

impl Form {
    /// Returns flags before arguments, because an argument may look like a flag.
    fn words(&self, command: &str, arguments: &[&String]) -> Vec<String> {
        let format = self.output.map(|format| match format {
            RowFormat::Json => "--format=json".to_owned(),
            RowFormat::Yaml => "--format=yaml".to_owned(),
        });
        let columns = (!self.columns.is_empty()).then(|| format!("--columns={}", self.columns.join(",")));
        let flags = format.into_iter().chain(columns).chain(["--".to_owned()]);
        let words = std::iter::once(command.to_owned()).chain(flags);
        words.chain(arguments.iter().copied().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: DbOptions,
    }

    #[test]
    fn verbs_are_commands_of_the_shell() {
        for (line, words) in [
            ("tables", "db"),
            ("ls", "db"),
            ("dump", "db/dump"),
            ("watch routes", "db/watch -- routes"),
            ("show routes", "db/show -- routes"),
            ("show routes -o json", "db/show --format=json -- routes"),
            ("show --columns A,B --columns=C routes", "db/show --columns=A,B,C -- routes"),
            ("get devices eth0 -i name -o yaml", "db/get --index=name --format=yaml -- devices eth0"),
            ("list devices -1", "db/list -- devices -1"),
            ("prefix routes 254,2", "db/prefix -- routes 254,2"),
            ("lower-bound routes --columns A 254", "db/lowerbound --columns=A -- routes 254"),
        ] {
            let line = Line::try_parse_from(["db"].into_iter().chain(line.split(' ')))
                .unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!(line.options.command.words().join(" "), words);
        }
        for wrong in ["show", "show a b", "get a", "show a -o xml", "show a -o json --columns=x", "nosuch"] {
            assert!(Line::try_parse_from(["db"].into_iter().chain(wrong.split(' '))).is_err(), "{wrong}");
        }
    }
}
