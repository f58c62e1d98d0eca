//! The commands of a hive, live over a unix socket.
//!
//! **Owns** the socket (`--shell-sock-path`; empty for none). **Needs** the [`Engine`](hive_script::Engine) of all commands that
//! cells contribute. **Provides** nothing.
//!
//! **Protocol**, cilium/hive's: a client sends a line for each command and reads its output, which ends with a line
//! `<<end>>`, or with the error and `<<error>>`. What a command has put on stdout follows a line `[stdout]`. `exit`, `quit` and
//! `stop` end the connection. A client that goes away ends its command. Tab completion asks `help -a PREFIX` and
//! `COMMAND --autocomplete='ARGUMENTS'`.
//!
//! **Who may**: root and the user that the agent runs as, by the credentials that the kernel tells; the socket's mode is 0600
//! from its first moment on. Commands read and write files only directly in the shell's folder, `/tmp`, and never through a
//! link or over a file of another user's, so another user who can write there cannot redirect the agent's writes.
//!
//! **Bounds**: 16 clients, lines of 64 KiB, 16 MiB of output that waits; a client that reads nothing for 30 s is left. Each has
//! a task of its own; commands of one do not wait for another's. An output that looks like the end of an answer is changed so
//! that it does not.
//!
//! **Differences from cilium/hive**: mode 0600 instead of 0755, credentials are checked, `exec` and `cat` are absent, since a
//! container that has the socket mounted would otherwise read all files of the agent's and run programs as it.

#![forbid(unsafe_code)]

mod cell;
mod serve;
mod socket;

pub use cell::{ShellConfig, cell};
