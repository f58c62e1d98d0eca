//! The wiring: commands and conditions of all cells in one engine.

use hive::Group;
use hive::prelude::*;
use hive_command::Command;

use crate::command::Condition;
use crate::engine::Engine;
use crate::error::Duplicate;

/// Provides the [`Engine`] of all commands and conditions that cells contribute. The hive fails to build if two have
/// the same name.
pub fn cell() -> Cell {
    module("script", "Commands of scripts and of the shell", [provide(new_engine)])
}

fn new_engine(commands: Group<Command>, conditions: Group<Condition>) -> Result<Engine, Duplicate> {
    Engine::new(commands, conditions)
}
