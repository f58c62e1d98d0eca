//! The grammar of commands with `list` as their only verb.

use crate::output::Output;
use clap::{Args, Subcommand};

/// A command that can only list.
#[derive(Debug, Subcommand)]
pub(crate) enum List<O: Args> {
    /// List everything
    #[command(visible_alias = "ls")]
    List(O),
}

#[derive(Debug, Args)]
pub(crate) struct Listing {
    #[command(flatten)]
    pub(crate) output: Output,
}
