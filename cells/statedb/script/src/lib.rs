//! The commands `db/*` of scripts and of the shell, on all tables of a hive.
//!
//! **Owns** nothing. **Needs** the `Arc<Db>`. **Provides** the commands as group members: `db` and `db/show`, `db/get`, `db/list`,
//! `db/prefix`, `db/lowerbound`, `db/cmp`, `db/empty`, `db/initialized`, `db/watch`, `db/dump`, `db/insert`, `db/delete`.
//!
//! What `db/cmp` compares with a text is waited for, so a script says what shall be, not when. Rows are inserted into tables
//! whose type says how it is made of YAML ([`FROM_VALUE`](statedb::TableSpec::FROM_VALUE)), and deleted from all, in one
//! transaction each; a table's owner is not asked and may write them anew.

mod cell;
mod compare;
mod edit;
mod overview;
mod show;
mod wait;

pub use cell::cell;
