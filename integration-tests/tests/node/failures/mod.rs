//! What the kernel refuses or others remove: named where an operator looks, nothing opened, and gone when its cause is.

mod datapath;
mod inputs;
mod interfaces;
mod kernel;
mod kit;
mod maps;
mod netlink;
mod rows;
mod state;
