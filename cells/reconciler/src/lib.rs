//! Drives a target, such as a kernel map, from the rows of a table.
