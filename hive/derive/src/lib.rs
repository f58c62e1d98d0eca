//! Derive macros of the hive: Params, Outputs, Object, Config.
