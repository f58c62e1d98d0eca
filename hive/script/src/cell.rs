//! The wiring: everything that cells contribute, in one engine.

use hive::Group;
use hive::prelude::*;

use crate::command::{Command, Condition};
use crate::engine::Engine;
use crate::error::Duplicate;

/// Provides the [`Engine`] of all commands and conditions that cells contribute. The hive does not build if two are called
/// the same.
pub fn cell() -> Cell {
    module("script", "Commands of scripts and of the shell", [provide(new_engine)])
}

fn new_engine(commands: Group<Command>, conditions: Group<Condition>) -> Result<Engine, Duplicate> {
    Engine::new(commands, conditions)
}
