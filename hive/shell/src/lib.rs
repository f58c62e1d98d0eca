//! The commands of a hive, live over a unix socket.
//!
//! **Owns** the socket (`--shell-sock-path`; empty for none). **Needs** the [`Engine`](hive_script::Engine) of all commands that
//! cells contribute. **Provides** nothing.
//!
//! **Protocol**, that of cilium/hive: a client sends a line for each command and reads its output, which ends with a
//! line `<<end>>`, or with the error and `<<error>>`. Standard output follows a line `[stdout]`. `exit`, `quit` and
//! `stop` close the connection. A command is cancelled when its client disconnects. Tab completion sends `help -a
//! PREFIX` and `COMMAND --autocomplete='ARGUMENTS'`.
//!
//! **Access**: root and the agent's own user, by the peer credentials of the socket (SO_PEERCRED); the socket has mode
//! 0600 from its creation on. Commands read and write files only directly in the shell's folder, `/tmp`, and never
//! through a symlink or over a file of another user, so another user with write access to it cannot redirect the
//! agent's writes.
//!
//! **Limits**: 16 clients, lines of 64 KiB, 16 MiB of pending output; a client that does not read for 30 s is
//! disconnected. Each client has a task of its own; their commands do not wait for each other. A line of output that
//! looks like an end mark is changed.
//!
//! **Differences from cilium/hive**: mode 0600 instead of 0755, credentials are checked, `exec` and `cat` are absent,
//! since a container that mounts the socket could otherwise read all files of the agent and run programs as its user.

#![forbid(unsafe_code)]

mod cell;
mod serve;
mod socket;

pub use cell::{ShellConfig, cell};
