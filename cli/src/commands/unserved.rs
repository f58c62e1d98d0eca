//! Frontends in the maps that the datapath does not serve to everybody.

use std::io::{self, Write};

/// Types of frontends that are ports of the node.
pub(crate) const TYPES: [&str; 2] = ["NodePort", "HostPort"];

/// Prints how many of the listed frontends are ports of the node, for interactive users. Programs use the type field.
pub(crate) fn print_note(count: usize) -> io::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let types = TYPES.join(", ");
    writeln!(
        io::stderr(),
        "Note: {count} of these are ports of the node ({types}); devices serve them with \
         kube-proxy-replacement, by backends of this node"
    )
}
