//! TLS 1.3 of servers: a listener that is configured by files, which are followed.
//!
//! **Owns** nothing. **Needs** the files of a server ([`TlsFiles`]: certificate, key, authorities of clients).
//! **Provides** [`follow_certificates`], a job that publishes their configuration ([`CurrentTls`]) whenever they change, and
//! [`Listener`], of plain text or TLS, for [`http_server::serve()`].
//!
//! Each handshake has the latest valid files; invalid ones leave the previous configuration in force, and the health of the job
//! names the fault. Before files are valid for the first time every connection is refused: servers bind their address after that.
//! With authorities, a client needs a certificate of one of them.
//!
//! ```
//! use server_tls::TlsFiles;
//!
//! let files = TlsFiles {
//!     server: "metrics",
//!     authorities_option: "operator-prometheus-tls-client-ca-files",
//!     protocol: b"http/1.1",
//!     certificate: "server.crt".into(),
//!     key: "server.key".into(),
//!     client_authorities: Vec::new(),
//! };
//! assert!(files.client_authorities.is_empty(), "any client is served");
//! ```

#![forbid(unsafe_code)]

mod files;
mod follow;
mod listener;

pub use files::TlsFiles;
pub use follow::{CurrentTls, follow_certificates};
pub use listener::{Listener, Stream};
