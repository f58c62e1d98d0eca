//! Refusals of the kernel and removals by other processes: reported, fail closed, and recovered when the cause ends.

mod datapath;
mod inputs;
mod interfaces;
mod kernel;
mod kit;
mod maps;
mod netlink;
mod rows;
mod state;
