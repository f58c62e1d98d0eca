//! The agent: a list of cells in a hive.

mod logging;

fn main() {
    logging::LogOptions::default().install();
}
