//! A bridge from shaku components to hive cells.
