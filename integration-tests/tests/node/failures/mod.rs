//! Refusals of the kernel and removals by other processes: reported, nothing is opened by them, gone with their cause.

mod datapath;
mod inputs;
mod interfaces;
mod kernel;
mod kit;
mod maps;
mod netlink;
mod rows;
mod state;
