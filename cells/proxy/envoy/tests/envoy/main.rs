//! The cell with clients on its sockets.

mod access_log;
mod client;
mod hostile;
mod redirects;
mod secrets;
mod world;
