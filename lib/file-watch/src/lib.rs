//! Reports when a file or a folder of files may have changed, through all symbolic links of its path.
//!
//! **Provides** [`resolve()`], which returns the directory entries that a path depends on, and [`FileWatch`], which
//! watches all of them: it reports a mounted ConfigMap with a replaced `..data`, a link with a new target, a folder
//! that is created later; [`Unwaited`] drops inotify instances without a wait. **Needs** nothing.
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
mod unwaited;
mod watch;

pub use resolve::{Way, resolve};
pub use unwaited::Unwaited;
pub use watch::{FileWatch, WAY};
