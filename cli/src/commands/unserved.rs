//! Frontends in the maps that the datapath does not serve yet.

use std::io::{self, Write};

/// Types of frontends that are ports of the node.
pub(crate) const TYPES: [&str; 2] = ["NodePort", "HostPort"];

/// Prints how many of the listed frontends are not served, for interactive users. Programs use the type field.
pub(crate) fn print_note(count: usize) -> io::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let types = TYPES.join(", ");
    writeln!(
        io::stderr(),
        "Note: {count} of these are ports of the node ({types}); the datapath does not serve them yet"
    )
}
