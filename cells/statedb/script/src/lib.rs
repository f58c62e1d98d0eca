//! The commands `db/*` of scripts and of the shell, on all tables of a hive.
//!
//! **Owns** nothing. **Needs** the `Arc<Db>`. **Provides** the commands as group members: `db` and `db/show`, `db/get`, `db/list`,
//! `db/prefix`, `db/lowerbound`, `db/cmp`, `db/empty`, `db/initialized`, `db/watch`, `db/dump`, `db/insert`, `db/delete`.
//!
//! `db/cmp` waits until the table equals the text, so that scripts need no delays. `db/insert` works on tables with
//! [`FROM_VALUE`](statedb::TableDisplay::FROM_VALUE), `db/delete` on all tables, each in one transaction. They bypass the
//! table's owner, which may overwrite the rows.

mod cell;
mod compare;
mod edit;
mod overview;
mod show;
mod wait;

pub use cell::cell;
