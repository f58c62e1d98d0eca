//! The public API of the hive, as authors of agents use it.

mod bad_code;
mod commands;
mod compile_fail;
mod conditional;
mod config;
mod config_folder;
mod edit;
mod graph;
mod job_reports;
mod jobs;
mod lifecycle;
mod live;
mod objects;
mod order;
mod picture;
mod progress;
mod replace;
mod scope;
mod signals;
mod test_hive;
