//! Reports when a file or a folder of files may have changed, through all links on the way.
//!
//! **Provides** [`resolve()`], the names that decide where a path leads, and [`FileWatch`], which watches all of them: a mounted
//! ConfigMap whose `..data` is exchanged, a link that leads elsewhere, a folder that comes late. **Needs** nothing.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use file_watch::FileWatch;
//!
//! let folder = tempfile::tempdir()?;
//! let mut watch = FileWatch::new()?;
//! watch.follow(folder.path())?;
//! std::fs::write(folder.path().join("debug"), "true")?;
//! watch.changed().await?;
//! # Ok::<(), std::io::Error>(())
//! # }).unwrap();
//! ```

mod resolve;
mod watch;

pub use resolve::{Way, resolve};
pub use watch::{FileWatch, WAY};
