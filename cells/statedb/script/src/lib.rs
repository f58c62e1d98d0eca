//! The commands `db/*` of scripts and of the shell, on all tables of a hive.
//!
//! **Owns** nothing. **Needs** the `Arc<Db>`. **Gives** the commands as group members: `db` and `db/show`, `db/get`, `db/list`,
//! `db/prefix`, `db/lowerbound`, `db/cmp`, `db/empty`, `db/initialized`, `db/watch`, `db/dump`.
//!
//! They read snapshots and never write: a table has one owner. What `db/cmp` compares with a text is waited for, so a
//! script says what shall be, not when.
//!
//! **Differences from Cilium**: `db/insert`, `db/delete` and the flag `--delete` are absent, as rows are made by their owners;
//! the time of the last write names the place in the code, not a name.

mod cell;
mod compare;
mod overview;
mod show;
mod wait;

pub use cell::cell;
