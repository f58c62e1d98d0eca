//! Writes over an API server that fails on demand, in virtual time.

mod cluster;
mod faults;
mod flows;
mod health;
mod model;
mod outage;
mod races;
mod stop;
mod world;
