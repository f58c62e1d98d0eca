//! Frontends that the maps have and the datapath does not serve yet.

use std::io::{self, Write};

/// Types of frontends that are ports of the node.
pub(crate) const TYPES: [&str; 2] = ["NodePort", "HostPort"];

/// Tells people how many of what they see is not served. Programs have the types.
pub(crate) fn tell(count: usize) -> io::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let types = TYPES.join(", ");
    writeln!(
        io::stderr(),
        "Note: {count} of these are ports of the node ({types}); the datapath does not serve them yet"
    )
}
