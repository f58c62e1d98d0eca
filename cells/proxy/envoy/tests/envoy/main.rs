//! The cell with clients on its sockets.

mod access_log;
mod client;
mod hostile;
mod process;
mod redirects;
mod secrets;
mod world;
